"""The image, the chart and the manifests agree with the settings and with each other."""

from __future__ import annotations

import json
import re
import tomllib
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pytest
import typer
import yaml

from tidegate.settings import SECRETS_DIR, Settings
from tidegate_pipeline.cli import application
from tidegate_pipeline.settings import PipelineSettings

REPOSITORY: Final = Path(__file__).resolve().parents[2]
KNOWN: Final = {SECRETS_DIR, *(f"TIDEGATE_{name}".upper() for name in Settings.model_fields)} | {
    f"TIDEGATE_PIPELINE_{section}_{name}".upper()
    for section, field in PipelineSettings.model_fields.items()
    for name in getattr(field.annotation, "model_fields", ())
}
JARS: Final = Path(find_spec("pyspark").origin).parent / "jars"  # type: ignore[union-attr,arg-type]


def text(name: str) -> str:
    """A file of the tree."""
    return (REPOSITORY / name).read_text("utf-8")


def variables(source: str) -> set[str]:
    """The TIDEGATE_* names in a text; one that ends in an underscore is the start of a template's."""
    return {name for name in re.findall(r"\bTIDEGATE_[A-Z_]+\b", source) if not name.endswith("_")}


@pytest.mark.parametrize(
    "name",
    ["Dockerfile", "helm/templates/brokers.yaml", "kubernetes/archive.yaml"],
)
def test_every_variable_is_a_setting(name: str) -> None:
    named = variables(text(name))

    assert named, "a deployment that sets nothing"
    assert named <= KNOWN


def spark_names(pattern: bytes) -> set[str]:
    """What Spark's classes for Kubernetes know of a kind of name."""
    (jar,) = JARS.glob("spark-kubernetes_*.jar")
    with zipfile.ZipFile(jar) as classes:
        found = [re.findall(pattern, classes.read(name)) for name in classes.namelist() if name.endswith(".class")]
    return {name.decode() for names in found for name in names}


def test_entry_point_speaks_as_spark_does() -> None:
    script = text("kubernetes/entrypoint.sh")
    variables = set(re.findall(r"\$\{?(SPARK_[A-Z_]+)", script)) - {"SPARK_HOME", "SPARK_JAVA_OPT_"}

    assert {"SPARK_DRIVER_URL", "SPARK_EXECUTOR_ID", "SPARK_RESOURCE_PROFILE_ID"} <= variables
    assert variables | {"SPARK_JAVA_OPT_"} <= spark_names(rb"SPARK_[A-Z_]+")
    assert set(re.findall(r"(--[a-zA-Z-]+) \"\$SPARK_", script)) <= spark_names(rb"--[a-zA-Z-]+")


def test_documented_settings_of_spark_on_kubernetes_exist() -> None:
    named = set(re.findall(r"spark\.kubernetes\.[a-zA-Z.]+", text("docs/pipeline.md")))
    known = spark_names(rb"spark\.kubernetes\.[a-zA-Z.]+")

    assert len(named) > 8
    assert {name for name in named if not any(name.startswith(one) for one in known)} == set()


def test_manifests_of_the_pipeline_fit_together() -> None:
    (application_of_spark,) = yaml.safe_load_all(text("kubernetes/archive.yaml"))
    made = {(one["kind"], one["metadata"]["name"]) for one in yaml.safe_load_all(text("kubernetes/rbac.yaml"))}
    spec = application_of_spark["spec"]
    (volume,) = spec["volumes"]
    (redis_url, *_) = spec["driver"]["env"]

    assert ("ServiceAccount", spec["driver"]["serviceAccount"]) in made
    assert ("PersistentVolumeClaim", volume["persistentVolumeClaim"]["claimName"]) in made
    assert ("Secret", redis_url["valueFrom"]["secretKeyRef"]["name"]) in made
    assert spec["executor"]["env"] == spec["driver"]["env"]
    assert spec["arguments"][0] == "pipeline"
    assert spec["arguments"][1] in typer.main.get_command(application()).commands  # type: ignore[attr-defined]
    assert re.search(rf"pyspark\S*=={spec['sparkVersion'].rpartition('.')[0]}\.", text("pipeline/pyproject.toml"))
    assert spec["mainApplicationFile"] == "local:///opt/tidegate/tidegate-command.py"
    assert "ln -s bin/tidegate /opt/tidegate/tidegate-command.py" in text("Dockerfile")


def test_image_runs_what_the_tree_has() -> None:
    dockerfile, ignored = text("Dockerfile"), text(".dockerignore")
    copied = [
        word for line in re.findall(r"^COPY (?!--from)(.+) \S+$", dockerfile, re.MULTILINE) for word in line.split()
    ]

    assert copied
    assert all((REPOSITORY / name).exists() for name in copied)
    assert {f"!{name}" for name in copied} <= set(ignored.splitlines())
    package = tomllib.loads(text("pyproject.toml"))
    built_of = {name.split("/")[0] for name in package["tool"]["hatch"]["build"]["targets"]["wheel"]["only-include"]}
    assert {*built_of, package["project"]["readme"], *package["project"]["license-files"]} <= set(copied)
    assert re.search(r"^USER 10001", dockerfile, re.MULTILINE)
    assert "/health/ready" in dockerfile


def test_chart_and_package_have_one_version() -> None:
    (version,) = re.findall(r'^__version__ = "(.+)"$', text("broker/tidegate/__init__.py"), re.MULTILINE)

    assert f'appVersion: "{version}"' in text("helm/Chart.yaml")
    assert f'"tidegate=={version}"' in text("pipeline/pyproject.toml")


def test_schema_covers_the_values() -> None:
    schema = json.loads(text("helm/values.schema.json"))

    documented = set(re.findall(r"^([a-zA-Z]+):", text("helm/values.yaml"), re.MULTILINE))

    assert documented == set(schema["properties"]) - {"global"}


@pytest.mark.parametrize("name", ["helm/values.yaml", "helm/Chart.yaml"])
def test_yaml_is_yaml(name: str) -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")

    assert isinstance(yaml.safe_load(text(name)), dict)
