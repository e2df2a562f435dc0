"""A cluster in this process: real lanes, stores and checkpoints, no JVM."""
