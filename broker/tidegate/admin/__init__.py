"""Admin HTTP and the tidegate command."""
