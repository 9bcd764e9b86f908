"""The live brokers, their leases, and where clients are sent."""
