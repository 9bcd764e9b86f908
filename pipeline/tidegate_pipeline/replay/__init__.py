"""Putting records back: replay into a topic, each once, and where each came to stand."""
