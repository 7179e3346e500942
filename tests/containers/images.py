"""A container engine for tests: whether there is one, with the settings that this machine needs, and our images.

A machine may lack what engines take for granted (a unified cgroup hierarchy, the right to raise limits): then podman
runs with a containers.conf of the tests' own. Images are built from the working tree.
"""

import importlib.util
import os
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASE = "docker.io/library/python:3.11-slim-bookworm"
IMAGE = "localhost/headgate-tested"
BUILD_S = 1500.0


def why_not() -> str:
    """What is missing; empty when containers can be run."""
    if os.geteuid() != 0:
        return "no root, which the stand-in for the base image is made as"
    for program in ("podman", "runc", "debootstrap"):
        if shutil.which(program) is None:
            return f"no {program}"
    if shutil.which("podman-compose") is None and importlib.util.find_spec("podman_compose") is None:
        return "no podman-compose"
    seen = subprocess.run(["podman", "info"], capture_output=True, text=True, check=False, env=environ())
    return "" if seen.returncode == 0 else f"podman info: {seen.stderr.strip()[-120:]}"


def environ() -> dict[str, str]:
    """The environment of every podman that a test runs."""
    folder = Path(tempfile.gettempdir(), f"headgate-podman-{os.geteuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    lines = [
        "[containers]",
        f'default_ulimits = ["nofile={min(files, 65536)}:{min(files, 65536)}", "nproc=4096:4096"]',
        "[engine]",
        'runtime = "runc"',
        'cgroup_manager = "cgroupfs"',
        'events_logger = "file"',
    ]
    conf = folder / "containers.conf"
    conf.write_text("\n".join(lines) + "\n")
    return os.environ | {"CONTAINERS_CONF": str(conf), "BUILDAH_FORMAT": "docker"}


def podman(*words: str, check: bool = True, timeout: float = 120.0) -> str:
    """What podman writes; fails with what it complains of."""
    done = subprocess.run(
        ["podman", *words],
        capture_output=True,
        text=True,
        timeout=timeout,
        env=environ(),
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert not check or done.returncode == 0, f"podman {' '.join(words[:3])}: {done.stderr[-2000:]}"
    return done.stdout


def base(*names: str) -> None:
    """The stand-ins for official images; those that are there are kept."""
    script = ROOT / "tests/containers/base_image.sh"
    subprocess.run(["sh", str(script), *names], check=True, timeout=BUILD_S, env=environ())


def build(target: str, image: str = IMAGE) -> None:
    """The image of a target of our Dockerfile."""
    words = ["build", "--quiet", "--network", "host", "--target", target, "--tag", image]
    podman(*words, "--build-arg", f"PYTHON_IMAGE={BASE}", str(ROOT), timeout=BUILD_S)
