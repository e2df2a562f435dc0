"""Programs that run queries on the real code of a cluster manager in Spark; not part of CI."""
