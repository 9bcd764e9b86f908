"""The Spark pipeline: a client of the brokers that archives and explains (built in later work)."""
