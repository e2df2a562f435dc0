"""PySpark's Python data sources: ``gw.sources.data_source`` and ``gw.sinks.data_source``.

Spark lets anyone write a data source in Python (`pyspark.sql.datasource`), and packages of them
exist.  Readers and writers of theirs for streams run here as they are, without Spark's engine: the
calls and their order are Spark's, and offsets are in Godwit's checkpoint.
"""
