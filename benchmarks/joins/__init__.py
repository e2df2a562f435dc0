"""Joins and dropped duplicates, against native Spark's."""
