"""Lanes that stay: tasks of one long Spark job that the driver hands small epochs by a socket."""
