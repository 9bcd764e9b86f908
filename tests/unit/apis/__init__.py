"""Unit tests of broker.apis."""
