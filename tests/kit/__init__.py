"""The test kit: one history of operations and one checker, the faults, the clients and the processes that feed them."""
