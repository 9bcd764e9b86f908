"""Kafka's wire format to Python values and back; no I/O."""
