"""Kafka bytes to values and back; nothing in here does I/O."""
