"""Streams groups (KIP-1071): tasks of Kafka Streams applications that the coordinator assigns."""
