"""`tidegate top`: groups by severity, live, in a terminal. `figures` computes, the rest draws (textual, an extra)."""
