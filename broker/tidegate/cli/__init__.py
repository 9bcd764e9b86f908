"""The `tidegate` command: a client of the brokers and of Redis. It imports no server package."""
