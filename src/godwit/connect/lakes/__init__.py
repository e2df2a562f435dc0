"""Tables of versioned Parquet files: what the sources of Delta and Iceberg share."""
