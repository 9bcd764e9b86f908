"""Rules and dashboards against promtool and a real Prometheus: `make test SUITE=rules`."""
