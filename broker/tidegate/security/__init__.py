"""Who a client is (SASL, certificates) and what it may do (access control lists)."""
