"""What a scraper reads, by name and labels."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

OPENMETRICS = "application/openmetrics-text; version=1.0.0"

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Scrape:
    """The samples of one scrape; a sample that occurs twice is refused, as Prometheus would."""

    samples: Mapping[tuple[str, Labels], float]

    @classmethod
    def of(cls, text: str, openmetrics: bool = False) -> Scrape:
        """The samples of a text. Raises ValueError where it is malformed, AssertionError where it repeats itself."""
        samples: dict[tuple[str, Labels], float] = {}
        families = list((parse_openmetrics if openmetrics else parse_text)(text))
        for family in families:
            for sample in family.samples:
                key = sample.name, tuple(sorted(sample.labels.items()))
                assert key not in samples, f"twice: {key}"
                samples[key] = sample.value
        names = [line.split(" ")[2] for line in text.splitlines() if line.startswith("# TYPE ")]
        assert len(names) == len(set(names)), "a family in two pieces"
        return cls(samples)

    @classmethod
    def from_url(cls, url: str) -> Scrape:
        """Ask a broker."""
        with urllib.request.urlopen(url, timeout=30) as answer:
            return cls.of(answer.read().decode())

    @property
    def names(self) -> set[str]:
        """Names of samples."""
        return {name for name, _ in self.samples}

    def all(self, name: str, **labels: str) -> dict[Labels, float]:
        """The samples of this name that have these labels; by the labels that they have beside."""
        wanted = labels.items()
        return {
            tuple(pair for pair in had if pair not in wanted): value
            for (named, had), value in self.samples.items()
            if named == name and wanted <= dict(had).items()
        }

    def one(self, name: str, **labels: str) -> float:
        """The only sample of this name with these labels."""
        found = self.all(name, **labels)
        assert len(found) == 1, f"{name}{labels}: {found}"
        return next(iter(found.values()))
