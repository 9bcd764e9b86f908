"""Who a connection is and what it may do."""
