"""Every way to deploy in ci/ against Kubernetes' schemas, of three versions; and what no schema of theirs knows.

ServiceMonitor, PodMonitor, PrometheusRule (monitoring.coreos.com), ScaledObject (keda.sh) and Certificate
(cert-manager.io) are custom: `_CUSTOM` has what their definitions require, by hand.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, Final

import jsonschema
import kubernetes_validate
import pytest

from tests.chart.rendering import CASES, CHART, Document, helm, pods, render

VERSIONS: Final = ("1.27", "1.32", "1.37")

_TEXT: Final = {"type": "string", "minLength": 1}
_SELECTOR: Final = {"type": "object", "required": ["matchLabels"]}
_ENDPOINTS: Final = {
    "type": "array",
    "minItems": 1,
    "items": {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "port": _TEXT,
            "path": _TEXT,
            "interval": {"pattern": "^([0-9]+(ms|s|m|h))+$"},
            "authorization": {
                "required": ["credentials"],
                "properties": {"credentials": {"required": ["name", "key"]}},
            },
        },
    },
}


def _spec(required: dict[str, Any], **optional: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "additionalProperties": False,
        "required": [*required],
        "properties": {**required, **optional},
    }


_RULE: Final = {"type": "object", "required": ["expr"], "properties": {"expr": {"type": ["string", "integer"]}}}
_GROUP: Final = _spec({"name": _TEXT, "rules": {"type": "array", "items": _RULE}}, interval=_TEXT)
_CUSTOM: Final = {
    "ServiceMonitor": _spec({"selector": _SELECTOR, "endpoints": _ENDPOINTS}, jobLabel=_TEXT),
    "PodMonitor": _spec({"selector": _SELECTOR, "podMetricsEndpoints": _ENDPOINTS}, jobLabel=_TEXT),
    "PrometheusRule": _spec({"groups": {"type": "array", "minItems": 1, "items": _GROUP}}),
    "ScaledObject": _spec(
        {
            "scaleTargetRef": _spec({"apiVersion": _TEXT, "kind": _TEXT, "name": _TEXT}),
            "triggers": {"type": "array", "minItems": 1, "items": {"required": ["type", "metadata"]}},
        },
        minReplicaCount={"type": "integer"},
        maxReplicaCount={"type": "integer"},
        pollingInterval={"type": "integer"},
        advanced=_spec({"horizontalPodAutoscalerConfig": _spec({"behavior": {"type": "object"}})}),
    ),
    "Certificate": _spec(
        {
            "secretName": _TEXT,
            "issuerRef": _spec({"name": _TEXT, "kind": _TEXT, "group": _TEXT}),
            "dnsNames": {"type": "array", "minItems": 1, "uniqueItems": True, "items": _TEXT},
        },
        duration=_TEXT,
        privateKey=_spec({"rotationPolicy": {"enum": ["Always", "Never"]}}),
        usages={"type": "array"},
    ),
}


@cache
def _valid(document: str, version: str) -> None:
    """Raises where it is not; most documents are the same in many cases."""
    kubernetes_validate.validate(json.loads(document), version, strict=True)


def named(path: Path) -> str:
    return path.stem


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_document_is_valid(case: Path, version: str) -> None:
    for document in render(str(case), version=f"{version}.0"):
        if document["kind"] in _CUSTOM:
            jsonschema.validate(document["spec"], _CUSTOM[document["kind"]])
            assert document["metadata"]["labels"]
        else:
            _valid(json.dumps(document, sort_keys=True), version)


def test_validator_refuses() -> None:
    (broken, *_) = [one for one in render(str(CHART / "ci" / "direct.yaml")) if one["kind"] == "Deployment"]
    broken["spec"]["replicsa"] = 3

    with pytest.raises(kubernetes_validate.ValidationError, match="replicsa"):
        _valid(json.dumps(broken), VERSIONS[0])


@pytest.mark.parametrize("case", CASES, ids=named)
def test_lint_reports_nothing(case: Path) -> None:
    done = helm("lint", str(CHART), "--strict", "--quiet", "-f", str(case), "--kube-version", "1.32.0")

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("case", CASES, ids=named)
def test_every_pod_is_restricted(case: Path) -> None:
    """https://kubernetes.io/docs/concepts/security/pod-security-standards/#restricted"""
    found = pods(render(str(case)))

    assert found
    for pod in found:
        security = pod["securityContext"]
        assert security["runAsNonRoot"] is True
        assert security["runAsUser"] > 0
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert not {"hostNetwork", "hostPID", "hostIPC"} & set(pod)
        assert {kind for volume in pod.get("volumes", ()) for kind in set(volume) - {"name"}} <= {
            "emptyDir", "secret", "configMap", "persistentVolumeClaim", "projected"
        }  # fmt: skip
        for container in pod["containers"]:
            own = container["securityContext"]
            assert own["allowPrivilegeEscalation"] is False
            assert own["capabilities"] == {"drop": ["ALL"]}
            assert own["readOnlyRootFilesystem"] is True
            assert container["resources"]["limits"]["memory"]


def test_package_renders_the_same(tmp_path: Path) -> None:
    packed = helm("package", str(CHART), "--destination", str(tmp_path))
    assert packed.returncode == 0, packed.stderr
    (package,) = tmp_path.glob("tidegate-*.tgz")

    def key(document: Document) -> str:
        return json.dumps(document, sort_keys=True)

    for case in CASES:
        assert list(map(key, render(str(case), chart=package))) == list(map(key, render(str(case))))
