"""Windows, sessions and timers beside native Spark; what of it lanes take, without Spark."""
