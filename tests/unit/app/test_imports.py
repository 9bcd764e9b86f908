"""What a broker imports as it starts: each module delays its first answer and stays in memory."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

from tests.support.valkey import ValkeyServer
from tidegate.apis import registry

SERVE: Final = """
import os, sys
from tidegate import __main__, startup

startup.prepare()
from tidegate.server.ports import Ports

async def report(ports, server):
    {more}
    print(*sorted(name for name, module in sys.modules.items() if module is not None), flush=True)
    os._exit(0)

Ports.open = report
sys.argv = ["tidegate", "serve", "--port", "0", "--admin-port", "0", "--redis-url", "{redis_url}"]
__main__.main()
"""
"""A broker that reports its modules in place of opening its ports; `more` is what it imports beforehand."""
FOREIGN_MODULES_MAX: Final = 420
"""Of other packages and Python itself (3.11; 90 of them before its first line): about 1 ms and 50 kB each."""
ADMIN_FOREIGN_MODULES_MAX: Final = 510
SCHEMAS_PER_API_MAX: Final = 4
"""Modules of kio for one API: the newest request and response, and what holds them."""


def imported(valkey: ValkeyServer, more: str = "pass") -> set[str]:
    """The modules of a broker whose next step is to open its ports."""
    code = SERVE.format(more=more, redis_url=valkey.url)
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return set(found.stdout.split())


def schemas(modules: set[str]) -> set[str]:
    return {name for name in modules if name.startswith("kio.schema.")}


def foreign(modules: set[str]) -> set[str]:
    return {name for name in modules - schemas(modules) if not name.startswith("tidegate")}


def packages(modules: set[str]) -> set[str]:
    return {name.partition(".")[0] for name in modules}


def test_imports_before_the_port_is_open_nothing_that_can_wait(valkey: ValkeyServer) -> None:
    loaded = imported(valkey)

    # redis-py (sentinels, TLS) takes opentelemetry and cryptography with it
    assert "tidegate.apis.produce" in loaded
    assert not packages(loaded - {"aiohttp"}) & {  # its name alone: `startup.prepare`
        "aiohttp", "attr", "click", "cramjam", "cryptography", "greenlet", "hypothesis", "jinja2", "jwt",
        "opentelemetry", "pyarrow", "pygments", "pytest", "redis", "rich", "textual", "typer", "yarl",
    }  # fmt: skip
    assert not {name for name in loaded if name.startswith(("tidegate.http.", "tidegate.cli."))} - {
        "tidegate.cli.options", "tidegate.http.admin_port", "tidegate.http.headers", "tidegate.http.health",
        "tidegate.http.probes", "tidegate.http.secrets",
    }  # fmt: skip
    assert len(foreign(loaded)) <= FOREIGN_MODULES_MAX
    assert len(schemas(loaded)) <= SCHEMAS_PER_API_MAX * len(registry.load_all())


def test_imports_of_the_admin_http_leave_out_the_command_line(valkey: ValkeyServer) -> None:
    loaded = imported(valkey, "import tidegate.http.routes")

    assert "aiohttp.web" in loaded
    assert not loaded & {"aiohttp.client", "aiohttp.connector", "aiohttp.tracing"}  # 4 MB
    assert "aiohappyeyeballs" not in loaded
    assert not packages(loaded) & {"click", "cryptography", "hypothesis", "jinja2", "redis", "rich", "textual", "typer"}
    assert len(foreign(loaded)) <= ADMIN_FOREIGN_MODULES_MAX


def test_import_of_the_http_client_is_put_off_until_it_is_used() -> None:
    code = """
import sys
from tidegate import startup
startup.prepare()
from aiohttp import hdrs, web
import aiohttp
assert "aiohttp.client" not in sys.modules
assert aiohttp.__version__ and not hasattr(aiohttp, "__nothing__")
assert aiohttp.ClientSession is sys.modules["aiohttp.client"].ClientSession
assert issubclass(aiohttp.ClientError, Exception) and aiohttp.hdrs is hdrs and not hasattr(aiohttp, "nothing")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_imports_of_dev_are_the_standard_library() -> None:
    code = """
import sys
before = set(sys.modules)
import tidegate.__main__, tidegate.cli.dev.command
print(*set(sys.modules) - before)
"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    loaded = set(found.stdout.split())

    assert packages(loaded) - sys.stdlib_module_names == {"tidegate"}
    assert not packages(loaded) & {"asyncio", "email", "http", "inspect", "ssl"}  # dataclasses import inspect: 1.2 MB
