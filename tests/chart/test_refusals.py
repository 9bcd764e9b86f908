"""What the chart refuses, and whether the reason can be read."""

from __future__ import annotations

import pytest

from tests.chart.rendering import REDIS, refused

OUTSIDE = "listeners.outside.port=9094,listeners.outside.protocol=PLAINTEXT,listeners.outside.mode=external"
TLS = "listeners.internal.protocol=SSL"


@pytest.mark.parametrize(
    ("options", "reported"),
    [
        # -- the schema: keys that are not there, values that cannot be
        ([REDIS, "replicas=3"], "additional properties 'replicas' not allowed"),
        ([REDIS, "redis.pasword=x"], "at '/redis': additional properties 'pasword' not allowed"),
        ([REDIS, "settings.log_retentio_ms=1"], "at '/settings': additional properties 'log_retentio_ms' not allowed"),
        ([REDIS, "settings.redis_url=redis://x"], "additional properties 'redis_url' not allowed"),
        ([REDIS, "settings.log_level=loud"], "at '/settings/log_level': value must be one of 'debug', 'info'"),
        ([REDIS, "settings.num_partitions=0"], "at '/settings/num_partitions': minimum: got 0, want 1"),
        ([REDIS, "settings.durability=some"], "at '/settings/durability': 'some' does not match"),
        ([REDIS, "workload=DaemonSet"], "value must be one of 'auto', 'Deployment', 'StatefulSet'"),
        ([REDIS, "listeners.internal.mode=both"], "value must be one of 'direct', 'single', 'external'"),
        ([REDIS, "replicaCount=three"], "at '/replicaCount': got string, want integer"),
        ([REDIS, "listeners.internal.port=70000"], "at '/listeners/internal/port': maximum: got 70,000"),
        ([REDIS, "listeners.internal.tls=true"], "at '/listeners/internal': additional properties 'tls' not allowed"),
        ([REDIS, "listeners.Other.port=1"], "listeners"),
        ([REDIS, "image.digest=latest"], "at '/image/digest': 'latest' does not match"),
        ([REDIS, "resources.request.cpu=1"], "at '/resources': additional properties 'request' not allowed"),
        (["redis.url=http://redis"], "at '/redis/url': 'http://redis' does not match"),
        (["redis.hosts[0]=redis://h"], "at '/redis/hosts/0': 'redis://h' does not match"),
        ([REDIS, "admin.operatorToken=short"], "at '/admin/operatorToken'"),
        ([REDIS, "pipeline.config.archiv.path=/x"], "additional properties 'archiv' not allowed"),
        ([REDIS, "pipeline.jobs.lag.schedule=@daily"], "at '/pipeline/jobs/lag': missing property 'arguments'"),
        ([REDIS, "drain.terminationGracePeriodSeconds=0"], "minimum: got 0, want 1"),
        # -- two values that do not fit
        ([], "brokers need a Redis or Valkey: set redis.url, redis.existingSecret or redis.hosts"),
        ([REDIS, "valkey.enabled=true"], "one Redis, please: redis.url and valkey.enabled are set"),
        ([REDIS, "redis.user=me"], "go with redis.hosts; in a URL they have their own place"),
        (["redis.hosts={a,b}"], "redis.kind=standalone has one host in redis.hosts"),
        (["redis.hosts={a},redis.password=x,redis.passwordSecret.name=y"], "redis.password or redis.passwordSecret"),
        (["redis.hosts={a},redis.passwordSecret.name=y,secretsAsFiles=true"], "use redis.existingSecret with"),
        ([REDIS, OUTSIDE, "workload=Deployment"], "listeners.outside: external mode needs workload=StatefulSet"),
        ([REDIS, OUTSIDE, "external.hostTemplate=kafka.example.com"], "all brokers would have one address"),
        ([REDIS, OUTSIDE, "listeners.internal.mode=external"], "at most is external, not internal and outside"),
        (
            [REDIS, "listeners.internal.mode=single,single.service.type=LoadBalancer"],
            "single.host is the address that clients outside get: name the LoadBalancer, and set it",
        ),
        ([REDIS, "listeners.internal.port=8080"], "listeners.internal.port 8080 is taken"),
        ([REDIS, "listeners.internal=null"], "listeners: at least one"),
        ([REDIS, TLS, "tls.existingSecret=x"], "which no certificate names: set workload=StatefulSet"),
        ([REDIS, TLS, "workload=StatefulSet"], "set tls.existingSecret or tls.certManager.enabled"),
        ([REDIS, "tls.certManager.enabled=true"], "tls.certManager.issuerRef.name is missing"),
        ([REDIS, "autoscaling.enabled=true,keda.enabled=true"], "autoscaling or keda, not both"),
        ([REDIS, "keda.enabled=true,keda.minReplicas=11"], "keda.minReplicas 11 is above maxReplicas 10"),
        ([REDIS, "autoscaling.enabled=true,resources.requests.cpu=null"], "resources.requests.cpu, which is missing"),
        ([REDIS, "updateStrategy.maxSurge=0"], "nothing could ever be replaced"),
        (
            [REDIS, "drain.terminationGracePeriodSeconds=25"],
            "terminationGracePeriodSeconds 25 would kill a broker that drains: timeoutSeconds 20 + 6 to close is 26",
        ),
        ([REDIS, "drain.noticeSeconds=6"], "drain.noticeSeconds 6 is more than a quarter of drain.timeoutSeconds 20"),
        (
            [REDIS, "metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true"],
            "each broker would be scraped twice",
        ),
        ([REDIS, "metrics.tokenKey=viewer-token"], "a key of admin.existingSecret, which is not set"),
        (["redis.hosts={a,b}", "redis.kind=cluster", "redis.database=1"], "cluster has no redis.database but 0"),
        ([REDIS, "ingress.enabled=true"], "ingress.hosts is missing"),
        ([REDIS, "archive.path=s3://b/a,archive.existingClaim=c"], "which must be a folder then"),
        ([REDIS, "pipeline.enabled=true"], "which must outlive pods: set archive.existingClaim"),
    ],
)  # fmt: skip
def test_chart_refuses_with_a_message(options: list[str], reported: str) -> None:
    reported_text = refused(*options)

    assert reported in reported_text
    assert len(reported_text.splitlines()) < 12
