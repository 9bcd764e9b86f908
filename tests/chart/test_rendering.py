"""What the chart renders, value by value."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chart.rendering import CASES, CHART, REDIS, Document, broker_pod, environment, only, pods, render
from tests.chart.schema import BY_OTHER_VALUES
from tests.unit.test_deployment import KNOWN
from tidegate_pipeline.redis_access import connect
from tidegate_pipeline.settings import load

SPARK = "TIDEGATE_PIPELINE_SPARK"
"""A whole section: names are Spark's."""


def case(name: str) -> list[Document]:
    """One of ci/."""
    return render(str(CHART / "ci" / f"{name}.yaml"))


def broker(*options: str) -> dict[str, Any]:
    """The environment of the brokers' container."""
    (container,) = broker_pod(render(*options))["containers"]
    return environment(container)


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_variables_are_settings_and_each_is_set_once(path: Path) -> None:
    for pod in pods(render(str(path))):
        for container in pod["containers"]:
            names = [one["name"] for one in container.get("env", ())]
            assert len(names) == len(set(names))
            assert {name for name in names if name.startswith("TIDEGATE_")} <= KNOWN | {SPARK}


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_settings_that_values_make_are_refused_as_settings(path: Path) -> None:
    (container,) = broker_pod(render(str(path)))["containers"]
    given = yaml.safe_load(path.read_text()).get("settings", {}) | {"log_level": "", "log_format": ""}
    named = {name.removeprefix("TIDEGATE_").lower() for name in environment(container) if name.startswith("TIDEGATE_")}

    assert named - set(given) - {"secrets_dir"} <= BY_OTHER_VALUES  # which is no setting


@pytest.mark.parametrize("path", CASES, ids=lambda path: path.stem)
def test_services_find_ports_of_pods(path: Path) -> None:
    documents = render(str(path))
    workloads = [one for one in documents if one["kind"] in ("Deployment", "StatefulSet")]
    services = [one["spec"] for one in documents if one["kind"] == "Service"]

    assert services
    for service in services:
        selector = {key: value for key, value in service["selector"].items() if not key.startswith("statefulset.")}
        (found,) = [
            one for one in workloads if selector.items() <= one["spec"]["template"]["metadata"]["labels"].items()
        ]
        ports = {port["name"] for port in found["spec"]["template"]["spec"]["containers"][0]["ports"]}
        assert {port["targetPort"] for port in service["ports"]} <= ports


def listeners(documents: list[Document]) -> dict[str, tuple[str, str, str, str]]:
    """Name -> bind address, advertised address, protocol and mode, from the brokers' settings."""
    variables = environment(broker_pod(documents)["containers"][0])

    def named(variable: str, between: str) -> dict[str, str]:
        return dict(one.split(between, 1) for one in variables[f"TIDEGATE_{variable}"].split(","))

    bound, reported = named("LISTENERS", "://"), named("ADVERTISED_LISTENERS", "://")
    protocols, modes = named("LISTENER_SECURITY_PROTOCOL_MAP", ":"), named("ADDRESS_MODE", ":")
    return {name: (bound[name], reported[name], protocols[name], modes[name]) for name in bound}


def test_deployment_advertises_pod_addresses_by_default() -> None:
    documents = case("direct")
    deployment = only(documents, "Deployment")
    (container,) = broker_pod(documents)["containers"]

    assert deployment["spec"]["replicas"] == 3
    assert deployment["spec"]["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    assert deployment["spec"]["minReadySeconds"] == 5
    assert {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}} in container["env"]
    assert listeners(documents) == {"INTERNAL": ("0.0.0.0:9092", "$(POD_IP):9092", "PLAINTEXT", "direct")}
    assert [one["kind"] for one in documents if one["kind"] == "StatefulSet"] == []
    assert listeners(render(REDIS, "ipFamily=IPv6"))["INTERNAL"][:2] == ("[::]:9092", "[$(POD_IP)]:9092")


def test_stateful_set_advertises_pod_names() -> None:
    documents = case("names")
    headless = only(documents, "Service", "test-tidegate-headless")["spec"]
    (_, reported, *_) = listeners(documents)["INTERNAL"]

    assert only(documents, "StatefulSet")["spec"]["serviceName"] == "test-tidegate-headless"
    assert reported == "$(POD_NAME).test-tidegate-headless.$(POD_NAMESPACE).svc:9092"
    assert headless["clusterIP"] == "None"
    assert headless["publishNotReadyAddresses"] is True, "a draining broker is still found"


def test_external_has_a_service_for_each_pod_that_there_may_be() -> None:
    documents = case("external")
    services = [only(documents, "Service", f"test-tidegate-{ordinal}") for ordinal in range(3)]

    assert listeners(documents) == {
        "OUTSIDE": ("0.0.0.0:9094", "kafka.example.com:31000+{ordinal}", "PLAINTEXT", "external")
    }
    assert [one["spec"]["ports"][0]["nodePort"] for one in services] == [31000, 31001, 31002]
    assert [one["spec"]["selector"]["statefulset.kubernetes.io/pod-name"] for one in services] == [
        f"test-tidegate-{ordinal}" for ordinal in range(3)
    ]
    assert services[2]["metadata"]["annotations"] == {"example.com/name": "broker-2"}

    scaled = render(str(CHART / "ci" / "external.yaml"), "autoscaling.enabled=true,autoscaling.maxReplicas=7")
    assert len([one for one in scaled if re.fullmatch(r"test-tidegate-\d", one["metadata"]["name"])]) == 7


def test_one_balanced_address_beside_addresses_of_pods() -> None:
    documents = case("single")
    balanced = only(documents, "Service", "test-tidegate-single")["spec"]

    assert listeners(documents) == {
        "BALANCED": ("0.0.0.0:9094", "kafka.example.com:443", "PLAINTEXT", "single"),
        "INTERNAL": ("0.0.0.0:9092", "$(POD_IP):9092", "PLAINTEXT", "direct"),
    }
    assert balanced["type"] == "LoadBalancer"
    assert balanced["ports"] == [{"name": "balanced", "port": 443, "targetPort": "balanced"}]
    assert only(documents, "Deployment")

    inside = render(REDIS, "listeners.internal.mode=single")
    assert listeners(inside)["INTERNAL"][1] == "test-tidegate-bootstrap.$(POD_NAMESPACE).svc:9092"
    assert not [one for one in inside if one["metadata"]["name"] == "test-tidegate-single"]


def test_certificate_names_every_advertised_host() -> None:
    documents = case("tls")
    certificate = only(documents, "Certificate")["spec"]
    pod = broker_pod(documents)
    mounts = {one["mountPath"]: one["name"] for one in pod["containers"][0]["volumeMounts"]}
    secrets = {one["name"]: one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one}
    variables = environment(pod["containers"][0])

    assert {protocol for _, _, protocol, _ in listeners(documents).values()} == {"SSL"}
    assert {
        "test-tidegate-bootstrap.streams.svc", "*.test-tidegate-headless.streams.svc", "broker-0.kafka.example.com",
        "broker-2.kafka.example.com", "kafka.example.com",
    } <= set(certificate["dnsNames"])  # fmt: skip
    assert secrets[mounts["/etc/tidegate/tls"]] == certificate["secretName"]
    assert secrets[mounts["/etc/tidegate/client-ca"]] == "clients"
    assert secrets[mounts["/etc/tidegate/redis-ca"]] == "redis-ca"
    for name, value in variables.items():
        if name.endswith("_FILE"):
            assert str(Path(value).parent) in mounts, name
    assert render(REDIS, "workload=StatefulSet,listeners.internal.protocol=SSL,tls.existingSecret=x")


@pytest.mark.parametrize(
    ("options", "url"),
    [
        (["redis.hosts={r:1}"], "redis://r:1/0"),
        (["redis.hosts={r}", "redis.tls.enabled=true", "redis.database=2"], "rediss://r/2"),
        (["redis.hosts={a:1,b}", "redis.kind=sentinel", "redis.sentinelService=m"], "redis+sentinel://a:1,b/m/0"),
        (["redis.hosts={r}", "redis.passwordSecret.name=s"], "redis://:$(REDIS_PASSWORD)@r/0"),
        (["redis.hosts={r}", "redis.passwordSecret.name=s", "redis.user=u"], "redis://u:$(REDIS_PASSWORD)@r/0"),
        (["valkey.enabled=true"], "redis://test-tidegate-valkey:6379/0"),
    ],
)
def test_address_of_redis_is_put_together(options: list[str], url: str) -> None:
    assert broker(*options)["TIDEGATE_REDIS_URL"] == url


def test_passwords_are_in_secrets_alone() -> None:
    documents = render(str(CHART / "ci" / "external.yaml"), "admin.operatorToken=0123456789abcdef")
    secret = only(documents, "Secret", "test-tidegate-redis")
    url = secret["stringData"]["url"]

    assert url == "redis+sentinel://:p%40ss%20word@sentinel-0:26379,sentinel-1:26379/mymaster/0"
    assert connect(url)
    assert only(documents, "Secret", "test-tidegate-admin")["stringData"] == {"operator-token": "0123456789abcdef"}
    elsewhere = json.dumps([one for one in documents if one["kind"] != "Secret"])
    assert not re.search("p@ss|p%40ss|0123456789abcdef", elsewhere)


def test_secrets_of_yours_are_named_and_none_is_made() -> None:
    documents = render("redis.existingSecret=a", "redis.secretKey=k", "admin.existingSecret=b")
    variables = environment(broker_pod(documents)["containers"][0])

    assert variables["TIDEGATE_REDIS_URL"] == {"secretKeyRef": {"name": "a", "key": "k"}}
    assert variables["TIDEGATE_ADMIN_VIEWER_TOKEN"] == {"secretKeyRef": {"name": "b", "key": "viewer-token"}}
    assert not [one for one in documents if one["kind"] == "Secret"]
    one_key = broker("redis.existingSecret=a", "admin.existingSecret=b", "admin.existingSecretKeys={operator-token}")
    assert [name for name in one_key if name.startswith("TIDEGATE_ADMIN_OP")] == ["TIDEGATE_ADMIN_OPERATOR_TOKEN"]
    assert "TIDEGATE_ADMIN_VIEWER_TOKEN" not in one_key


def test_changed_secret_rolls_the_pods_and_nothing_else_does() -> None:
    def template(*options: str) -> Document:
        made: Document = only(render(*options), "Deployment")["spec"]["template"]
        return made

    assert template(REDIS) != template("redis.url=redis://r:6379/1")
    assert template(REDIS) == template(REDIS, "replicaCount=5", "networkPolicy.enabled=true")


def test_grace_covers_the_drain() -> None:
    pod = broker_pod(render(REDIS, "drain.noticeSeconds=5,drain.timeoutSeconds=60,admin.port=9999"))
    variables = environment(pod["containers"][0])
    (*_, program) = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]

    assert pod["terminationGracePeriodSeconds"] == 70
    assert variables["TIDEGATE_SHUTDOWN_TIMEOUT_MS"] == "60000"
    assert variables["TIDEGATE_DRAIN_NOTICE_MS"] == "5000"
    assert broker_pod(render(REDIS))["terminationGracePeriodSeconds"] == 30
    assert "'localhost', 9999" in program


def test_drain_former_name_of_the_timeout_is_accepted() -> None:
    pod = broker_pod(render(REDIS, "drain.budgetSeconds=60"))

    assert pod["terminationGracePeriodSeconds"] == 70
    assert environment(pod["containers"][0])["TIDEGATE_SHUTDOWN_TIMEOUT_MS"] == "60000"


def test_scalers_own_the_number_of_pods() -> None:
    for name, kind in (("hpa", "HorizontalPodAutoscaler"), ("keda", "ScaledObject")):
        documents = case(name)
        assert "replicas" not in only(documents, "Deployment")["spec"]
        assert only(documents, kind)["spec"]["scaleTargetRef"] == {
            "apiVersion": "apps/v1", "kind": "Deployment", "name": "test-tidegate",
        }  # fmt: skip
    triggers = only(render(REDIS, "keda.enabled=true"), "ScaledObject")["spec"]["triggers"]
    assert triggers == [{"type": "cpu", "metricType": "Utilization", "metadata": {"value": "70"}}]


def test_platform_values_are_applied() -> None:
    documents = case("cluster")
    pod = broker_pod(documents)
    (container,) = pod["containers"]

    assert container["image"] == "registry.example/tidegate@sha256:" + "0" * 64
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert (pod["priorityClassName"], pod["nodeSelector"]) == ("streams", {"pool": "streams"})
    assert pod["topologySpreadConstraints"][0]["topologyKey"] == "zone"
    assert {"name": "more", "mountPath": "/more"} in container["volumeMounts"]
    assert container["envFrom"] == [{"configMapRef": {"name": "more"}}]
    assert all(one["metadata"]["labels"]["team"] == "streams" for one in documents)
    assert only(documents, "PodDisruptionBudget")["spec"]["maxUnavailable"] == "25%"
    (rule,) = only(documents, "Ingress")["spec"]["rules"]
    assert rule["http"]["paths"][0]["backend"]["service"] == {"name": "test-tidegate-admin", "port": {"name": "admin"}}
    monitored = only(documents, "ServiceMonitor")["spec"]["selector"]["matchLabels"]
    assert monitored.items() <= only(documents, "Service", "test-tidegate-admin")["metadata"]["labels"].items()
    assert not monitored.items() <= only(documents, "Service", "test-tidegate-bootstrap")["metadata"]["labels"].items()


def test_prometheus_knows_brokers_and_shows_its_token() -> None:
    documents = render(REDIS, "metrics.serviceMonitor.enabled=true", "admin.viewerToken=0123456789abcdef")
    monitor = only(documents, "ServiceMonitor")["spec"]
    service = only(documents, "Service", "test-tidegate-admin")["metadata"]["labels"]
    (endpoint,) = monitor["endpoints"]
    (other,) = only(
        render(REDIS, "metrics.podMonitor.enabled=true,metrics.tokenKey=k,admin.existingSecret=s"), "PodMonitor"
    )["spec"]["podMetricsEndpoints"]

    assert service[monitor["jobLabel"]] == "tidegate", "the alert of a broker that is down is for this job"
    assert endpoint["authorization"]["credentials"] == {"name": "test-tidegate-admin", "key": "viewer-token"}
    assert other["authorization"]["credentials"] == {"name": "s", "key": "k"}
    assert "authorization" not in only(case("cluster"), "ServiceMonitor")["spec"]["endpoints"][0]


def test_rules_and_dashboards_are_those_of_the_files() -> None:
    documents = case("cluster")
    rules = {one["metadata"]["name"]: one["spec"] for one in documents if one["kind"] == "PrometheusRule"}
    boards = {one["metadata"]["name"]: one for one in documents if one["kind"] == "ConfigMap"}

    assert rules
    for path in (CHART / "files" / "rules").glob("*.yml"):
        assert rules[f"test-tidegate-{path.stem}"] == yaml.safe_load(path.read_text())
    for path in (CHART / "files" / "dashboards").glob("*.json"):
        board = boards[f"test-tidegate-dashboard-{path.stem}"]
        assert json.loads(board["data"][path.name]) == json.loads(path.read_text())
        assert board["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_network_policy_lets_clients_in_and_little_out() -> None:
    spec = only(case("cluster"), "NetworkPolicy")["spec"]
    clients, admin = spec["ingress"]
    (tester,) = [one for one in case("cluster") if one["kind"] == "Pod"]

    assert clients["ports"] == [{"port": "internal"}]
    assert clients["from"][0]["podSelector"]["matchLabels"].items() <= tester["metadata"]["labels"].items()
    assert clients["from"][1:] == [{"namespaceSelector": {"matchLabels": {"streams": "yes"}}}]
    assert admin == {"ports": [{"port": "admin"}]}  # for the ingress and Prometheus, wherever they are
    assert spec["egress"][1:] == [{"ports": [{"port": 6379}]}, {"ports": [{"port": 443}]}]
    assert only(case("demo"), "NetworkPolicy", "test-tidegate")["spec"]["policyTypes"] == ["Ingress"]


def test_network_policy_is_there_by_default() -> None:
    clients, admin = only(render(REDIS), "NetworkPolicy")["spec"]["ingress"]
    named = render(REDIS, "networkPolicy.admin[0].ipBlock.cidr=10.0.0.0/8", "metrics.serviceMonitor.enabled=true")

    assert clients == {"ports": [{"port": "internal"}]}
    assert admin == {"ports": [{"port": "admin"}], "from": [{"podSelector": {}}]}
    assert only(named, "NetworkPolicy")["spec"]["ingress"][1]["from"][1:] == [{"ipBlock": {"cidr": "10.0.0.0/8"}}]
    assert not [one for one in render(REDIS, "networkPolicy.enabled=false") if one["kind"] == "NetworkPolicy"]


def test_users_are_made_from_a_secret_over_a_listener_with_sasl() -> None:
    documents = case("sasl")
    job = only(documents, "Job", "test-tidegate-users")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    environment = {one["name"]: one for one in broker_pod(documents)["containers"][0]["env"]}

    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    assert "--org acme --password-file" in container["command"][2]
    secrets = [one["secret"]["secretName"] for one in job["spec"]["template"]["spec"]["volumes"] if "secret" in one]
    assert secrets == ["kafka-users"]
    assert {one["name"] for one in container["env"]} >= {"TIDEGATE_REDIS_URL"}
    assert environment["TIDEGATE_LISTENER_SECURITY_PROTOCOL_MAP"]["value"] == "INTERNAL:SASL_SSL"
    assert environment["TIDEGATE_SASL_ENABLED_MECHANISMS"]["value"] == "SCRAM-SHA-512"
    assert "TIDEGATE_SSL_CERTIFICATE_FILE" in environment
    assert not [one for one in documents if one["kind"] == "Pod"]  # `helm test` has no user
    assert not [one for one in case("tls") if one["metadata"]["name"].endswith("-users")]


def test_out_is_to_what_values_name() -> None:
    named = only(case("files"), "NetworkPolicy")["spec"]["egress"]
    demo = render("valkey.enabled=true,networkPolicy.enabled=true,networkPolicy.egress.enabled=true")
    (policy,) = [one for one in demo if one["kind"] == "NetworkPolicy" and one["metadata"]["name"] == "test-tidegate"]
    given = render(
        REDIS,
        "networkPolicy.enabled=true,networkPolicy.egress.enabled=true",
        "networkPolicy.egress.redis[0].ipBlock.cidr=10.1.0.0/16",
    )

    assert named[0]["to"] == [{"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "kube-system"}}}]
    assert named[1] == {"ports": [{"port": 6380}], "to": [{"ipBlock": {"cidr": "10.0.0.5/32"}}]}
    (to,) = policy["spec"]["egress"][1]["to"]
    server = only(demo, "StatefulSet", "test-tidegate-valkey")["spec"]["template"]["metadata"]["labels"]
    assert to["podSelector"]["matchLabels"].items() <= server.items()
    assert only(given, "NetworkPolicy")["spec"]["egress"][1]["to"] == [{"ipBlock": {"cidr": "10.1.0.0/16"}}]


def test_secrets_may_be_files() -> None:
    pod = broker_pod(case("files"))
    (container,) = pod["containers"]
    (volume,) = [one["projected"] for one in pod["volumes"] if one["name"] == "secrets"]
    files = [item["path"] for source in volume["sources"] for item in source["secret"]["items"]]

    assert sorted(files) == [
        "TIDEGATE_ADMIN_OPERATOR_TOKEN",
        "TIDEGATE_ADMIN_VIEWER_TOKEN",
        "TIDEGATE_REDIS_SENTINEL_PASSWORD",
        "TIDEGATE_REDIS_URL",
    ]
    assert not any("secretKeyRef" in one.get("valueFrom", {}) for one in container["env"])
    assert not {one["name"] for one in container["env"]} & set(files)
    assert {one["mountPath"] for one in container["volumeMounts"]} >= {"/etc/tidegate/secrets"}
    without = broker_pod(render("valkey.enabled=true,secretsAsFiles=true"))
    assert "secrets" not in [one["name"] for one in without["volumes"]]


def test_demo_is_a_server_that_brokers_accept() -> None:
    server = only(case("demo"), "StatefulSet", "test-tidegate-valkey")["spec"]
    (container,) = server["template"]["spec"]["containers"]
    options = container["command"]

    assert options[options.index("--maxmemory-policy") + 1] == "noeviction"
    assert options[options.index("--appendonly") + 1] == "yes"
    assert options[options.index("--maxmemory") + 1] == "512mb"
    assert container["resources"]["limits"]["memory"] == "768Mi"
    assert server["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"] == "2Gi"
    without = only(render("valkey.enabled=true", "valkey.storage.size="), "StatefulSet")["spec"]
    assert "volumeClaimTemplates" not in without
    assert without["template"]["spec"]["volumes"] == [{"name": "data", "emptyDir": {}}]


def test_pipeline_runs_continuously_or_is_scheduled(tmp_path: Path) -> None:
    documents = case("pipeline")
    scheduled = only(documents, "CronJob", "test-tidegate-lag")["spec"]
    going = only(documents, "Deployment", "test-tidegate-archive")["spec"]
    file = tmp_path / "pipeline.toml"
    file.write_text(only(documents, "ConfigMap")["data"]["pipeline.toml"])
    settings = load(file)

    assert scheduled["concurrencyPolicy"] == "Forbid"
    assert scheduled["jobTemplate"]["spec"]["template"]["spec"]["restartPolicy"] == "Never"
    assert going["strategy"] == {"type": "Recreate"}
    (container,) = going["template"]["spec"]["containers"]
    assert container["args"] == [
        "pipeline", "archive", "--every", "30s", "--config", "/etc/tidegate/pipeline/pipeline.toml",
    ]  # fmt: skip
    assert environment(container)["TIDEGATE_ARCHIVE_PATH"] == "s3://bucket/archive"
    assert container["envFrom"] == [{"secretRef": {"name": "bucket"}}]
    assert (settings.checkpoint.path, settings.archive.segment_bytes) == ("s3a://bucket/checkpoints", 67_108_864)
    assert settings.spark == {"spark.sql.shuffle.partitions": "8"}
    assert not [one for one in documents if one["kind"] == "Role"]


def test_executors_are_pods_of_their_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    documents = case("executors")
    data = only(documents, "ConfigMap")["data"]
    pod = only(documents, "Deployment", "test-tidegate-archive")["spec"]["template"]["spec"]
    executor = yaml.safe_load(data["executor.yaml"])["spec"]
    variables = environment(pod["containers"][0])
    spark = variables[SPARK].replace("$(POD_IP)", "10.0.0.7").replace("$(POD_NAME)", "driver-1")
    monkeypatch.setenv(SPARK, spark)
    (tmp_path / "pipeline.toml").write_text(data["pipeline.toml"])
    settings = load(tmp_path / "pipeline.toml").spark

    assert tomllib.loads(data["pipeline.toml"]) == {"checkpoint": {"path": "/archive/checkpoints"}}
    assert settings["spark.driver.host"] == "10.0.0.7"
    assert settings["spark.kubernetes.driver.pod.name"] == "driver-1"
    assert settings["spark.kubernetes.container.image"] == pod["containers"][0]["image"]
    assert settings["spark.executor.instances"] == "3"
    assert pod["automountServiceAccountToken"] is True
    assert executor["automountServiceAccountToken"] is False
    assert executor["containers"][0]["env"] == pod["containers"][0]["env"]
    assert executor["securityContext"] == pod["securityContext"]
    assert {"name": "archive", "mountPath": "/archive"} in executor["containers"][0]["volumeMounts"]
    (subject,) = only(documents, "RoleBinding")["subjects"]
    assert subject["name"] == pod["serviceAccountName"] == "test-tidegate-pipeline"


def test_upgrade_is_checked_on_the_new_address_by_the_new_image() -> None:
    options = [str(CHART / "ci" / "direct.yaml"), "image.tag=9.9.9", "settings.key_prefix=ours"]
    documents = render(*options)
    job = only(documents, "Job", "test-tidegate-upgrade-check")
    secret = only(documents, "Secret", "test-tidegate-upgrade-check")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    variables = environment(container)

    assert {one["metadata"]["annotations"]["helm.sh/hook"] for one in (job, secret)} == {"pre-upgrade"}
    assert int(secret["metadata"]["annotations"]["helm.sh/hook-weight"]) < 0
    assert container["image"] == "tidegate:9.9.9"
    assert variables["TIDEGATE_REDIS_URL"]["secretKeyRef"]["name"] == secret["metadata"]["name"]
    assert secret["stringData"] == only(documents, "Secret", "test-tidegate-redis")["stringData"]
    assert variables["TIDEGATE_KEY_PREFIX"] == "ours"
    for without in ("upgradeCheck.enabled=false", "settings.redis_allow_eviction=true"):
        assert not [one for one in render(*options, without) if one["kind"] == "Job"]


def test_helm_test_takes_a_listener_that_it_can_reach() -> None:
    def arguments(*options: str) -> list[list[str]]:
        return [one["spec"]["containers"][0]["args"] for one in render(*options) if one["kind"] == "Pod"]

    (plain,) = arguments(REDIS)
    (tls,) = arguments(REDIS, "workload=StatefulSet,listeners.internal.protocol=SSL,tls.existingSecret=x")

    assert plain == [
        "round-trip",
        "--topic",
        "tidegate-helm-test",
        "--bootstrap",
        "test-tidegate-bootstrap.streams.svc:9092",
    ]
    assert tls[5:] == ["--tls", "--ca-file", "/etc/tidegate/tls/ca.crt"]
    assert arguments(str(CHART / "ci" / "tls.yaml")) == [], "it has no certificate to show"
