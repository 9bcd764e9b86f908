"""The same conversations with Tidegate and with Apache Kafka; every field that should agree is compared."""
