"""Who is measured: each in processes of its own, stopped when its ``with`` block ends."""

import importlib.util
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.bench import builds, processes

HOLD = ["sh", "-c", 'echo "$FLUX_URI"; exec cat >/dev/null']
"""What an instance runs: says where it is, then waits until its stdin ends."""


class Contender:
    """One instance: a broker or a tree of them, or the relay of bytes.

    Args:
        size: brokers. topology: of the tree that they make.

    Attributes:
        name: how the table calls it. bare: it offers no services, so the generator must not register any.
    """

    name = ""
    bare = False

    def __init__(self, size: int = 1, topology: str = "kary:2") -> None:
        self.size = size
        self.topology = topology
        self.rundir = Path(tempfile.mkdtemp(prefix="hgb-", dir="/tmp"))  # short: socket paths hold 107 bytes
        self.process: subprocess.Popen[Any] | None = None
        self.address = ""

    def argv(self) -> list[str]:
        """The command that starts it and prints the URI of rank 0 when it is ready."""
        raise LookupError(f"{type(self).__name__} has no command")

    def environment(self) -> dict[str, str]:
        """What it runs with."""
        return dict(os.environ)

    def __enter__(self) -> Self:
        self.process = subprocess.Popen(
            self.argv(), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=self.environment()
        )
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().strip()
        if not self.address:
            self.__exit__(None, None, None)
            raise RuntimeError(f"{self.name} did not start")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process is not None:
            processes.stop(self.process)
        shutil.rmtree(self.rundir, ignore_errors=True)

    def uri(self, rank: int = 0) -> str:
        return self.address if rank == 0 else f"{self.address.removesuffix('-0')}-{rank}"

    @property
    def pids(self) -> list[int]:
        """The brokers' processes."""
        assert self.process is not None
        everyone = [self.process.pid, *processes.descendants(self.process.pid)]
        return [pid for pid in everyone if not processes.command(pid).startswith("cat")]

    @property
    def flags(self) -> list[str]:
        """What the generator has to be told about it."""
        return ["bare"] if self.bare else []


class ByteRelay(Contender):
    """The limit: copies bytes and looks at none of them."""

    name = "byte relay"
    bare = True

    def argv(self) -> list[str]:
        return [
            sys.executable,
            "-P",
            str(Path(__file__).with_name("byte_relay.py")),
            str(self.rundir / "relay-0"),
        ]


class Flux(Contender):
    """The real flux-core, without its modules for jobs and storage."""

    name = "flux-core"

    def argv(self, *work: str) -> list[str]:
        bare = ["-Sbroker.rc1_path=", "-Sbroker.rc3_path=", f"-Stbon.topo={self.topology}"]
        where = [f"--test-size={self.size}", f"--test-rundir={self.rundir}"]
        return [f"{os.environ['FLUX_PREFIX']}/bin/flux", "start", *where, *bare, *(work or HOLD)]

    @property
    def pids(self) -> list[int]:
        return [pid for pid in super().pids if "flux-broker" in processes.command(pid)]

    @staticmethod
    def missing() -> str:
        """Why it cannot run; "" when it can."""
        prefix = os.environ.get("FLUX_PREFIX")
        if not prefix:
            return "FLUX_PREFIX does not name a flux-core"
        return "" if os.access(f"{prefix}/bin/flux", os.X_OK) else "FLUX_PREFIX/bin/flux is not there"


class Headgate(Contender):
    """Ours, started as a user starts it."""

    name = "headgate"

    def argv(self, *work: str) -> list[str]:
        options = ["--size", str(self.size), "--topo", self.topology, "--rundir", str(self.rundir)]
        return [*program(), "start", *options, "--", *(work or HOLD)]

    @staticmethod
    def missing() -> str:
        """Why it cannot run; "" when it can."""
        try:
            found = importlib.util.find_spec("broker.cli.start") and importlib.util.find_spec(
                "broker.node.broker"
            )
        except ModuleNotFoundError:
            found = None
        return "" if found else "the broker is not there"


class Pure(Headgate):
    """Ours again, from the sources, where the build that people get is measured (`--wheel`)."""

    name = "pure Python"

    def environment(self) -> dict[str, str]:
        return builds.pure()

    @staticmethod
    def missing() -> str:
        """Why it cannot run; "" when it can."""
        return "" if builds.inside() else "no wheel was given (--wheel): the sources are what is measured"


PLAIN = [sys.executable, "-P", "-c", "import sys; from broker.cli.main import main; sys.exit(main())"]
"""The command ``headgate`` where it has no script."""


def program() -> list[str]:
    """The command ``headgate`` of this environment."""
    script = Path(sys.executable).with_name("headgate")
    if script.exists():
        return [str(script)]
    return PLAIN


def single(rundir: Path) -> list[str]:
    """The command of one broker as a deployment runs it."""
    config = rundir / "headgate.toml"
    config.write_text(f'[broker]\nrank = 0\nrundir = "{rundir}"\nlog_level = "warning"\n')
    return [*program(), "broker", "--config", str(config)]
