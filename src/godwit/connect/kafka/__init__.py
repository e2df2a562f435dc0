"""Kafka: reading from topics and writing to topics."""
