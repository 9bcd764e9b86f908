"""The admin HTTP server and the `tidegate` command."""
