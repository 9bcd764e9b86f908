"""Quotas of clients over the whole cluster: who has which, and the token buckets that brokers lease from Redis."""
