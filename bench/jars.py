"""Jars from Maven Central that are measured and compared with: Apache Kafka, Spark's Kafka connector.

Fetched by Maven, kept outside the tree.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

KAFKA_VERSION: Final = "4.1.0"
"""Of the clients and tools that are tested, and of the peer in tests."""
NEWEST_KAFKA_VERSION: Final = "4.4.0"
"""Of the peer that `python -m bench all` compares with."""
CONNECTOR_VERSION: Final = "4.2.0"
"""The newest Kafka connector that there is for Spark 4; it runs in Spark 4.3."""


@dataclass(frozen=True, slots=True)
class JarSet:
    """Artifacts (group, name, version) in a folder of their own, with what they depend on unless `alone`.

    `bundle`: the classifier of tar.gz files that are unpacked there, instead of jars.
    """

    folder: str
    artifacts: tuple[tuple[str, str, str], ...]
    alone: bool = False
    bundle: str = ""


_LOGGER: Final = ("org.slf4j", "slf4j-simple", "1.7.36")
SHARE_CLIENTS_VERSION: Final = "4.4.0"
SHARE_CLIENTS: Final = JarSet(
    f"kafka-clients-{SHARE_CLIENTS_VERSION}",
    (("org.apache.kafka", "kafka-clients", SHARE_CLIENTS_VERSION), _LOGGER),
)
STREAMS_VERSION: Final = "4.3.1"
STREAMS: Final = JarSet(
    f"kafka-streams-{STREAMS_VERSION}",
    (("org.apache.kafka", "kafka-streams", STREAMS_VERSION), _LOGGER),
)
CONNECT: Final = JarSet(
    f"kafka-connect-{STREAMS_VERSION}",
    (
        ("org.apache.kafka", "connect-runtime", STREAMS_VERSION),
        ("org.apache.kafka", "connect-file", STREAMS_VERSION),
        _LOGGER,
    ),
)
REGISTRY_VERSION: Final = "2.6.13.Final"
"""The newest Apicurio Registry that runs on Java 17: the schema registry that is on Maven Central."""
REGISTRY: Final = JarSet(
    f"apicurio-registry-{REGISTRY_VERSION}",
    (("io.apicurio", "apicurio-registry-app", REGISTRY_VERSION),),
    alone=True,
    bundle="all",
)
CONNECTOR: Final = JarSet(
    f"spark-kafka-{CONNECTOR_VERSION}",
    (
        ("org.apache.spark", "spark-sql-kafka-0-10_2.13", CONNECTOR_VERSION),
        ("org.apache.spark", "spark-token-provider-kafka-0-10_2.13", "4.1.0-preview1"),  # newer ones are not everywhere
        ("org.apache.kafka", "kafka-clients", "3.9.2"),
        ("org.apache.commons", "commons-pool2", "2.13.1"),
        ("org.scala-lang.modules", "scala-parallel-collections_2.13", "1.2.0"),
    ),
    alone=True,  # Spark brings the rest
)


class PeerUnavailable(Exception):
    """A peer cannot be had on this machine; the message says why, in one line."""


def cache_directory() -> Path:
    """Where the jars are kept: TIDEGATE_JARS, or the user's cache."""
    override = os.environ.get("TIDEGATE_JARS")
    return Path(override) if override else Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "tidegate"


def classpath(version: str = KAFKA_VERSION, timeout_s: float = 600.0) -> str:
    """Java's class path with Kafka's server and clients, and the tools of KAFKA_VERSION. Raises PeerUnavailable."""
    names = ["kafka_2.13"] + ["kafka-tools"] * (version == KAFKA_VERSION)  # newer ones have no artifact for tools
    artifacts = (*(("org.apache.kafka", name, version) for name in names), _LOGGER)
    return f"{fetched(JarSet(f'kafka-{version}', artifacts), timeout_s)}/*"


def share_clients(timeout_s: float = 300.0) -> str:
    """Java's class path with the clients whose share consumers are tested. Raises PeerUnavailable."""
    return f"{fetched(SHARE_CLIENTS, timeout_s)}/*"


def streams_jars(timeout_s: float = 300.0) -> str:
    """Java's class path with Kafka Streams. Raises PeerUnavailable."""
    return f"{fetched(STREAMS, timeout_s)}/*"


def connect_jars(timeout_s: float = 300.0) -> str:
    """Java's class path with a Kafka Connect worker and its file connectors. Raises PeerUnavailable."""
    return f"{fetched(CONNECT, timeout_s)}/*"


def connector_jars(timeout_s: float = 300.0) -> str:
    """Spark's Kafka connector, as `spark.jars` takes it. Raises PeerUnavailable."""
    return ",".join(sorted(map(str, fetched(CONNECTOR, timeout_s).glob("*.jar"))))


def registry_jar(timeout_s: float = 300.0) -> Path:
    """Apicurio Registry as `java -jar` takes it; keeps schemas in memory. Raises PeerUnavailable."""
    return fetched(REGISTRY, timeout_s) / f"apicurio-registry-app-{REGISTRY_VERSION}-runner.jar"


def fetched(jars: JarSet, timeout_s: float) -> Path:
    """The folder of a set, filled. Raises PeerUnavailable."""
    for program in ("java", "mvn"):
        if shutil.which(program) is None:
            raise PeerUnavailable(f"{program} is not on the PATH")
    target = cache_directory() / jars.folder
    if not (target / "complete").exists():
        _download(jars, target, timeout_s)
    return target


def main() -> None:
    """Fetch Kafka's jars within four minutes; exits with the reason where they cannot be had."""
    try:
        print(classpath(timeout_s=240))
    except PeerUnavailable as unavailable:
        sys.exit(str(unavailable))


def _download(jars: JarSet, target: Path, timeout_s: float) -> None:
    everything = "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
    kind = f"<type>tar.gz</type><classifier>{jars.bundle}</classifier>" if jars.bundle else ""
    dependencies = "".join(
        f"<dependency><groupId>{group}</groupId><artifactId>{artifact}</artifactId><version>{version}</version>{kind}"
        f"{everything if jars.alone else ''}</dependency>"
        for group, artifact, version in jars.artifacts
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
        raise PeerUnavailable(f"the jars of {jars.folder} could not be fetched: {reason[:200]}")
    for bundle in target.glob("*.tar.gz"):
        shutil.unpack_archive(bundle, target, filter="data")
        bundle.unlink()
    (target / "complete").touch()


if __name__ == "__main__":
    main()
