"""Consumer groups of KIP-848: the rules as pure functions, and the batches that run them against the store."""
