"""Unit tests of tidegate.records."""
