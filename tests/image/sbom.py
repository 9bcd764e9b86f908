"""A CycloneDX bill of materials of an image, read from its files: `make sbom IMAGE=folder`."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from email.parser import Parser
from importlib.metadata import distributions
from pathlib import Path

from cyclonedx.contrib.this.builders import this_component
from cyclonedx.model import HashAlgorithm, HashType
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType, Pedigree
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from cyclonedx.validation import make_schemabased_validator
from packageurl import PackageURL


def package(kind: ComponentType, url: PackageURL) -> Component:
    """The component that a package URL names."""
    return Component(type=kind, name=url.name, version=url.version, purl=url, bom_ref=url.to_string())


def debian_packages(root: Path) -> Iterator[Component]:
    """What dpkg has installed; `upstream` is the source package, by which Debian's advisories go."""
    release = dict(re.findall(r'^(\w+)="?([^"\n]*)', (root / "usr/lib/os-release").read_text(), re.MULTILINE))
    distro = f"{release['ID']}-{release['VERSION_ID']}"
    for stanza in (root / "var/lib/dpkg/status").read_text().strip().split("\n\n"):
        fields = Parser().parsestr(stanza)
        if fields["Status"].endswith(" installed"):
            source, _, version = fields.get("Source", fields["Package"]).rstrip(")").partition(" (")
            upstream = f"{source}@{version or fields['Version']}"
            qualifiers = {"arch": fields["Architecture"], "distro": distro, "upstream": upstream}
            url = PackageURL("deb", release["ID"], fields["Package"], fields["Version"], qualifiers)
            yield package(ComponentType.LIBRARY, url)


def python_packages(root: Path) -> Iterator[Component]:
    """Every distribution of Python, wherever it is installed, and the CPython that official images build themselves."""
    for folder in {path.parent for path in root.rglob("*.dist-info")}:
        for found in distributions(path=[str(folder)]):
            name = re.sub(r"[-_.]+", "-", found.name).lower()
            yield package(ComponentType.LIBRARY, PackageURL("pypi", None, name, found.version))
    for header in root.glob("usr/local/include/python3*/patchlevel.h"):
        (version,) = re.findall(r'^#define PY_VERSION\s+"(.+)"', header.read_text(), re.MULTILINE)
        interpreter = package(ComponentType.APPLICATION, PackageURL("generic", None, "python", version))
        interpreter.cpe = f"cpe:2.3:a:python:python:{version}:*:*:*:*:*:*:*"
        yield interpreter


def base_image(reference: str) -> Component:
    """The image of `name:tag@sha256:digest`, as a Dockerfile's FROM has it."""
    name, _, digest = reference.partition("@")
    repository, _, tag = name.rpartition(":")
    qualifiers = {"repository_url": repository if "/" in repository else "", "tag": tag}
    url = PackageURL("oci", None, repository.rpartition("/")[2], digest, qualifiers)
    base = package(ComponentType.CONTAINER, url)
    base.hashes.add(HashType(alg=HashAlgorithm.SHA_256, content=digest.removeprefix("sha256:")))
    return base


def bill(root: Path, base: str) -> str:
    """CycloneDX 1.6 JSON; the same for the same files. Raises ValueError where it does not fit the schema."""
    components = {*debian_packages(root), *python_packages(root)}
    *_, ours = sorted(component for component in components if component.name in {"tidegate", "tidegate-pipeline"})
    image = Component(type=ComponentType.CONTAINER, name=ours.name, version=ours.version, bom_ref="image")
    image.pedigree = Pedigree(ancestors=[base_image(base)])
    bom = Bom(components=components)
    bom.serial_number = bom.metadata.timestamp = None
    bom.metadata.component = image
    bom.metadata.tools.components.add(this_component())
    bom.register_dependency(image, components)
    described = make_outputter(bom, OutputFormat.JSON, SchemaVersion.V1_6).output_as_string(indent=2)
    if error := make_schemabased_validator(OutputFormat.JSON, SchemaVersion.V1_6).validate_str(described):
        raise ValueError(error)
    return described


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="folder with the image's files")
    parser.add_argument("--base", required=True, help="what it was built on: name:tag@sha256:digest")
    parser.add_argument("--output", type=Path, required=True)
    arguments = parser.parse_args()
    arguments.output.write_text(bill(arguments.root, arguments.base) + "\n")
