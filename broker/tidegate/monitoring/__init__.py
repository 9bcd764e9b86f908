"""What brokers measure about the cluster: lag samples, cluster metrics, usage."""
