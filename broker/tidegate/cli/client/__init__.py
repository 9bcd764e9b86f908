"""Access to brokers over Kafka and REST, and to Redis."""
