"""Live brokers, their leases, and the broker that clients are sent to."""
