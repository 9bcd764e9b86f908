"""The probes' results on a cluster, the input of the checks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.cli.doctor.probe import Probe


@dataclass(frozen=True, slots=True)
class Advertised:
    """A node's advertised address on one listener; `listener` is "" when the bootstrap addresses advertise it."""

    node_id: int
    address: str
    listener: str = ""

    @property
    def advertised_here(self) -> bool:
        """Whether clients of the bootstrap addresses are sent there."""
        return not self.listener


@dataclass(frozen=True, slots=True)
class Lease:
    """A broker as described by its lease in Redis."""

    node_id: int
    state: str
    age_ms: int
    listeners: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Observations:
    """All results. `tls` is the user's own TLS configuration."""

    tls: bool
    bootstrap: Sequence[Probe]
    advertised: Sequence[Advertised] = ()
    probes: Mapping[str, Probe] = field(default_factory=dict)
    leases: Sequence[Lease] = ()
    now_s: float = 0.0

    @property
    def cluster_id(self) -> str | None:
        """The cluster id of the first answer, with which the others are compared."""
        return next((one.cluster_id for observed in self.bootstrap for one in observed.answers), None)

    def every(self) -> Iterator[Probe]:
        """All addresses, without duplicates."""
        yield from {one.address: one for one in [*self.bootstrap, *self.probes.values()]}.values()
