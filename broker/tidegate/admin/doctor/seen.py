"""What was seen of a cluster, as the judges take it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tidegate.admin.doctor.asking import Look


@dataclass(frozen=True, slots=True)
class Advertised:
    """One address that clients of a listener are told for a node; `listener` is "" where they are told it here."""

    node_id: int
    address: str
    listener: str = ""

    @property
    def told_here(self) -> bool:
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
class Seen:
    """All that was looked at. `tls` is how the user would connect."""

    tls: bool
    bootstrap: Sequence[Look]
    advertised: Sequence[Advertised] = ()
    looks: Mapping[str, Look] = field(default_factory=dict)
    leases: Sequence[Lease] = ()
    now_s: float = 0.0

    @property
    def cluster_id(self) -> str | None:
        """That of the first answer: the others are compared with it."""
        return next((one.cluster_id for seen in self.bootstrap for one in seen.answers), None)

    def every(self) -> Iterator[Look]:
        """Each address once."""
        yield from {one.address: one for one in [*self.bootstrap, *self.looks.values()]}.values()
