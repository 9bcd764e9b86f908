"""Addresses that commands connect to (brokers, admin HTTP, Redis) and their options, the same for every command.

A command declares what it needs by its parameter types, and `to_places` adds the options. `named_cluster` selects
addresses that no option gives, consistently for all parameters of a command.
"""

from __future__ import annotations

import functools
import inspect
import os
import shlex
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from tidegate.cli.failures import CommandFailed, reporting
from tidegate.cli.named_cluster import VARIABLES, NamedCluster

if TYPE_CHECKING:
    from tidegate.settings import Settings


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS client configuration: the trusted CAs (the system's without `ca_file`) and the client certificate."""

    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    verify: bool = True

    def context(self) -> ssl.SSLContext:
        """Raises CommandFailed."""
        try:
            made = ssl.create_default_context(cafile=self.ca_file)
            if self.certificate_file is not None:
                made.load_cert_chain(self.certificate_file, self.key_file)
        except OSError as error:  # includes SSLError
            files = ", ".join(str(path) for path in (self.ca_file, self.certificate_file, self.key_file) if path)
            raise CommandFailed(f"{files}: {error.strerror or error}") from None
        if not self.verify:
            made.check_hostname = False
            made.verify_mode = ssl.CERT_NONE
        return made


@dataclass(frozen=True, slots=True)
class Brokers:
    """Kafka listeners, `host:port,...`, plaintext or TLS."""

    bootstrap: str
    tls: Tls | None = None
    given: bool = True
    """Whether the user named them."""
    missing: str = ""
    """Why there is no address to connect to."""

    def as_typed(self) -> str:
        """Command-line options that select the same brokers, independent of the environment and running clusters."""
        words = ["--bootstrap", self.bootstrap]
        if self.tls:
            files = ("ca", self.tls.ca_file), ("cert", self.tls.certificate_file), ("key", self.tls.key_file)
            words += ["--tls", *(word for name, path in files if path for word in (f"--{name}-file", str(path)))]
            words += [] if self.tls.verify else ["--no-verify"]
        return "".join(f" {shlex.quote(word)}" for word in words)


@dataclass(frozen=True, slots=True)
class AdminHttp:
    """The admin HTTP of brokers, `host:port,...`: the first that answers is used."""

    addresses: str
    token: str | None = None
    given: bool = True
    """Whether the user named it."""
    missing: str = ""
    """Why there is no address to connect to."""


@dataclass(frozen=True, slots=True)
class RedisServer:
    """The brokers' Redis, with a broker's connection settings; `given` unless it is the default address."""

    settings: Settings
    given: bool = True
    missing: str = ""
    """Why there is no address to connect to."""

    @property
    def url(self) -> str:
        """The URL, which may contain a password."""
        return self.settings.redis_url

    @property
    def shown(self) -> str:
        """The URL without its password."""
        from tidegate.store.addresses import without_password

        return without_password(self.url)

    @property
    def prefix(self) -> str:
        """The prefix of all keys."""
        return self.settings.key_prefix


def _brokers(
    cluster: NamedCluster,
    bootstrap: Annotated[
        str | None,
        typer.Option(
            envvar=f"{VARIABLES}BOOTSTRAP",
            help="Brokers, host:port,...  [default: a running `tidegate dev`, else 127.0.0.1:9092]",
        ),
    ] = None,
    tls: Annotated[bool, typer.Option("--tls", envvar=f"{VARIABLES}TLS", help="Connect with TLS.")] = False,
    ca_file: Annotated[
        Path | None,
        typer.Option(envvar=f"{VARIABLES}CA_FILE", help="Trusted authorities (PEM).  [default: the system's]"),
    ] = None,
    cert_file: Annotated[
        Path | None, typer.Option(envvar=f"{VARIABLES}CERT_FILE", help="Client certificate (PEM), for mTLS.")
    ] = None,
    key_file: Annotated[
        Path | None,
        typer.Option(
            envvar=f"{VARIABLES}KEY_FILE", help="Key of the client certificate, if CERT_FILE does not contain it."
        ),
    ] = None,
    no_verify: Annotated[bool, typer.Option("--no-verify", help="Accept any certificate; only for tests.")] = False,
) -> Brokers:
    wanted = tls or no_verify or ca_file is not None or cert_file is not None
    how = Tls(ca_file, cert_file, key_file, not no_verify) if wanted else None
    return Brokers(cluster.address("bootstrap"), how, "bootstrap" in cluster.named, cluster.missing("bootstrap"))


def _admin(
    cluster: NamedCluster,
    admin: Annotated[
        str | None,
        typer.Option(
            envvar=f"{VARIABLES}ADMIN",
            help="Admin HTTP of brokers, host:port,...  [default: a running `tidegate dev`, else 127.0.0.1:8080]",
        ),
    ] = None,
    token: Annotated[
        str | None, typer.Option(envvar=f"{VARIABLES}TOKEN", help="Token for the admin HTTP, if it requires one.")
    ] = None,
) -> AdminHttp:
    return AdminHttp(cluster.address("admin"), token, "admin" in cluster.named, cluster.missing("admin"))


def _redis(
    cluster: NamedCluster,
    redis_url: Annotated[
        str | None,
        typer.Option(help="URL of Redis.  [default: TIDEGATE_REDIS_URL, else that of a running `tidegate dev`]"),
    ] = None,
    key_prefix: Annotated[
        str | None, typer.Option(help="Prefix of the cluster's keys.  [default: TIDEGATE_KEY_PREFIX, else tidegate]")
    ] = None,
) -> RedisServer:
    from tidegate.cli import options

    url = redis_url if "redis_url" in cluster.named or cluster.dev is None else cluster.dev.redis_url
    missing = cluster.missing("redis_url")
    settings = options.load({"redis_url": url, "key_prefix": key_prefix})
    return RedisServer(settings, not missing and "redis_url" in settings.model_fields_set, missing)


def brokers_of_environment() -> Brokers:
    """The brokers of a command without options; for shell completion, which gets no options."""
    files = {name: os.environ.get(f"{VARIABLES}{name.upper()}_FILE") for name in ("ca", "cert", "key")}
    ca_file, cert_file, key_file = (Path(path) if path else None for path in files.values())
    wanted = os.environ.get(f"{VARIABLES}TLS", "").lower() in ("1", "true", "yes", "on")
    return _brokers(NamedCluster.of({}), None, wanted, ca_file, cert_file, key_file)


PLACES: Final[dict[Any, Callable[..., Any]]] = {Brokers: _brokers, AdminHttp: _admin, RedisServer: _redis}
"""Parameter type -> factory from the named cluster and the type's own options."""


def to_places(command: Callable[..., None]) -> Callable[..., None]:
    """Replaces a command's address parameters by their options; failures print one line and exit with code 2."""
    places, own, added = {}, [], []
    for parameter in inspect.signature(command, eval_str=True).parameters.values():
        make = PLACES.get(parameter.annotation)
        if make is None:
            own.append(parameter)
            continue
        _, *options = inspect.signature(make, eval_str=True).parameters.values()
        places[parameter.name] = make, [one.name for one in options]
        added += [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in options]

    @functools.wraps(command)
    def found(**given: Any) -> None:
        def work() -> None:
            cluster = NamedCluster.of(given)
            made = {
                name: make(cluster, **{one: given.pop(one) for one in taken}) for name, (make, taken) in places.items()
            }
            command(**given, **made)

        reporting(work)

    keyword_only = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
    found.__signature__ = inspect.Signature([*keyword_only, *added])  # type: ignore[attr-defined]
    found.__annotations__ = {one.name: one.annotation for one in [*own, *added]}
    return found
