"""Replay records into a topic, each exactly once, and store the target offset of each."""
