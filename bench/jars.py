"""Apache Kafka's jars, for its server as a peer and for its Java clients: fetched by Maven, kept outside the tree."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

KAFKA_VERSION: Final = "4.1.0"
_ARTIFACTS: Final = (
    ("org.apache.kafka", "kafka_2.13", KAFKA_VERSION),
    ("org.apache.kafka", "kafka-tools", KAFKA_VERSION),
    ("org.slf4j", "slf4j-simple", "1.7.36"),
)


class PeerUnavailable(Exception):
    """A peer cannot be had on this machine; the message says why, in one line."""


def cache_directory() -> Path:
    """Where the jars are kept: TIDEGATE_JARS, or the user's cache."""
    override = os.environ.get("TIDEGATE_JARS")
    base = Path(override) if override else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidegate"
    return base / f"kafka-{KAFKA_VERSION}"


def classpath(timeout_s: float = 600.0) -> str:
    """Java's class path with Kafka's server, tools and clients. Raises PeerUnavailable."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise PeerUnavailable(f"{program} is not on the PATH")
    target = cache_directory()
    if not (target / "complete").exists():
        _download(target, timeout_s)
    return f"{target}/*"


def main() -> None:
    """Fetch the jars within four minutes; exits with the reason where they cannot be had."""
    try:
        print(classpath(timeout_s=240))
    except PeerUnavailable as unavailable:
        sys.exit(str(unavailable))


def _download(target: Path, timeout_s: float) -> None:
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version></dependency>"
        for group, artifact, version in _ARTIFACTS
    )
    with tempfile.TemporaryDirectory() as project:
        Path(project, "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>'
            "<groupId>tidegate</groupId><artifactId>jars</artifactId><version>1</version>"
            f"<dependencies>{dependencies}</dependencies></project>"
        )
        command = ["mvn", "-q", "-B", "dependency:copy-dependencies", f"-DoutputDirectory={target}"]
        try:
            done = subprocess.run(command, cwd=project, capture_output=True, text=True, timeout=timeout_s, check=False)
        except subprocess.TimeoutExpired:
            raise PeerUnavailable("Maven did not finish in time") from None
    if done.returncode != 0:
        reason = next((line for line in done.stdout.splitlines() if "ERROR" in line), "Maven failed")
        raise PeerUnavailable(f"Kafka's jars could not be fetched: {reason[:200]}")
    (target / "complete").touch()


if __name__ == "__main__":
    main()
