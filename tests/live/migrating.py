"""The page for those who come from NorFab: its blocks, and the project they are run on, in a folder of a test's own."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "broker" / "nfp" / "MIGRATING.md"
PROJECT = Path(__file__).with_name("norfab_lab")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
PATIENCE_S = 90.0

WITHOUT_NORFAB = (
    ("", "norfab_greeter.py     class Greeter"),
    ("yaml", "plugins:"),
    ("sh", "headgate nfp keys broker"),
    ("sh", "python -m broker.nfp.norfab client.py"),
    ("python", "BlockingClient"),
    ("python", "# greeter.py"),
    ("yaml", "# workers/common.yaml"),
    ("yaml", "# inventory.yaml, in addition"),
    ("sh", "headgate nfp up\n"),
    ("sh", "headgate nfp run greeter"),
)
"""Blocks that the story runs."""
WITH_NORFAB = (
    ("sh", "install -D -m 600"),
    ("sh", "nfcli -w"),
    ("sh", "unpin client_"),
    ("sh", "for name in greeter-1 greeter-2"),
    ("sh", "python client.py"),
    ("sh", "--norfab ~/norfab/bin/python"),
    ("python", "# norfab_greeter.py"),
)
"""Blocks that are run with deployed NorFab."""


def block(kind: str, holding: str) -> str:
    """The one block of that language which holds or begins with that text."""
    found = [text for language, text in BLOCKS if language == kind and holding in text]
    found = [text for text in found if text.startswith(holding)] or found
    assert len(found) == 1, (kind, holding, found)
    return found[0]


class Lab:
    """The project in ``folder``, at an address and with a state of its own."""

    def __init__(self, folder: Path, endpoint: str, *first_in_path: Path) -> None:
        self.folder = folder / "lab"
        self._logs = folder
        shutil.copytree(PROJECT, self.folder)
        inventory = self.folder / "inventory.yaml"
        inventory.write_text(inventory.read_text().replace("tcp://127.0.0.1:5555", endpoint))
        path = [*first_in_path, Path(sys.executable).parent, os.environ["PATH"]]
        self.environ = {
            **os.environ,
            "PATH": os.pathsep.join(map(str, path)),
            "XDG_STATE_HOME": str(folder / "state"),
            "HEADGATE_NFP": endpoint,
            "PYTHONPATH": str(ROOT),
        }

    def run(self, text: str, **environ: str) -> str:
        """What ``text``, typed into a shell, prints."""
        done = subprocess.run(
            ["bash", "-ec", text],
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
            cwd=self.folder,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout}{done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def running(self, text: str, until: str, **environ: str) -> Iterator[None]:
        """``text``, typed into a shell, goes on for the length of a block, which begins once it has printed ``until``.

        It is ended as Ctrl-C does.
        """
        log = self._logs / f"{time.monotonic_ns()}.log"
        with log.open("wb") as out:
            process = subprocess.Popen(
                ["bash", "-ec", text],
                env={**self.environ, **environ},
                stdout=out,
                stderr=out,
                cwd=self.folder,
                start_new_session=True,
            )
        try:
            end = time.monotonic() + PATIENCE_S
            while not re.search(until, log.read_text()):
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.05)
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                raise
