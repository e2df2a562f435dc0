"""One run of a flow on Spark's driver; its epoch protocol is in `godwit.engine.loop`."""
