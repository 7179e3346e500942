"""Kustomize's overlays, built in a copy with keys that `headgate cluster init` made for it."""

import contextlib
import io
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from gateway.cli.cluster import main as cluster
from tests.deploy.paths import DEPLOY

FOLDER = DEPLOY / "kubernetes"
OVERLAYS = ("production", "small")
JOURNAL = "production with a journal"
"""The one of the cases that is no overlay but one with a component."""
CASES = (*OVERLAYS, JOURNAL)
_WITH_JOURNAL = """\
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
resources: [../production]
components: [../../components/journal, ../../components/journal-ship, ../../components/pipeline]
"""
BUILD_S = 60

Manifest = dict[str, Any]


def init_command(overlay: str) -> list[str]:
    """The words of the command that the overlay's first lines tell people to type."""
    head = (FOLDER / "overlays" / overlay / "kustomization.yaml").read_text().partition("apiVersion")[0]
    (line,) = [line.lstrip("# ") for line in head.splitlines() if "headgate cluster init" in line]
    return shlex.split(line)


def make_keys(command: list[str], place: Path) -> str:
    """Carry out ``headgate cluster init`` as if typed in the folder ``place``; returns what it said."""
    words = [str(place / word) if word == "keys" else word for word in command[2:]]
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        code = cluster(words)
    if code:
        raise RuntimeError(f"{shlex.join(command)} ended with {code}")
    return said.getvalue()


def build(case: str, folder: Path) -> list[Manifest]:
    """The manifests of a case, in the order of kubectl.

    Args:
        case: of ``CASES``. folder: empty, to work in.
    """
    overlay = "production" if case == JOURNAL else case
    shutil.copytree(FOLDER, folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("keys"))
    place = folder / "overlays" / overlay
    make_keys(init_command(overlay), place)
    if case == JOURNAL:
        place = folder / "overlays" / "journal"
        place.mkdir()
        (place / "kustomization.yaml").write_text(_WITH_JOURNAL)
    return kustomize(place)


def kustomize(place: Path) -> list[Manifest]:
    """What ``kubectl kustomize`` makes of a folder.

    Raises:
        RuntimeError: it complains.
    """
    done = subprocess.run(
        ["kubectl", "kustomize", str(place)], capture_output=True, text=True, check=False, timeout=BUILD_S
    )
    if done.returncode or done.stderr.strip():
        raise RuntimeError(done.stderr.strip() or f"kubectl ended with {done.returncode}")
    return list(yaml.safe_load_all(done.stdout))


def of_kind(manifests: list[Manifest], kind: str) -> dict[str, Manifest]:
    """Those of one kind, by name."""
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] == kind}


def the(manifests: list[Manifest], kind: str, name: str) -> Manifest:
    """One of them."""
    return of_kind(manifests, kind)[name]


def pods(manifests: list[Manifest]) -> dict[str, Manifest]:
    """The pod templates, by the name of what makes pods of them."""
    makers = of_kind(manifests, "StatefulSet") | of_kind(manifests, "Deployment")
    return {name: each["spec"]["template"] for name, each in makers.items()}


def containers(pod: Manifest) -> Iterator[Manifest]:
    """All containers of a pod template, those that run before the others too."""
    yield from pod["spec"].get("initContainers", [])
    yield from pod["spec"]["containers"]


def selects(labels: dict[str, str], pod: Manifest) -> bool:
    """Whether ``matchLabels``, or a Service's selector, mean this pod."""
    return labels.items() <= pod["metadata"]["labels"].items()
