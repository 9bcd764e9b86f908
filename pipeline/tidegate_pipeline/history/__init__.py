"""Analyses of group history: rebalances, storms, commits. Plain classes that `stateful` runs in Spark."""
