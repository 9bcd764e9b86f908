"""The log of a partition: append, read, positions, retention."""
