"""Producer ids and, later, transactions."""
