"""Tables of versioned Parquet files: shared parts of the sources of Delta and Iceberg."""
