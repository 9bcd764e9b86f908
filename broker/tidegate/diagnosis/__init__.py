"""Explains the state of groups: snapshots, events, findings. Used by `explain`, REST and the console."""
