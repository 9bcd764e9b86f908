"""Unit tests of broker.records."""
