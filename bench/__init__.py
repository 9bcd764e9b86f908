"""Measurements and demonstrations: clients of any Kafka endpoint, and of our own cluster's processes."""
