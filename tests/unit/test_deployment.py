"""The image, the compose file and the chart agree with the settings and with each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import pytest

from broker.settings import Settings

REPOSITORY: Final = Path(__file__).resolve().parents[2]
CHART: Final = REPOSITORY / "helm"
KNOWN: Final = {f"TIDEGATE_{name}".upper() for name in Settings.model_fields}
MODES: Final = ("direct", "single", "external")


def text(name: str) -> str:
    """A file of the tree."""
    return (REPOSITORY / name).read_text("utf-8")


def variables(source: str) -> set[str]:
    """The TIDEGATE_* names in a text; one that ends in an underscore is the start of a template's."""
    return {name for name in re.findall(r"\bTIDEGATE_[A-Z_]+\b", source) if not name.endswith("_")}


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml", "helm/templates/statefulset.yaml", "helm/values.yaml"])
def test_every_variable_is_a_setting(name: str) -> None:
    named = variables(text(name))

    assert named, "a deployment that sets nothing"
    assert named <= KNOWN


def test_settings_of_the_chart_are_settings() -> None:
    block = re.search(r"^settings:\n((?: .*\n)+)", text("helm/values.yaml"), re.MULTILINE)
    assert block

    names = set(re.findall(r"^  (?:# )?([a-z_]+):", block.group(1), re.MULTILINE))

    assert names <= set(Settings.model_fields)


def test_every_service_of_compose_publishes_the_port_it_advertises() -> None:
    brokers = re.findall(r"^  broker-\d:\n((?:    .*\n)+)", text("compose.yaml"), re.MULTILINE)
    seen = set()
    for broker in brokers:
        (port,) = re.findall(r'TIDEGATE_PORT: "(\d+)"', broker)
        (advertised,) = re.findall(r'TIDEGATE_ADVERTISED_PORT: "(\d+)"', broker)
        published = re.findall(r":(\d+):(\d+)$", broker, re.MULTILINE)
        assert advertised == port
        assert (port, port) in published
        seen |= {host for host, _ in published}

    assert len(brokers) == 3
    assert len(seen) == 6, "every published port is another"


def test_environment_example_names_what_compose_reads() -> None:
    read = dict(re.findall(r"\$\{([A-Z_0-9]+):-([^}]*)\}", text("compose.yaml")))
    example = dict(re.findall(r"^([A-Z_0-9]+)=(.*)$", text(".env.example"), re.MULTILINE))

    assert example == read


def test_nothing_is_killed_inside_its_drain_budget() -> None:
    compose = text("compose.yaml")
    (budget_ms,) = re.findall(r'TIDEGATE_DRAIN_BUDGET_MS: "(\d+)"', compose)
    grace_s = re.findall(r"stop_grace_period: (\d+)s", compose)

    assert int(budget_ms) == Settings.model_fields["drain_budget_ms"].default
    assert all(int(grace) * 1_000 > int(budget_ms) for grace in grace_s)


def test_the_server_of_compose_is_one_that_brokers_accept() -> None:
    options = re.findall(r"^      - (.+)$", text("compose.yaml"), re.MULTILINE)

    assert options[options.index("--maxmemory-policy") + 1] == "noeviction"
    assert options[options.index("--appendonly") + 1] == '"yes"'
    assert options[options.index("--appendfsync") + 1] == "everysec"


def test_image_runs_what_the_tree_has() -> None:
    dockerfile, ignored = text("Dockerfile"), text(".dockerignore")
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE) for word in line.split()
    ]

    assert copied
    assert all((REPOSITORY / name).exists() for name in copied)
    assert {f"!{name}" for name in copied} <= set(ignored.splitlines())
    assert re.search(r"^USER 10001", dockerfile, re.MULTILINE)
    assert "/health/ready" in dockerfile


def test_chart_and_package_have_one_version() -> None:
    (version,) = re.findall(r'^__version__ = "(.+)"$', text("broker/__init__.py"), re.MULTILINE)

    assert f'appVersion: "{version}"' in text("helm/Chart.yaml")


def test_schema_covers_the_values() -> None:
    schema = json.loads(text("helm/values.schema.json"))

    documented = set(re.findall(r"^([a-zA-Z]+):", text("helm/values.yaml"), re.MULTILINE))

    assert documented == set(schema["properties"]) - {"global"}


@pytest.mark.parametrize("name", ["compose.yaml", "helm/values.yaml", "helm/Chart.yaml"])
def test_yaml_is_yaml(name: str) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

    assert isinstance(yaml.safe_load(text(name)), dict)


def rendered(*options: str) -> str:
    """What helm makes of the chart. Skips where helm is not on the PATH."""
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not on the PATH")
    command = [helm, "template", "test", str(CHART), "--kube-version", "1.30.0", "--set", "redis.url=redis://r:6379/0"]
    return subprocess.run([*command, *options], check=True, capture_output=True, text=True, timeout=60).stdout


def only(source: str, kind: str) -> list[str]:
    """The rendered documents of one kind."""
    return [document for document in source.split("\n---\n") if f"\nkind: {kind}\n" in f"\n{document}"]


@pytest.mark.parametrize("mode", MODES)
def test_chart_renders_in_every_address_mode(mode: str) -> None:
    source = rendered("--set", f"addressing.mode={mode}")
    (broker,) = only(source, "StatefulSet")

    assert f"value: {mode} }}" in broker
    assert variables(broker) <= KNOWN
    assert {"TIDEGATE_ADVERTISED_HOST", "TIDEGATE_ADVERTISED_PORT", "TIDEGATE_REDIS_URL"} <= variables(broker)
    grace_s = int(re.findall(r"terminationGracePeriodSeconds: (\d+)", broker)[0])
    assert grace_s > Settings.model_fields["drain_budget_ms"].default / 1_000
    assert len(only(source, "Service")) == (5 if mode == "external" else 2)
    assert only(source, "PodDisruptionBudget")
    assert only(source, "ServiceAccount")


def test_external_ports_count_up_with_the_ordinal() -> None:
    external = "addressing.external"
    source = rendered(
        *("--set", "addressing.mode=external", "--set", f"{external}.service.type=NodePort"),
        *("--set", f"{external}.portBase=31000,{external}.portStep=1,{external}.service.nodePortBase=31000"),
    )

    assert re.findall(r"nodePort: (\d+)", source) == ["31000", "31001", "31002"]
    assert 'TIDEGATE_ADVERTISED_PORT, value: "31000+{ordinal}"' in source


def test_rendered_chart_is_yaml() -> None:
    yaml: Any = pytest.importorskip("yaml", reason="PyYAML is not installed")

    documents = list(yaml.safe_load_all(rendered()))

    assert {"StatefulSet", "Service", "Secret"} <= {document["kind"] for document in documents}


def test_chart_wants_a_redis() -> None:
    helm = shutil.which("helm")
    if helm is None:
        pytest.skip("helm is not on the PATH")

    done = subprocess.run([helm, "lint", str(CHART)], check=False, capture_output=True, text=True, timeout=60)

    assert done.returncode != 0
    assert "redis" in done.stdout
