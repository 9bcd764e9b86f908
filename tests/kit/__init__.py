"""The test kit: one wire client, one scripted member, one history with one checker, faults, clients and processes."""
