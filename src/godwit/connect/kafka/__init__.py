"""Kafka: topics to read from and to write to."""
