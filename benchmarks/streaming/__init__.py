"""Benchmarks of the runtime: native Spark and Godwit in turn, in the same run."""
