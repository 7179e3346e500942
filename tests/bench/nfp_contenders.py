"""Brokers of NFP that are compared: ours and deployed NorFab's, each in a process of its own."""

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.bench import processes
from tests.bench.contenders import PLAIN

ROOT = Path(__file__).resolve().parents[2]
SIDE = ROOT / "tests" / "live" / "norfab_side.py"
START_S = 30.0
CREDITS = 64
"""Jobs a worker may have at a time, in both brokers: NorFab's knows no limit, so the window of the client is it."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class NfpBroker(ABC):
    """One broker; ``key`` is its public key, Z85."""

    name = ""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="hgb-", dir="/tmp"))
        self.endpoint = f"tcp://127.0.0.1:{free_port()}"
        self.key = ""
        self.process: subprocess.Popen[Any] | None = None

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    @abstractmethod
    def start(self) -> None:
        """Start it and learn its key."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            processes.stop(self.process)
        shutil.rmtree(self.folder, ignore_errors=True)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid


class NorFab(NfpBroker):
    """Deployed NorFab with the pyzmq that it pins."""

    name = "NorFab"
    python = ROOT / ".venv-norfab" / "bin" / "python"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [str(self.python), "-P", str(SIDE), "broker", self.endpoint, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=self.environment(),
        )
        assert self.process.stdout is not None
        self.key = json.loads(self.process.stdout.readline())["key"]

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @classmethod
    def missing(cls) -> str:
        return (
            ""
            if cls.python.exists()
            else "NorFab is not installed in .venv-norfab (make interop installs it)"
        )


class NorFabOurZmq(NorFab):
    """The same with the pyzmq that we use: what differs then is the broker."""

    name = "NorFab, our pyzmq"
    _pyzmq: tempfile.TemporaryDirectory[str] | None = None

    def environment(self) -> dict[str, str]:
        import zmq

        if NorFabOurZmq._pyzmq is None:
            held = tempfile.TemporaryDirectory(prefix="hgb-pyzmq-")
            installed = Path(zmq.__file__).parent
            for folder in (installed, installed.with_name("pyzmq.libs")):
                if folder.exists():
                    os.symlink(folder, Path(held.name) / folder.name)
            NorFabOurZmq._pyzmq = held
        return dict(os.environ, PYTHONPATH=NorFabOurZmq._pyzmq.name)


class Ours(NfpBroker):
    """Headgate without a store, as NorFab's broker has none."""

    name = "headgate"
    store = False
    credits = CREDITS
    """Jobs of a worker at a time, 0 for the broker's default."""

    def start(self) -> None:
        config = self.folder / "nfp.toml"
        config.write_text(
            f'[nfp]\nendpoint = "{self.endpoint}"\nbase_dir = "{self.folder}/state"\n'
            f"store = {str(self.store).lower()}\n"
            + (f"credits = {self.credits}\ncredits_max = {self.credits}\n" if self.credits else "")
            + self.settings()
        )
        self.launch()

    def settings(self) -> str:
        """Further lines of ``[nfp]``."""
        return ""

    def launch(self) -> None:
        """Start (again), with what the folder holds."""
        command = [*PLAIN, "nfp", "broker", "--config", str(self.folder / "nfp.toml"), "--no-flux"]
        with open(self.folder / "log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=log, stderr=log, text=True)
        certificate = self.folder / "state" / "broker.key"
        end = time.monotonic() + START_S
        host, port = self.endpoint.removeprefix("tcp://").split(":")
        while time.monotonic() < end:
            try:
                socket.create_connection((host, int(port)), 1).close()
                self.key = next(
                    line.split('"')[1]
                    for line in certificate.read_text().splitlines()
                    if "public-key" in line
                )
                return
            except (OSError, StopIteration):
                time.sleep(0.02)
            if self.process.poll() is not None:
                break
        raise RuntimeError(f"headgate nfp broker did not start: {(self.folder / 'log').read_text()[-2000:]}")


class OursStored(Ours):
    """Headgate with its store, as a user gets it."""

    name = "headgate, stored"
    store = True


def peer(*words: object, **options: Any) -> subprocess.Popen[str]:
    """Start raw peers (``nfp_raw``)."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.bench.nfp_raw", *map(str, words)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,
    )


class OursForNorFab(Ours):
    """Headgate as it is installed, without a store."""

    credits = 0


class OursStoredForNorFab(OursForNorFab):
    """Headgate as it is installed."""

    name = "headgate, stored"
    store = True


@contextmanager
def whole_peer(
    broker: NfpBroker, part: str, name: str, *more: object, norfab: bool
) -> Iterator[subprocess.Popen[str]]:
    """A worker or client, NorFab's or ours, with its state below the broker's folder."""
    home = broker.folder / name
    home.mkdir()
    if norfab:
        service = ["dummy"] if part == "worker" else []
        command = [
            str(NorFab.python),
            "-P",
            str(SIDE),
            part,
            broker.endpoint,
            str(home),
            broker.key,
            name,
            *service,
        ]
    else:
        command = [
            sys.executable,
            "-m",
            "tests.bench.nfp_ours",
            part,
            broker.endpoint,
            broker.key,
            name,
            str(home),
        ]
    with open(broker.folder / f"{name}.log", "ab") as log:
        process = subprocess.Popen(
            [*command, *map(str, more)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        yield process
    finally:
        if part == "worker":
            process.terminate()
        processes.stop(process)


def line_of(process: subprocess.Popen[str]) -> dict[str, Any]:
    """The next line a peer prints."""
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"a peer ended without a word, exit code {process.wait()}")
    return json.loads(line)
