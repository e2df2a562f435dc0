"""Apache Iceberg: tables to write to."""
