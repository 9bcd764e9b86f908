"""Fuzzing: requests made from their schemas and then broken, over a live broker; parsers, guided by coverage."""
