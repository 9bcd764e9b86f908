"""What was seen of a cluster, as the judges take it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.admin.doctor.probe import Probe


@dataclass(frozen=True, slots=True)
class Advertised:
    """One address that clients of a listener are told for a node; `listener` is "" where they are told it here."""

    node_id: int
    address: str
    listener: str = ""

    @property
    def advertised_here(self) -> bool:
        """Whether a client of the bootstrap addresses is sent there."""
        return not self.listener


@dataclass(frozen=True, slots=True)
class Lease:
    """A broker as its lease in Redis describes it."""

    node_id: int
    state: str
    age_ms: int
    listeners: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Observations:
    """All that was looked at. `tls` is how the user would connect."""

    tls: bool
    bootstrap: Sequence[Probe]
    advertised: Sequence[Advertised] = ()
    probes: Mapping[str, Probe] = field(default_factory=dict)
    leases: Sequence[Lease] = ()
    now_s: float = 0.0

    @property
    def cluster_id(self) -> str | None:
        """That of the first answer: the others are compared with it."""
        return next((one.cluster_id for observed in self.bootstrap for one in observed.answers), None)

    def every(self) -> Iterator[Probe]:
        """Each address once."""
        yield from {one.address: one for one in [*self.bootstrap, *self.probes.values()]}.values()
