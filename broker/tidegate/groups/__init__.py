"""Consumer groups: membership, rebalances and committed offsets."""
