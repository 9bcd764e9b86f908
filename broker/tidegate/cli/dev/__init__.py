"""`tidegate dev`: an embedded Valkey and several brokers."""
