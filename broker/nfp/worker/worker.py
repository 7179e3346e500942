"""The Worker: what a program makes, hangs its tasks on, and runs."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Unpack, overload

from broker import supervision
from broker.errors import ConfigError, HeadgateError
from broker.nfp.client.client import NfpClient
from broker.nfp.names import CLIENT_OF_WORKER, INTERNAL, MMI_WORKER, NAME_BYTES_MAX, Sender
from broker.nfp.opening import DIALECT
from broker.nfp.peer.brokers import choose_brokers
from broker.nfp.peer.channel import Channel
from broker.nfp.peer.dealer import FAILOVER_S, OPEN_TIMEOUT_S, DealerChannel
from broker.nfp.peer.keys import check_name, credentials, default_base_dir, peer_file
from broker.nfp.self_report import LogBuffer, ProcessStats
from broker.nfp.store.database import Lock
from broker.nfp.store.peers import KEEP_S, Retention
from broker.nfp.worker import builtin
from broker.nfp.worker.session import Session
from broker.nfp.worker.shared_loop import LoopWatch
from broker.nfp.worker.store import RunStore
from broker.nfp.worker.tasks import Arguments, F, Function, Task, TaskOptions, localise, make, marked
from broker.obstacles import obstacle
from broker.safe_text import texts
from broker.tasks import Tasks, first_of
from broker.transport.curve import Certificate, CurveClient

log = logging.getLogger("headgate")
Hook = Callable[["Worker"], object]
DRAIN_S: Final = 30.0
"""How long running jobs may take once the worker is told to leave."""
SLOTS: Final = 5
"""Jobs at a time when nothing is said: what deployed NorFab's workers run."""
SLOTS_MAX: Final = 64
"""Jobs at a time; a broker of ours gives no more."""
NEIGHBOURS_MAX: Final = 1000
"""Workers of one service in one folder; a machine has not room for as many processes."""
FEATURES: Final = ("recorded", "delete", "jobs")
"""What our OPEN asks for (see ``contract.FEATURES``)."""
INVENTORY_S: Final = 10.0
"""One attempt to get the inventory; deployed NorFab's workers wait 30 s and then go on without."""
RETRY_S: Final = 1.0
"""Between two attempts."""
WATCHDOG: Final = {
    "watchdog_interval": 30,
    "memory_threshold_mbyte": 1000,
    "memory_threshold_action": "log",
}
"""What the worker's inventory may say otherwise; keys and values as deployed NorFab's. The other action, "shutdown",
lets running jobs end."""
_ENDING_BYTES: Final = 12
"""Room for a number behind the name."""


class Worker:
    """A worker of one service.

    Args:
        service: what it offers. name: its identity, unique among all workers; default: see ``take_name``.
        broker: addresses in order of preference; None: see ``peer.brokers.choose_brokers``.
        server_key, key: see ``peer.keys.credentials``.
        state_dir: where jobs and keys are kept; None: ``peer.keys.default_base_dir``, or nothing where it cannot be
            written. store: False keeps jobs in memory only; default: True, except over a ``channel`` of this process.
        keep_s: how long ended jobs are kept with their results; those that no broker has recorded a day at least.
        resources: names of what it manages, which targets of jobs may name.
        jobs_at_a_time: 1 to ``SLOTS_MAX``, default ``SLOTS``; the text wants one (NFP, "Architecture").
        inventory: ask the broker's inventory for ours before the first READY; until then the worker waits.
        files: fetch files that arguments name as ``nf://PATH``.
        drain_s: see ``DRAIN_S``. failover_s, open_timeout_s, insecure: see ``DealerChannel``.
        channel: speaks to a broker in this process in place of a DEALER; brokers and keys do not count then.

    Attributes:
        inventory: what the broker's has for this worker; {} before it runs. slots: ``jobs_at_a_time``. resident: it
        lives in its broker's process, and management cannot end it. These and the others may be changed before it runs.
        ending: "" or why it ends: shutdown or restart. inventory_status: None, initialising or completed. log: the
        latest records of this process. process: what it takes. watchdog: see ``WATCHDOG``; watchdog_runs: its looks.

    Raises:
        ConfigError: a name that cannot be.
    """

    def __init__(
        self,
        service: str,
        *,
        name: str = "",
        broker: str | Sequence[str] | None = None,
        server_key: Mapping[str, str | Path] | str | Path | None = None,
        key: Certificate | str | Path | None = None,
        state_dir: str | os.PathLike[str] | None = None,
        store: bool | None = None,
        keep_s: float = KEEP_S,
        resources: Sequence[str] = (),
        jobs_at_a_time: int = SLOTS,
        inventory: bool = False,
        files: bool = True,
        drain_s: float = DRAIN_S,
        failover_s: float = FAILOVER_S,
        open_timeout_s: float = OPEN_TIMEOUT_S,
        insecure: bool = False,
        channel: Channel | None = None,
    ) -> None:
        self.service = check_service(service)
        named = name or (channel.name if channel is not None else "")
        self._usual = self._found = "" if named else usual_name(service)
        self._lock: Lock | None = None
        self.name = check_name(named or self._usual)
        self.brokers = choose_brokers(broker, os.environ)
        self.server_key = server_key
        self.key = key
        self.state_dir = Path(state_dir) if state_dir is not None else None
        self.resources = texts(resources)
        self.slots = jobs_at_a_time
        self.store = store if store is not None else channel is None or state_dir is not None
        self.keep_s = keep_s
        self.resident = False
        self.ask_inventory = inventory
        self.files = files
        self.drain_s = drain_s
        self.failover_s = failover_s
        self.open_timeout_s = open_timeout_s
        self.insecure = insecure
        self.inventory: dict[str, Any] = {}
        self.tasks: dict[str, Task] = {}
        self.ending = ""
        self.inventory_status: str | None = None
        self.log = LogBuffer(self.name, role="worker")
        self.process = ProcessStats()
        self.watchdog: dict[str, Any] = dict(WATCHDOG)
        self.watchdog_runs = 0
        self._channel = channel
        self._curves: dict[str, CurveClient] = {}
        self._session: Session | None = None
        self._client: NfpClient | None = None
        self._entering = asyncio.Lock()
        self._leave = asyncio.Event()
        self._starting: list[Hook] = []
        self._stopping: list[Hook] = []
        for function, options in marked(self):
            self._offer(function, options)

    # -- tasks ------------------------------------------------------------------------------------

    @overload
    def task(self, function: F, /) -> F: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> Callable[[F], F]: ...
    def task(self, function: F | None = None, /, **options: Unpack[TaskOptions]) -> F | Callable[[F], F]:
        """Offer the decorated function: ``@worker.task`` or ``@worker.task(idempotent=False)``.

        An asynchronous function runs in the loop, an ordinary one in a thread. A parameter named ``job`` gets a
        JobContext or ThreadContext; the others come from the request's args and kwargs. What is returned becomes the
        ``result``; a ``Result`` says more; an exception makes it a failed one. A class of workers marks its methods
        with ``broker.nfp.worker.task`` instead.

        Args:
            function: the function, when used without brackets.
            options: see ``TaskOptions``.

        Raises:
            ConfigError: there is a task of this name, or an option cannot be.
        """

        def offer(given: F) -> F:
            self._offer(given, options)
            return given

        return offer if function is None else offer(function)

    def _offer(self, function: Function, options: TaskOptions) -> None:
        task = make(function, **options)
        if task.name in self.tasks:
            raise ConfigError(f"task {task.name!r} is there twice")
        self.tasks[task.name] = task

    def starting(self, function: Hook) -> Hook:
        """Call the decorated function with this worker each time it begins, with its inventory, before READY."""
        self._starting.append(function)
        return function

    def stopping(self, function: Hook) -> Hook:
        """Call the decorated function with this worker each time it ends, once no task runs that was waited for."""
        self._stopping.append(function)
        return function

    # -- life -------------------------------------------------------------------------------------

    def main(self) -> int:
        """Run until SIGTERM or SIGINT, again when management says restart; returns 0. A second signal ends at once.

        What it is and where it keeps its jobs goes to the standard error stream.

        Raises:
            ConfigError: see ``run``.
        """
        self.take_name()
        sys.stderr.write("".join(f"{line}\n" for line in self.summary()))
        while asyncio.run(self.serve()) == "restart":
            log.info("%s: starts anew", self.name)
        return 0

    async def serve(self) -> str:
        """``run``, ended by SIGTERM or SIGINT, at once by a second one."""
        loop = asyncio.get_running_loop()
        running = loop.create_task(self.run(), name=f"worker {self.name}")
        supervision.on_signals(loop, lambda _: self.stop(), running.cancel)
        await asyncio.wait([running])
        return "shutdown" if running.cancelled() else running.result()

    async def run(self) -> str:
        """Work until ``stop``; returns "shutdown" or, when management asked for it, "restart".

        Raises:
            ConfigError: a key is missing or a file cannot be used. RuntimeError: it runs already.
        """
        if self._session is not None:
            raise RuntimeError(f"worker {self.name} runs already")
        self.take_name()
        try:
            self.ending, self.inventory, self.inventory_status = "", {}, None
            self.log, self.process = LogBuffer(self.name, role="worker"), ProcessStats()
            self._leave, self._entering = asyncio.Event(), asyncio.Lock()
            await self._live(self._open())
            return self.ending
        finally:
            self._session = None
            self.release_name()

    def _open(self) -> Session:
        """What a life needs: the way to the broker, the jobs, the tasks.

        Raises:
            ConfigError: a key is missing or a file cannot be used.
        """
        if not 1 <= self.slots <= SLOTS_MAX:
            raise ConfigError(f"{self.slots} jobs at a time, expected 1 to {SLOTS_MAX}")
        channel = self._channel
        if channel is None:
            keys: dict[str, Any] = {"key": self.key, "server_key": self.server_key, "insecure": self.insecure}
            self._curves = credentials(self.state_dir, self.name, self.brokers, **keys)
            channel = DealerChannel(
                self.brokers,
                identity=self.name,
                sender=Sender.WORKER,
                curves=self._curves,
                open_timeout_s=self.open_timeout_s,
                failover_s=self.failover_s,
                insecure=self.insecure,
            )
        self._session = Session(
            channel,
            self.service,
            {**builtin.tasks_of(self), **self.tasks},
            RunStore(self.job_file(), retention=Retention(keep_s=self.keep_s)),
            slots=self.slots,
            manage=lambda packet: builtin.answer_mmi(self, packet),
            localise=self._localise,
            inventory=self.inventory,
        )
        return self._session

    async def _live(self, session: Session) -> None:
        """From opening the store to closing the connection."""
        unrecorded = await session.store.load()
        watches, loop_watch = Tasks(), LoopWatch(session)
        try:
            if not self.resident:
                _listen(self.log)
            session.restore(unrecorded)
            if self.ask_inventory and not await first_of(self._ask_inventory(), self._leave.wait()):
                return
            try:
                for function in self._starting:
                    function(self)
                if not self.resident:  # else the broker itself is blocked
                    watches.spawn(f"watchdog of {self.name}", self._watch_memory())
                    loop_watch.start()
                session.channel.start(session, self._open_body)
                try:
                    await self._leave.wait()
                    log.info("%s: leaves (%s)", self.name, self.ending)
                finally:
                    await session.drain(self.drain_s if self.ending else 0.0)
                    await session.channel.close()
            finally:
                self._tell_stopping()
        finally:
            await watches.stop()
            loop_watch.stop()
            logging.getLogger().removeHandler(self.log)
            client, self._client = self._client, None
            if client is not None:
                await client.close()
            await session.store.close()

    def _open_body(self) -> dict[str, Any]:
        session = self.session
        return {
            "name": self.name,
            "dialect": DIALECT,
            "features": FEATURES,
            "credits": self.slots,
            "resources": self.resources,
            "tasks": {task.name: {"idempotent": task.idempotent} for task in session.tasks.values()},
            "jobs": session.listed(),
        }

    def _tell_stopping(self) -> None:
        """Nobody can be told of an error by now but who reads the log, and each function has its turn."""
        for function in self._stopping:
            try:
                function(self)
            except Exception:
                log.exception("%s: stopping failed", self.name)

    def stop(self, ending: str = "shutdown") -> None:
        """Finish what runs, within ``drain_s``, and leave; to be called in the loop's thread. Harmless twice.

        ``ending``: how ``run`` ends, shutdown or restart.
        """
        if self._session is not None:
            self.ending = self.ending or ending
            self._leave.set()

    async def _watch_memory(self) -> None:
        """Look now and then how much memory the process takes, as the watchdog of deployed NorFab's workers does."""
        for name, usual in WATCHDOG.items():
            said = self.inventory.get(name, usual)
            number = isinstance(said, (int, float)) and said > 0
            fits = number if isinstance(usual, int) else said in ("log", "shutdown")
            self.watchdog[name] = said if fits else usual
        while True:
            await asyncio.sleep(self.watchdog["watchdog_interval"])
            self.watchdog_runs += 1
            taken, most = self.process.read()["memory_rss_mbyte"], self.watchdog["memory_threshold_mbyte"]
            if taken > most:
                log.warning("%s: takes %g MiB, more than %g", self.name, taken, most)
                if self.watchdog["memory_threshold_action"] == "shutdown":
                    self.stop()

    # -- what it is called, and where its jobs are ------------------------------------------------

    def take_name(self) -> str:
        """Settle what it is called, until ``run``, which does so too, is over.

        A worker without a name is called ``SERVICE-HOST``, or ``SERVICE-HOST-2`` and so on where others that share its
        folder are called so at present: started again it finds its jobs, and its broker knows it. Where no folder can
        be written, and none was asked for, it is ``SERVICE-HOST-PID``. Whether a given name is in use its store and the
        broker tell.

        Raises:
            ConfigError: the folder cannot be used.
        """
        if self._lock is None and self.name == self._found:
            names = [f"{self._usual}-{number}" for number in range(2, NEIGHBOURS_MAX + 1)]
            try:
                found = next(filter(self._lock_name, (self._found, self._usual, *names)), "")
                if not found:
                    raise ConfigError(
                        f"{self.folder}: {NEIGHBOURS_MAX} workers are called {self._usual}; give a name"
                    )
            except ConfigError:
                if self.state_dir is not None:
                    raise
                found = f"{self._usual}-{os.getpid()}"
            self.name = self._found = found
        return self.name

    def _lock_name(self, name: str) -> bool:
        """Keep ``name`` for ourselves, by ``peers/NAME.lock``; False: another one has it."""
        path = peer_file(self.folder, name, "")
        try:
            self._lock = Lock(path, "name")
        except ConfigError:
            return False
        except OSError as error:
            raise obstacle(f"{path}.lock: {error.strerror}", error) from error
        return True

    def release_name(self) -> None:
        """Others may have it now. Harmless twice."""
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    @property
    def folder(self) -> Path:
        """Where its jobs and keys are kept."""
        return self.state_dir or default_base_dir()

    def job_file(self) -> Path | None:
        """Where its jobs are kept; None: in memory only.

        Raises:
            ConfigError: the folder that was asked for cannot be made.
        """
        if not self.store:
            return None
        try:
            path = peer_file(self.folder, self.name, ".db")
        except ConfigError:
            if self.state_dir is not None:
                raise
            return None
        return path if self.state_dir is not None or os.access(path.parent, os.W_OK | os.X_OK) else None

    def summary(self) -> list[str]:
        """What a person is told at the start: what it is, its broker, where its jobs are kept, how many run at once."""
        kept = f"jobs are kept in {self.folder}"
        if self.job_file() is None:
            kept = "jobs are kept in memory only" + (
                f": {self.folder} cannot be written" if self.store else ""
            )
        return [
            f"worker {self.name} of the service {self.service}: {', '.join(sorted(self.tasks)) or 'no tasks'}",
            f"  broker {', '.join(self.brokers)}",
            f"  {kept}",
            f"  {self.slots} {'job' if self.slots == 1 else 'jobs'} at a time",
        ]

    # -- while it runs ----------------------------------------------------------------------------

    @property
    def session(self) -> Session:
        """What it says to its broker and hears from it.

        Raises:
            RuntimeError: it does not run.
        """
        if self._session is None:
            raise RuntimeError(f"worker {self.name} does not run")
        return self._session

    @property
    def connected(self) -> bool:
        """Whether it is registered with a broker."""
        return self._session is not None and self._session.registered

    @property
    def trouble(self) -> str:
        """Why not, for people; "" while it is."""
        return "not running" if self._session is None else self._session.channel.trouble

    async def client(self) -> NfpClient:
        """The worker's own client, ``NAME-NFPClient``, connected when it is first needed, for tasks that submit jobs.

        Raises:
            RuntimeError: the worker does not run, or has no client.
        """
        if self.session.channel is self._channel or not (self.files or self.ask_inventory):
            raise RuntimeError(f"worker {self.name} has no client of its own")
        async with self._entering:  # jobs that need it at once get the same one, and not before it is open
            if self._client is None:
                client = NfpClient(
                    self.name + CLIENT_OF_WORKER,
                    broker=self.brokers,
                    server_key=self.server_key,
                    # the worker's: who lists that one has listed both names
                    key=next((each.certificate for each in self._curves.values()), None),
                    state_dir=self.folder,
                    failover_s=self.failover_s,
                    insecure=self.insecure,
                )
                await client.__aenter__()
                self._client = client
        return self._client

    async def _ask_inventory(self) -> None:
        """Ask until the broker answers."""
        self.inventory_status = "initialising"
        client, clock = await self.client(), asyncio.get_running_loop().time
        while True:
            began = clock()
            try:
                async with asyncio.timeout(INVENTORY_S):
                    found = await client.inventory(self.name)
            except (TimeoutError, HeadgateError) as error:
                log.warning("%s: no inventory yet: %s", self.name, str(error) or "no answer")
                await asyncio.sleep(max(0.0, began + RETRY_S - clock()))
            else:
                self.inventory.update(found if isinstance(found, dict) else {})
                self.inventory_status = "completed"
                return

    async def _localise(self, task: Task, args: list[Any], kwargs: dict[str, Any]) -> Arguments:
        """Fetch the files that arguments name; their paths take the place of the URLs."""
        if self._channel is not None or not self.files:
            return args, kwargs
        return await localise((args, kwargs), self._fetch, as_text=task.nf_text)

    async def _fetch(self, url: str) -> Path:
        client = await self.client()
        return (await client.fetch(url)).path


def check_service(service: str) -> str:
    """``service`` itself when a worker can offer it.

    Raises:
        ConfigError: empty, longer than a name can be, or one of the broker's own.
    """
    size = len(service.encode())
    if not 0 < size <= NAME_BYTES_MAX or "\0" in service or service in INTERNAL or service == MMI_WORKER:
        raise ConfigError(
            f"service {service[:64]!r}: expected 1 to {NAME_BYTES_MAX} bytes, and none of the broker's own"
        )
    return service


def usual_name(service: str) -> str:
    """``SERVICE-HOST``, cut to what a name may be with a number behind it."""
    whole = f"{service}-{socket.gethostname()}".encode()
    return whole[: NAME_BYTES_MAX - _ENDING_BYTES].decode(errors="ignore")


def _listen(buffer: LogBuffer) -> None:
    """Let ``buffer`` hold what the process logs; what Python shows of it without any handler it goes on showing."""
    root = logging.getLogger()
    if not root.handlers and logging.lastResort is not None:
        root.addHandler(logging.lastResort)
    root.addHandler(buffer)
