"""`tidegate doctor`: what a Kafka client that is given a bootstrap address will see, and what is wrong with that.

`asking` looks at one address (resolve, connect, TLS, ask), `certificates` at what a TLS port shows, `probe_redis` at
Redis. `address_judging`, `certificate_judging`, `cluster_judging` and `redis_judging` say what is to be said of it:
what looks does not judge, what judges does no I/O. `examine` does both.
"""
