"""Starting a flow on Spark, and the handle of the running query."""
