"""`tidegate top`: groups by trouble, live, in a terminal. `figures` reckons, the rest draws (textual, an extra)."""
