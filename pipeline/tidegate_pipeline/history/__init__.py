"""What the history of a group tells: rebalances, storms, commits. Decisions are plain classes; `stateful` runs them."""
