"""Verbs of `tidegate pipeline`: each module adds its own by `add_to(app)`. Spark is imported inside them."""
