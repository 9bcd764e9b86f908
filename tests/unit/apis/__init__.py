"""Unit tests of tidegate.apis."""
