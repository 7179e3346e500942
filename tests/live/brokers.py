"""Brokers as processes: one, or a tree on this machine; all they hold is counted from outside."""

import contextlib
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from broker.transport import curve
from broker.wire.message import request
from broker.wire.payload import decode_json, encode_json
from tests.live.speaker import Speaker
from tests.live.starter import BROKER, Started, started
from tests.netlab import NetLab

START_S = 20.0
PROGRAM = """
import sys
from broker.errors import ConfigError
from broker.node.bootstrap import run
from broker.settings import load
try:
    settings = load(sys.argv[1]).at_rank(int(sys.argv[2]))
except ConfigError as error:
    sys.exit(f"headgate: {error}")
# what it logged until then is in its log
sys.exit(run(settings, ready=lambda node: (sys.stderr.flush(), print("ready", flush=True))))
"""
COMMAND = (sys.executable, "-c", PROGRAM)


class BrokerProcess:
    """One rank. ``log`` is the file its lines go to."""

    def __init__(
        self, config: Path, rank: int, uri: str, *, prefix: tuple[str, ...] = (), **popen: object
    ) -> None:
        self.rank = rank
        self.uri = uri
        self.log = config.with_suffix(f".{rank}.log")
        self.argv = [*prefix, *COMMAND, str(config), str(rank)]
        self.popen = popen
        self.process: subprocess.Popen[bytes] | Started | None = None
        self.start()

    def start(self) -> None:
        """Start, or start again after ``stop`` or ``kill``."""
        with self.log.open("ab") as log:
            self.process = started(self.argv, loads=BROKER, stdout=subprocess.PIPE, stderr=log, **self.popen)

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def lines(self) -> list[str]:
        return self.log.read_text().splitlines()

    def wait_ready(self, timeout: float = START_S) -> None:
        assert self.process is not None
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], timeout)
        line = self.process.stdout.readline() if ready else b""
        assert line == b"ready\n", f"rank {self.rank} is not ready: {self.lines()[-5:]}"

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def wait(self, timeout: float = START_S) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    def kill(self) -> None:
        assert self.process is not None
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()

    def stop(self) -> int:
        """SIGTERM; returns the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.signal(signal.SIGTERM)
        try:
            return self.process.wait(START_S)
        finally:
            self.kill()

    # -- what it holds -------------------------------------------------------------------------

    def fds(self) -> int:
        return len(os.listdir(f"/proc/{self.pid}/fd"))

    def rss_kib(self) -> int:
        with open(f"/proc/{self.pid}/status") as status:
            return int(next(line for line in status if line.startswith("VmRSS:")).split()[1])


def one_config(rundir: Path, extra: str = "") -> Path:
    """Configuration of a tree of one; its socket is beside the private directory, so that guests reach it."""
    file = rundir / "broker.toml"
    sections = {"broker": f'rundir = "{rundir}/run"\nlocal_uri = "local://{rundir}/local-0"\n'}
    file.write_text(merged(sections, extra))
    rundir.chmod(0o711)
    return file


def merged(sections: dict[str, str], extra: str) -> str:
    """TOML text: ``extra`` may hold further keys of the same tables."""
    out: dict[str, str] = dict(sections)
    name = ""
    rest = []
    for line in extra.splitlines():
        head = line.strip()
        if head.startswith("[["):
            name = ""
        elif head.startswith("["):
            name = head.strip("[]")
            out.setdefault(name, "")
            continue
        if name:
            out[name] += line + "\n"
        else:
            rest.append(line)
    return "".join(f"[{table}]\n{keys}\n" for table, keys in out.items()) + "\n".join(rest) + "\n"


@contextlib.contextmanager
def one_broker(rundir: Path, extra: str = "") -> Iterator[BrokerProcess]:
    """A tree of one, ready; stopped at the end, which must go well."""
    broker = BrokerProcess(one_config(rundir, extra), 0, f"local://{rundir}/local-0")
    try:
        broker.wait_ready()
        yield broker
        if broker.process is not None and broker.process.poll() is None:
            assert broker.stop() == 0, broker.lines()[-5:]
    finally:
        broker.kill()


def tree_config(rundir: Path, addresses: list[str], extra: str = "", *, secret: bool = False) -> Path:
    """Configuration of a rank per address; ``secret``: with CURVE, one certificate for all, as deployed Flux has it."""
    file = rundir / "broker.toml"
    sections = {"broker": f'rundir = "{rundir}"\n', "tree": f"size = {len(addresses)}\n"}
    key = ""
    if secret:
        certificate = curve.generate({"name": "tests"})
        curve.save(certificate, rundir / "broker.cert")
        sections["tree"] += 'curve_cert = "broker.cert"\n'
        key = f'public_key = "{certificate.public_key}"\n'
    hosts = "".join(
        f'[[hosts]]\nrank = {rank}\nhostname = "node{rank}"\naddress = "{address}"\n{key}'
        for rank, address in enumerate(addresses)
    )
    file.write_text(merged(sections, extra) + hosts)
    return file


class Tree:
    """``size`` ranks on this machine; ``ranks[r]`` is a ``BrokerProcess``."""

    def __init__(self, rundir: Path, config: Path, prefixes: list[tuple[str, ...]]) -> None:
        self.ranks = [
            BrokerProcess(config, rank, f"local://{rundir}/local-{rank}", prefix=prefix)
            for rank, prefix in enumerate(prefixes)
        ]

    def wait_full(self, timeout: float = START_S) -> None:
        """Until rank 0 reports its whole subtree as full."""
        wait_status(self.ranks[0].uri, "full", timeout)
        last = len(self.ranks) - 1
        eventually(lambda: online(self.ranks[0].uri), f"0-{last}" if last else "0", timeout)

    def kill(self) -> None:
        for rank in self.ranks:
            if rank.process is not None and rank.process.poll() is None:
                rank.signal(signal.SIGCONT)
            rank.kill()


def online(uri: str) -> str:
    """The ranks that the instance holds to be online, as an idset."""
    with Speaker(uri) as speaker:
        answer = speaker.ask(request("groups.get", encode_json({"name": "broker.online"}), matchtag=1))
        return str(decode_json(answer.payload)["members"])


def wait_status(uri: str, status: str, timeout: float = START_S) -> None:
    until = time.monotonic() + timeout
    seen = None
    with Speaker(uri) as speaker:
        while time.monotonic() < until:
            answer = speaker.ask(request("overlay.health", matchtag=1))
            seen = decode_json(answer.payload)["status"]
            if seen == status:
                return
            time.sleep(0.05)
    raise AssertionError(f"{uri}: status {seen}, expected {status} within {timeout} s")


@contextlib.contextmanager
def tree(rundir: Path, size: int, extra: str = "") -> Iterator[Tree]:
    """A running tree over ipc whose ranks have all joined; killed at the end, whatever state it is in."""
    config = tree_config(rundir, [f"ipc://{rundir}/tree-{rank}" for rank in range(size)], extra)
    with joined(Tree(rundir, config, [()] * size)) as running:
        yield running


@contextlib.contextmanager
def tree_of_hosts(rundir: Path, lab: NetLab, extra: str = "") -> Iterator[Tree]:
    """The same over TCP with CURVE, a rank on each host of ``lab``."""
    ranks = range(lab.n)
    config = tree_config(rundir, [f"tcp://{lab.ip(rank)}:8050" for rank in ranks], extra, secret=True)
    with joined(Tree(rundir, config, [tuple(lab.inside(rank)) for rank in ranks])) as running:
        yield running


@contextlib.contextmanager
def joined(running: Tree) -> Iterator[Tree]:
    try:
        for rank in running.ranks:
            rank.wait_ready()
        running.wait_full()
        yield running
    finally:
        running.kill()


def eventually(probe: object, expected: object = True, timeout: float = 40.0) -> None:
    """Poll ``probe()`` until it returns ``expected``."""
    until = time.monotonic() + timeout
    seen = probe()
    while seen != expected and time.monotonic() < until:
        time.sleep(0.02)
        seen = probe()
    assert seen == expected, f"{seen!r} instead of {expected!r} after {timeout:g} s"


def without_progress(stderr: str) -> str:
    """What `headgate start` said beside that it waits for brokers, which it says where they take longer than 2 s."""
    return re.sub(r"^headgate: waiting for .*\n", "", stderr, flags=re.MULTILINE)
