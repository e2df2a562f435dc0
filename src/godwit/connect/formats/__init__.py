"""Formats of messages that other libraries or services define: Avro, Protobuf, registries."""
