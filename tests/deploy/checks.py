"""The checkers of others, each behind a function that returns what it complains of; nothing is what is hoped for.

All work offline, without root, a container engine or a cluster. `Missing` is raised where the program is not there.
"""

import contextlib
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.deploy import manifests, units
from tests.deploy.paths import DEPLOY, ROOT

KUBERNETES = ("1.29", "1.33", "1.37")
"""Versions whose schemas the manifests have to fit: one with all that is used, a newer one, the newest known."""
EXPOSURE_MAX = 3.0
"""Of systemd-analyze security, 0 to 10: less is safer."""
CHECK_S = 60
_TESTED = "python -m pip install '.[test-deploy]'"
SERVICE_MONITOR: dict[str, Any] = {
    "apiVersion": str,
    "kind": str,
    "metadata": dict,
    "spec": {
        "selector": {"matchLabels": dict},
        "endpoints": [
            {
                "port": str,
                "path": str,
                "interval": str,
                "relabelings": [{"targetLabel": str, "replacement": str}],
            }
        ],
    },
}
"""What of a ServiceMonitor is used, and how: the schemas of Kubernetes do not have it."""


class Missing(Exception):
    """A checker is not installed; the text says how to get it, or begins with ``optional:`` where that cannot be."""


def program(name: str) -> str:
    """Where a checker is: beside this Python, or on the PATH.

    Raises:
        Missing: nowhere.
    """
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise Missing(
            {
                "kubectl": "optional: no kubectl",
                "systemd-analyze": "no systemd-analyze; on Debian: apt install systemd",
            }.get(name, f"no {name}; {_TESTED}")
        )
    return found


def run(name: str, *words: str, text: str | None = None) -> tuple[int, list[str]]:
    """The exit code of a checker, and the lines it said."""
    done = subprocess.run(
        [program(name), *words], input=text, capture_output=True, text=True, check=False, timeout=CHECK_S
    )
    return done.returncode, [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]


def _complaints(name: str, *words: str) -> list[str]:
    code, said = run(name, *words)
    return (said or [f"{name} ended with {code}"]) if code else []


# ---------------------------------------------------------------- containers


def dockerfile(path: Path = ROOT / "Dockerfile") -> list[str]:
    """hadolint: even a hint is a complaint."""
    _code, said = run("hadolint", "--no-color", str(path))
    return said


def compose(path: Path = DEPLOY / "compose.yaml") -> list[str]:
    """The schema of the compose specification; an unknown key is a complaint."""
    return _complaints("check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(path))


# ---------------------------------------------------------------- releases, and the gate of oslo.messaging


def workflow(path: Path) -> list[str]:
    """The schema of GitHub's workflows; actionlint, which reads expressions, actions and, with shellcheck, commands."""
    return [
        *_complaints("check-jsonschema", "--builtin-schema", "vendor.github-workflows", str(path)),
        *_complaints("actionlint", "-oneline", "-shellcheck", program("shellcheck"), str(path)),
    ]


def script(path: Path) -> list[str]:
    """shellcheck: what may go wrong, not what could be written otherwise."""
    return _complaints("shellcheck", "--severity=warning", "--format=gcc", str(path))


# ---------------------------------------------------------------- kubernetes


def kubernetes(case: str) -> list[str]:
    """An overlay, built and held against the schemas of each of ``KUBERNETES``."""
    program("kubectl")
    with tempfile.TemporaryDirectory(prefix="headgate-deploy-") as folder:
        try:
            built = manifests.build(case, Path(folder))
        except RuntimeError as error:
            return [str(error)]
        return schemas(built)


def schemas(built: list[manifests.Manifest], versions: Sequence[str] = KUBERNETES) -> list[str]:
    """What the schemas say of manifests."""
    program("kubernetes-validate")
    found = [
        line
        for monitor in manifests.of_kind(built, "ServiceMonitor").values()
        for line in unlike(monitor, SERVICE_MONITOR, "ServiceMonitor")
    ]
    known = [each for each in built if each["kind"] != "ServiceMonitor"]
    with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
        file.write(yaml.safe_dump_all(known))
        file.flush()
        for version in versions:
            code, said = run("kubernetes-validate", "--strict", "--quiet", "-k", version, file.name)
            found += said or ([f"kubernetes-validate -k {version} ended with {code}"] if code else [])
    return found


def unlike(given: Any, form: Any, where: str) -> Iterator[str]:
    """Where ``given`` has something else than a form of types, lists and dictionaries allows."""
    if isinstance(form, type):
        if not isinstance(given, form):
            yield f"{where}: saw {given!r}, expected {form.__name__}"
    elif isinstance(form, list):
        for index, each in enumerate(given if isinstance(given, list) else [given]):
            yield from unlike(each, form[0], f"{where}[{index}]")
    elif not isinstance(given, dict):
        yield f"{where}: saw {given!r}, expected keys {sorted(form)}"
    else:
        yield from (f"{where}: unknown key {key!r}" for key in given.keys() - form.keys())
        yield from (f"{where}: no {key!r}" for key in form.keys() - given.keys())
        for key in given.keys() & form.keys():
            yield from unlike(given[key], form[key], f"{where}.{key}")


# ---------------------------------------------------------------- systemd


@contextlib.contextmanager
def _root(name: str, drop: tuple[Path, ...]) -> Iterator[str]:
    program("systemd-analyze")
    if not units.SYSTEM.is_dir():
        raise Missing("no units of systemd; on Debian: apt install systemd")
    with tempfile.TemporaryDirectory(prefix="headgate-deploy-") as folder:
        yield str(units.root(Path(folder), name, *drop))


def unit(name: str, *drop: Path) -> list[str]:
    """systemd-analyze verify: it prints most faults and ends with 0, so any line is a complaint."""
    with _root(name, drop) as root:
        code, said = run(
            "systemd-analyze", "verify", "--man=no", f"--root={root}", units.instance(Path(name).name)
        )
    return said or ([f"systemd-analyze verify ended with {code}"] if code else [])


def exposure(name: str, *drop: Path, most: float = EXPOSURE_MAX) -> list[str]:
    """systemd-analyze security: what a process of this unit could do beyond its work."""
    words = ("security", "--offline=true", "--no-pager", f"--threshold={most * 10:.0f}")
    with _root(name, drop) as root:
        code, said = run("systemd-analyze", *words, f"--root={root}", units.instance(Path(name).name))
    return [said[-1] if said else f"systemd-analyze security ended with {code}"] if code else []


# ---------------------------------------------------------------- all of them


def everything() -> Iterator[tuple[str, Callable[[], list[str]]]]:
    """(what is checked, the check) of all that is there."""
    yield "Dockerfile: hadolint", dockerfile
    yield "compose.yaml: compose-spec", compose
    for path in sorted((ROOT / ".github/workflows").glob("*.yml")):
        yield f"{path.name}: github-workflows, actionlint", _bound(workflow, path)
    for path in [*sorted((ROOT / ".ci").iterdir()), *sorted(DEPLOY.glob("*.sh"))]:
        yield f"{path.relative_to(ROOT)}: shellcheck", _bound(script, path)
    for case in manifests.CASES:
        yield f"kubernetes, {case}: kustomize, schemas of {', '.join(KUBERNETES)}", _bound(kubernetes, case)
    for name in units.names():
        for drop in [(), *((path,) for path in units.drop_ins(name))]:
            shown = " with ".join([name, *(path.name for path in drop)])
            yield f"{shown}: verify", _bound(unit, name, *drop)
            yield f"{shown}: exposure at most {EXPOSURE_MAX}", _bound(exposure, name, *drop)


def _bound(check: Callable[..., list[str]], *given: Any) -> Callable[[], list[str]]:
    return lambda: check(*given)
