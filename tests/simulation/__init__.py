"""Whole brokers on a virtual clock: real code, in-memory sockets, seeded faults (docs/testing.md)."""
