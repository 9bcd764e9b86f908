"""`__consumer_offsets` and `__transaction_state` for tools that read Kafka's."""
