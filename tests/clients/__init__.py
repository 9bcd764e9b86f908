"""The client matrix: `make clients`."""
