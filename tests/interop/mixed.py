"""Trees in which some ranks are real flux-core brokers and some are ours, over CURVE on loopback.

Ours run in the test's own process, or in one of their own, which may be stopped and killed.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import sys

import broker.client
from broker import settings
from broker.node.assembly import Node
from broker.transport import curve
from tests.live.ports import free_ports

QUIET = ("-Slog-stderr-mode=local", "-Slog-stderr-level=6")
NO_SCRIPTS = ("-Sbroker.rc1_path=", "-Sbroker.rc3_path=")
"""Without them a real broker starts the modules of a scheduler, which want a real rank 0."""
PATIENCE_S = 40
RUN = """
import sys
from broker import settings
from broker.node.bootstrap import run
sys.exit(run(settings.load(sys.argv[1]).at_rank(int(sys.argv[2]))))
"""


class Mixed:
    """One instance: ``real`` starts a flux-broker as a rank, ``ours`` a Node here, ``apart`` one in its own process.

    ``prefix`` may be None where no rank is real; ``tree`` is text for the section ``tree`` of our settings. One
    certificate serves all ranks, as deployed Flux has it.
    """

    def __init__(self, prefix, rundir, size, topology="kary:2", tree=""):
        self.flux = str(prefix / "bin" / "flux") if prefix is not None else ""
        self.tree = tree
        self.dir = rundir
        self.size = size
        self.topology = topology
        self.certificate = curve.generate({"name": "mixed"})  # a real parent wants a name
        curve.save(self.certificate, rundir / "curve.cert")
        self.addresses = [f"tcp://127.0.0.1:{port}" for port in free_ports(size)]
        self.processes: dict[int, subprocess.Popen] = {}
        self.nodes: dict[int, Node] = {}
        self.config = rundir / "conf"
        self.config.mkdir()
        (self.config / "bootstrap.toml").write_text(self._flux_config())

    def _flux_config(self):
        hosts = "".join(
            f'[[bootstrap.hosts]]\nhost = "fake{rank}"\nbind = "{address}"\nconnect = "{address}"\n'
            for rank, address in enumerate(self.addresses)
        )
        names = f"fake[0-{self.size - 1}]"
        resources = f'[resource]\nnoverify = true\n[[resource.config]]\nhosts = "{names}"\ncores = "0"\n'
        return f'[bootstrap]\ncurve_cert = "{self.dir}/curve.cert"\n{hosts}{resources}'

    def settings(self, rank, extra="", certificate=None):
        """Our settings for ``rank``; ``extra`` goes into the section ``broker``."""
        return settings.loads(self.text(rank, extra, certificate)).at_rank(rank)

    def text(self, rank, extra="", certificate=None):
        path = self.dir / f"ours{rank}.cert"
        curve.save(certificate or self.certificate, path, replace=True)
        hosts = "".join(
            f'[[hosts]]\nrank = {each}\naddress = "{address}"\nhostname = "fake{each}"\n'
            f"public_key = '{self.certificate.public_key}'\n"
            for each, address in enumerate(self.addresses)
        )
        return (
            f'[broker]\nrank = {rank}\nrundir = "{self.rundir(rank)}"\n{extra}\n'
            f'[tree]\ntopology = "{self.topology}"\nsize = {self.size}\ncurve_cert = "{path}"\n{self.tree}\n{hosts}'
        )

    def rundir(self, rank):
        path = self.dir / f"run{rank}"
        path.mkdir(mode=0o700, exist_ok=True)
        return path

    def uri(self, rank):
        return f"local://{self.rundir(rank)}/local-{rank}"

    def connect(self, rank):
        """Our client, at ``rank``."""
        return broker.client.connect(self.uri(rank))

    # -- ranks ---------------------------------------------------------------------------------

    def real(self, rank, *options):
        """Start a flux-broker; it is ready when ``state`` says so."""
        command = [
            self.flux,
            "broker",
            f"-c{self.config}",
            f"-Shostname=fake{rank}",
            f"-Srundir={self.rundir(rank)}",
            f"-Slocal-uri={self.uri(rank)}",
            f"-Stbon.topo={self.topology}",
            "-Sbroker.rc2_none=1",
            *QUIET,
            *(options or NO_SCRIPTS),
        ]
        with open(self.dir / f"real{rank}.log", "a") as log:
            self.processes[rank] = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT
            )

    def apart(self, rank, extra=""):
        """Start one of ours in a process of its own; it is ready when ``state`` says so."""
        path = self.dir / f"ours{rank}.toml"
        path.write_text(self.text(rank, extra))
        with open(self.dir / f"apart{rank}.log", "a") as log:
            self.processes[rank] = subprocess.Popen(
                [sys.executable, "-c", RUN, str(path), str(rank)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    async def ours(self, rank, extra="", certificate=None, leave=None) -> Node:
        """Start one of ours; returns once it has joined its parent."""
        node = self.nodes[rank] = Node(self.settings(rank, extra, certificate), leave=leave)
        async with asyncio.timeout(PATIENCE_S):
            await node.start()
        return node

    async def state(self, rank, wanted="run"):
        """Wait until a rank is in a state of its lifecycle; its log is the error otherwise."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                while not await self._is_in(rank, wanted):
                    await asyncio.sleep(0.05)
        except TimeoutError:
            raise AssertionError(f"rank {rank} is not in state {wanted}:\n{self.log(rank)}") from None

    async def _is_in(self, rank, wanted):
        with contextlib.suppress(OSError, broker.errors.HeadgateError):
            async with self.connect(rank) as h:
                return (await h.rpc("state-machine.get")).json()["state"] == wanted
        return False

    def log(self, rank):
        paths = [self.dir / f"{kind}{rank}.log" for kind in ("real", "apart")]
        return "".join(path.read_text()[-3000:] for path in paths if path.exists())

    async def run(self, rank, *args):
        """A flux command at a rank; its output, errors included."""
        process = await asyncio.create_subprocess_exec(
            self.flux,
            *args,
            env={**os.environ, "FLUX_URI": self.uri(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        try:
            async with asyncio.timeout(PATIENCE_S):
                output = (await process.communicate())[0].decode()
        except TimeoutError:
            process.kill()
            await process.wait()
            raise AssertionError(f"flux {' '.join(args)} does not end") from None
        assert process.returncode == 0, output
        return output

    # -- ends ----------------------------------------------------------------------------------

    def kill(self, rank, number=signal.SIGKILL):
        self.processes[rank].send_signal(number)

    async def wait(self, rank):
        """The exit code of a real rank."""
        async with asyncio.timeout(PATIENCE_S):
            return await asyncio.to_thread(self.processes[rank].wait)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *_error):
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        for rank in sorted(self.nodes, reverse=True):
            await self.nodes[rank].stop()
