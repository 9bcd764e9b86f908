"""Two ways to build and run the image: docker where its daemon answers, else Debian's buildah without any registry.

Buildah needs root and nothing else: the base image is a Debian made on the spot by mmdebstrap, `RUN` runs in a
chroot, and the container is started by hand: a mount namespace, a read-only root, the image's own user, no
capabilities. It shares the machine's network, as `docker run --network host` does.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol

REPOSITORY: Final = Path(__file__).resolve().parents[2]
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tidegate"
RELEASE: Final = "bookworm"
EPOCH: Final = "1700000000"
CERTIFICATES: Final = Path("/etc/ssl/certs/ca-certificates.crt")
NONE: Final[Mapping[str, Path]] = {}


class EngineMissing(Exception):
    """Nothing here builds images, and why."""


class Image(Protocol):
    """One built image."""

    size_bytes: int
    config: Mapping[str, Any]
    """As Docker shows it: User, Env, Entrypoint, Cmd, Labels, Healthcheck."""
    layers: Sequence[str]

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], volumes: Mapping[str, Path] = NONE
    ) -> subprocess.Popen[str]:
        """Run with a read-only root, no capabilities and the machine's network; stdout and stderr come as one.

        `volumes` are folders of the machine, by where they are mounted.
        """
        ...

    def files(self, folder: Path) -> Path:
        """A folder with its files: this one, which is empty, or another."""
        ...


class Engine(Protocol):
    """What builds."""

    name: str
    base: str
    """What it builds on: name:tag@sha256:digest; empty for what the Dockerfile names."""
    reproducible: bool
    """Whether it puts SOURCE_DATE_EPOCH into the layers' file times."""

    def build(self, target: str, **arguments: str) -> Image:
        """The image of one target of the Dockerfile. Raises RuntimeError with its log."""
        ...

    def close(self) -> None:
        """Remove everything that was built."""
        ...


def run(*command: str, timeout_s: float = 1_500) -> str:
    """Output of a command; its errors too when it fails."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    return done.stdout


def confined(root: Path, user: str, volumes: Mapping[str, Path]) -> str:
    """A shell's script that makes the container's files out of `root`, and becomes the command of its arguments.

    Nothing forks: signals reach the command itself, and its exit status comes back.
    """
    steps = [f"mkdir -p {root}{target}" for target in volumes]
    steps += [f"mount --bind {root} {root}", f"mount -o remount,ro,bind {root}", f"mount -t tmpfs tmpfs {root}/tmp"]
    steps += [f"mount --rbind /{name} {root}/{name}" for name in ("dev", "proc")]
    steps += [f"mount --bind {folder} {root}{target}" for target, folder in volumes.items()]
    become = f'exec setpriv --no-new-privs chroot --userspec={user} --groups= {root} /usr/bin/env -i "$@"'
    return "\n".join(["set -e", *steps, become])


class BuildahImage:
    """An image in buildah's store, its files mounted."""

    def __init__(self, engine: Buildah, tag: str) -> None:
        described = json.loads(engine.run("inspect", "--type", "image", tag))
        self.config = described["Docker"]["config"]
        self.layers = described["Docker"]["rootfs"]["diff_ids"]
        self.root = Path(engine.run("mount", engine.run("from", tag).strip()).strip())
        self.size_bytes = sum(path.lstat().st_size for path in self.root.rglob("*") if path.is_file())

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], volumes: Mapping[str, Path] = NONE
    ) -> subprocess.Popen[str]:
        """See Image."""
        variables = [*self.config["Env"], *(f"{name}={value}" for name, value in environment.items())]
        script = confined(self.root, self.config["User"], volumes)
        return subprocess.Popen(
            ["unshare", "--mount", "bash", "-c", script, "-", *variables, *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def files(self, folder: Path) -> Path:
        """See Image."""
        return self.root


class Buildah:
    """Debian's buildah: layers are plain folders, steps run in a chroot."""

    name, reproducible = "buildah", True

    def __init__(self) -> None:
        """Make the base image. Raises EngineMissing."""
        if os.geteuid() != 0:
            raise EngineMissing("no docker daemon answers, and buildah with a chroot needs root")
        for tool, package in (("buildah", "buildah"), ("mmdebstrap", "mmdebstrap"), ("setpriv", "util-linux")):
            if shutil.which(tool) is None:
                raise EngineMissing(f"no docker daemon answers, and {tool} is missing: apt-get install {package}")
        self.work = Path(tempfile.mkdtemp(prefix="tidegate-image-"))
        (self.work / "pip.conf").write_text("[global]\ncert = /etc/pip-ca.crt\n")
        base = self.run("from", "scratch").strip()
        self.run("add", base, str(debian()), "/")
        self.run("commit", base, "localhost/base")
        digest = json.loads(self.run("inspect", "--type", "image", "localhost/base"))["FromImageDigest"]
        self.base = f"localhost/base:latest@{digest}"

    def run(self, *command: str) -> str:
        """A command on a store of this test's own."""
        store = ("--root", str(self.work / "root"), "--runroot", str(self.work / "run"), "--storage-driver", "vfs")
        return run("buildah", *store, *command)

    def build(self, target: str, **arguments: str) -> BuildahImage:
        """See Engine; pip trusts what this machine trusts."""
        tag = f"localhost/tidegate-{target}-{len(list(self.work.iterdir()))}"
        options = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        options += ["--build-arg", "PYTHON_IMAGE=localhost/base", "--build-arg", f"SOURCE_DATE_EPOCH={EPOCH}"]
        if CERTIFICATES.exists():
            options += ["--secret", f"id=pip.conf,src={self.work / 'pip.conf'}"]
            options += ["--volume", f"{CERTIFICATES}:/etc/pip-ca.crt:ro"]
        options += ["--isolation", "chroot", "--format", "docker", "--no-cache", "--timestamp", EPOCH]
        self.run("build", *options, "--target", target, "--tag", tag, str(REPOSITORY))
        return BuildahImage(self, tag)

    def close(self) -> None:
        """See Engine."""
        self.run("rm", "--all")
        self.run("rmi", "--all", "--force")
        shutil.rmtree(self.work)


def debian() -> Path:
    """A minimal Debian with python3 and without manuals, as a tar; made once a machine."""
    path = CACHE / f"debian-{RELEASE}-python3-slim.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{os.getpid()}.tar")
        left_out = [f"--dpkgopt=path-exclude=/usr/share/{folder}/*" for folder in ("doc", "man", "locale", "info")]
        run("mmdebstrap", "--quiet", "--variant=minbase", "--include=python3", *left_out, RELEASE, str(made))
        made.replace(path)
    return path


class DockerImage:
    """An image in docker's store."""

    def __init__(self, tag: str) -> None:
        self.tag = tag
        (described,) = json.loads(run("docker", "image", "inspect", tag))
        self.config = described["Config"]
        self.layers = described["RootFS"]["Layers"]
        self.size_bytes = described["Size"]

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], volumes: Mapping[str, Path] = NONE
    ) -> subprocess.Popen[str]:
        """See Image; docker's own command hands signals on and exits as the container does."""
        variables = [word for name, value in environment.items() for word in ("--env", f"{name}={value}")]
        variables += [word for target, folder in volumes.items() for word in ("--volume", f"{folder}:{target}")]
        limits = ["--read-only", "--tmpfs", "/tmp:exec", "--cap-drop", "ALL", "--security-opt", "no-new-privileges"]
        entry, *words = command
        return subprocess.Popen(
            [
                "docker",
                "run",
                "--rm",
                "--network",
                "host",
                *limits,
                *variables,
                "--entrypoint",
                entry,
                self.tag,
                *words,
            ],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def files(self, folder: Path) -> Path:
        """See Image."""
        container = run("docker", "create", self.tag).strip()
        run("docker", "cp", f"{container}:/.", str(folder))
        run("docker", "rm", container)
        return folder


class Docker:
    """A docker daemon, on the official Python image."""

    name, base, reproducible = "docker", "", False

    def __init__(self) -> None:
        """Raises EngineMissing where no daemon answers."""
        self.tags: list[str] = []
        try:
            run("docker", "info", timeout_s=20)
        except (OSError, RuntimeError, subprocess.TimeoutExpired) as error:
            raise EngineMissing("no docker daemon answers") from error

    def build(self, target: str, **arguments: str) -> DockerImage:
        """See Engine."""
        tag = f"tidegate-test:{target}-{os.getpid()}-{len(self.tags)}"
        options = [word for name, value in arguments.items() for word in ("--build-arg", f"{name}={value}")]
        run("docker", "build", *options, "--target", target, "--tag", tag, str(REPOSITORY))
        self.tags.append(tag)
        return DockerImage(tag)

    def close(self) -> None:
        """See Engine."""
        for tag in self.tags:
            run("docker", "image", "rm", "--force", tag)


def engine() -> Engine:
    """Docker, or else buildah. Raises EngineMissing."""
    try:
        return Docker()
    except EngineMissing:
        return Buildah()
