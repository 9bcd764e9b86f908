"""The commands that `tidegate dev` suggests once it is ready; they use tools that are installed."""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from pathlib import Path

from tidegate.cli.dev.children import BrokerChild
from tidegate.cli.dev.running import DevCluster

_PRODUCE = """{python} -c "from kafka import KafkaProducer as P; p = P(bootstrap_servers='{first}'); \
print(p.send('demo', b'hello').get(10))\""""
_CONSUME = """{python} -c "from kafka import KafkaConsumer as C; \
c = C('demo', bootstrap_servers='{first}', group_id='demo', auto_offset_reset='earliest', consumer_timeout_ms=8000); \
[print(r.topic, r.partition, r.offset, r.value) for r in c]; c.close()\""""


def next_steps(cluster: DevCluster, logs: Path, data: Path | None, seconds: float) -> str:
    """Several lines: the addresses, then a produce, a consume and a redis command."""
    first = cluster.bootstrap.split(",")[0]
    tidegate = _as_typed(Path(sys.executable).with_name("tidegate"), "tidegate")
    lines = [
        ("", f"{cluster.bootstrap.count(',') + 1} brokers in {seconds:.1f} s; Ctrl-C stops them"),
        ("console", f"{cluster.admin[0]}/console/"),
        ("admin", f"{cluster.admin[0]}/health/ready and /metrics"),
        ("redis", f"{cluster.redis_url}, " + (f"kept in {data}" if data else "in memory: gone when this ends")),
        ("logs", str(logs)),
        ("", ""),
        ("", "now, in another terminal:"),
    ]
    if importlib.util.find_spec("kafka") is not None:
        python = _as_typed(Path(sys.executable), "python")
        lines.append(("produce", _PRODUCE.format(python=python, first=first)))
        lines.append(("consume", _CONSUME.format(python=python, first=first)))
    kcat = "" if shutil.which("kcat") else "   # once kcat is installed"
    lines.append(("produce", f"echo hello | kcat -b {first} -t demo -P{kcat}"))
    lines.append(("consume", f"kcat -b {first} -X auto.offset.reset=earliest -G demo demo{kcat}"))
    lines.append(("explain", f"{tidegate} group explain demo"))
    lines.append(("look", f"{tidegate} redis HGETALL 'tidegate:{{cluster}}:topics'"))
    return "\n".join(f"  {name:<8} {text}".rstrip() for name, text in lines)


def serve_again(child: BrokerChild, redis_url: str) -> str:
    """The command line that replaces a broker that has exited."""
    tidegate = _as_typed(Path(sys.executable).with_name("tidegate"), "tidegate")
    return f"{tidegate} serve --redis-url {redis_url} --port {child.port} --admin-port {child.admin_port}"


def _as_typed(path: Path, name: str) -> str:
    """The command for a program of this environment: its name if it is on the PATH, otherwise a short path."""
    on_path = shutil.which(name)
    if on_path is not None and Path(on_path).absolute() == path.absolute():
        return name
    with_cwd = os.path.relpath(path)
    return with_cwd if not with_cwd.startswith("..") else str(path)
