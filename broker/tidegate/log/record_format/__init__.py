"""Topics of format `record`: one stream entry for each record, shared by Kafka clients and Redis programs."""
