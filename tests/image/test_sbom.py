"""The image's bill of materials, of made-up files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.image.engines import REPOSITORY, run

pytestmark = pytest.mark.timeout(600)

STATUS = """\
Package: libc6
Status: install ok installed
Architecture: amd64
Source: glibc (2.36-9)
Version: 2.36-9+deb12u10
Description: GNU C Library
 Version: not this

Package: tzdata
Status: deinstall ok config-files
Architecture: all
Version: 2025b-0
"""


def written(root: Path, name: str, text: str) -> None:
    """A file of the image."""
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def bill(root: Path) -> dict[str, Any]:
    """What `make sbom` writes of these files."""
    path = root.with_suffix(".json")
    run("make", "-C", str(REPOSITORY), "sbom", f"IMAGE={root}", f"SBOM={path}")
    described: dict[str, Any] = json.loads(path.read_text())
    return described


def test_bill_names_installed_packages_and_the_base_image(tmp_path: Path) -> None:
    written(tmp_path, "usr/lib/os-release", 'PRETTY_NAME="Debian GNU/Linux 12"\nID=debian\nVERSION_ID="12"\n')
    written(tmp_path, "var/lib/dpkg/status", STATUS)
    written(tmp_path, "usr/local/include/python3.11/patchlevel.h", '#define PY_VERSION   "3.11.13"\n')
    for site, name, version in (("opt/tidegate", "tidegate", "0.1.0"), ("usr/local", "Jaraco.Text", "1!2.0+local")):
        folder = f"{site}/lib/python3.11/site-packages/{name}-{version}.dist-info"
        written(tmp_path, f"{folder}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    described = bill(tmp_path)

    assert (described["bomFormat"], described["specVersion"]) == ("CycloneDX", "1.6")
    assert {component["purl"] for component in described["components"]} == {
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u10?arch=amd64&distro=debian-12&upstream=glibc%402.36-9",
        "pkg:generic/python@3.11.13",
        "pkg:pypi/tidegate@0.1.0",
        "pkg:pypi/jaraco-text@1%212.0%2Blocal",
    }
    image = described["metadata"]["component"]
    assert (image["type"], image["name"], image["version"]) == ("container", "tidegate", "0.1.0")
    (base,) = image["pedigree"]["ancestors"]
    assert f"@sha256:{base['hashes'][0]['content']}\n" in (REPOSITORY / "Dockerfile").read_text()
    assert bill(tmp_path) == described
