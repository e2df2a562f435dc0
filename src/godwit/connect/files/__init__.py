"""Files in directories: CSV, JSON, Parquet and Arrow read, Parquet written, exactly once.

Tables that consist of Parquet files (`godwit.connect.lakes`) use its formats and file names.
"""
