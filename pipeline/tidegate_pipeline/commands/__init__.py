"""Verbs of `tidegate pipeline`: each module adds its own by `add_to(app)`. Spark is imported inside them."""

MODULES = ("frame", "archive", "tables", "replay", "lag", "analyses", "plot")
"""In the order of `--help`."""
