"""Builds the load generator and runs it; its result is one JSON object."""

import json
import os
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

SOURCE = Path(__file__).with_name("loadgen.c")
WEB_SOURCE = Path(__file__).with_name("wsload.c")
TIMEOUT_S = 90.0
SHOWN = 200
"""How much is quoted of output that cannot be read."""

Result = dict[str, Any]


class LoadError(Exception):
    """The generator ended with an error, or messages were lost, duplicated or reordered."""


class Loadgen:
    """A compiled load generator, in a temporary directory of its own."""

    def __init__(self, source: Path = SOURCE, *flags: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="headgate-bench-")
        self.path = Path(self._directory.name) / "loadgen"
        build = [compiler() or "cc", "-O2", "-Wall", "-o", str(self.path), str(source), "-pthread", *flags]
        subprocess.run(build, check=True)

    def close(self) -> None:
        self._directory.cleanup()

    def run(
        self, mode: str, *flags: str, pids: list[int] | None = None, secret: str = "", **options: object
    ) -> Result:
        """Run one measurement; every option becomes ``--name value``, every flag ``--flag``, ``secret`` is not shown.

        Raises:
            LoadError: with what the generator said.
        """
        argv = [*self.argv(mode, **options), *(f"--{flag}" for flag in flags)]
        for pid in pids or []:
            argv += ["--pid", str(pid)]
        done = subprocess.run(
            argv, capture_output=True, text=True, timeout=TIMEOUT_S, env=self.environment(secret)
        )
        return outcome(done)

    def argv(self, mode: str, **options: object) -> list[str]:
        words = [str(self.path), mode]
        for name, value in options.items():
            words += [f"--{name.replace('_', '-')}", str(value)]
        return words

    @staticmethod
    def environment(secret: str) -> dict[str, str]:
        """What it runs with: arguments can be read by everybody, an environment cannot."""
        return dict(os.environ, WSLOAD_TOKEN=secret) if secret else dict(os.environ)


def outcome(done: "subprocess.CompletedProcess[str]") -> Result:
    """Read what a generator printed.

    Raises:
        LoadError: it says what is wrong, it lost messages, or what it printed is no result.
    """
    if done.returncode:
        raise LoadError((done.stderr or done.stdout).strip() or f"exit code {done.returncode}")
    try:
        result = json.loads(done.stdout)
    except ValueError:
        result = None
    if not isinstance(result, dict):
        raise LoadError(f"the generator printed no result: {done.stdout[:SHOWN]!r}")
    return result


def compiler() -> str | None:
    """The C compiler: $CC, cc or gcc; None when there is none."""
    names = [os.environ.get("CC", ""), "cc", "gcc"]
    return next((found for name in names if name and (found := shutil.which(name))), None)
