"""Findings about one group, by subject."""
