"""`tidegate doctor`: what a Kafka client observes from a bootstrap address, and what is wrong with it.

`probe` examines one address (resolve, connect, TLS, Kafka requests), `certificates` a TLS port's certificate,
`probe_admin` the admin HTTP, `probe_redis` Redis. `address_checks`, `certificate_checks`, `cluster_checks` and
`redis_checks` derive findings: probes judge nothing, checks do no I/O. `run.run_checks` calls both.
"""
