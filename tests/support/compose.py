"""compose.yaml as Docker Compose reads it, by Compose's own binary."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

REPOSITORY: Final = Path(__file__).resolve().parents[2]
BINARY: Final = Path(sys.executable).parent / "docker-compose"
PROFILES: Final = ("observability", "demo", "lake", "tls")
SECURE: Final = ("compose.yaml", "compose.secure.yaml")

Services = Mapping[str, Any]


def config(*profiles: str, files: Sequence[str] = SECURE[:1], **environment: str) -> str:
    """What `docker compose config` prints with these profiles, without an .env file, as JSON. Raises RuntimeError."""
    chosen = [word for file in files for word in ("--file", file)]
    chosen += [word for profile in profiles for word in ("--profile", profile)]
    command = [str(BINARY), "--env-file", os.devnull, *chosen, "config", "--format", "json"]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode or done.stderr:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr}")
    return done.stdout


@cache
def services() -> Services:
    """Every service of every profile."""
    found: Services = json.loads(config(*PROFILES))["services"]
    return found


@cache
def secure_services() -> Services:
    """The services of compose.secure.yaml without profiles."""
    found: Services = json.loads(config(files=SECURE))["services"]
    return found


def brokers(of: Services | None = None) -> dict[str, Any]:
    """The services that run a broker."""
    return {name: one for name, one in (of or services()).items() if name.startswith("broker-")}


def listeners(broker: Mapping[str, Any], setting: str = "TIDEGATE_LISTENERS") -> dict[str, tuple[str, int]]:
    """Listener -> host, port, as a broker's environment has it."""
    found = {}
    for one in broker["environment"][setting].split(","):
        name, _, address = one.partition("://")
        host, _, port = address.rpartition(":")
        found[name] = host, int(port)
    return found


def published(service: Mapping[str, Any]) -> dict[int, tuple[str, int]]:
    """Port in the container -> address and port on the machine."""
    return {one["target"]: (one["host_ip"], int(one["published"])) for one in service.get("ports", ())}
