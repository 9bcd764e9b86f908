"""Java: a home of version 17 or 21, found or named clearly."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tidegate_pipeline.errors import UsageError

JAVA_VERSIONS: Final = (17, 21)


def find_java() -> Path:
    """The home of a Java 17 or 21. Raises UsageError, saying what was found instead and what to install."""
    observed: list[str] = []
    for home in _java_homes():
        version = java_version(home)
        if version in JAVA_VERSIONS:
            return home
        observed.append(f"{home} is {version or 'no Java'}")
    found = f" ({'; '.join(observed)})" if observed else ""
    raise UsageError(f"Spark needs Java 17 or 21{found}: on Debian, apt-get install openjdk-17-jre-headless")


def java_version(home: Path) -> int | None:
    """Its major version, or None where there is none that runs."""
    try:
        reported = subprocess.run([home / "bin" / "java", "-version"], capture_output=True, text=True, timeout=60)  # noqa: S603
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r'version "(\d+)', reported.stderr)
    return int(found[1]) if found else None


def _java_homes() -> Iterator[Path]:
    if "JAVA_HOME" in os.environ:
        yield Path(os.environ["JAVA_HOME"])
        return
    if on_path := shutil.which("java"):
        yield Path(on_path).resolve().parent.parent
    yield from sorted(Path("/usr/lib/jvm").glob("*"))


def main() -> None:
    """For shell scripts: print Java's home, or print what is missing and exit with 1."""
    try:
        print(find_java())  # noqa: T201
    except UsageError as missing:
        raise SystemExit(f"{missing}") from None


if __name__ == "__main__":
    main()
