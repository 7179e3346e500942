"""NfpClient: one connection to a broker (or to the next of several), the jobs submitted through it, its questions.

Concurrency: a client belongs to the event loop that entered it; any number of its tasks may use it at once.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

from broker.errors import ConfigError, HeadgateError
from broker.nfp import bodies
from broker.nfp.client import fetch
from broker.nfp.client.events import Subscription
from broker.nfp.client.fetch import CHUNK_BYTES, Details, Fetched, Place, Progress
from broker.nfp.client.job import Job, Submission
from broker.nfp.client.limits import JOB_TIMEOUT_S, Limits
from broker.nfp.client.session import ClientSession
from broker.nfp.client.store import ClientStore
from broker.nfp.contract import EventFilter
from broker.nfp.names import ASKED_BY_MMI, JOBS, MMI_BROKER, SID, Sender
from broker.nfp.peer.brokers import choose_brokers
from broker.nfp.peer.channel import Channel
from broker.nfp.peer.dealer import FAILOVER_S, OPEN_TIMEOUT_S, DealerChannel
from broker.nfp.peer.keys import BrokerKeys, OwnKey, check_name, credentials, default_base_dir, peer_file
from broker.nfp.store.peers import Retention
from broker.nfp.targets import ALL, Targeting, target_of
from broker.tasks import checked_seconds
from broker.transport.curve import generate

log = logging.getLogger("headgate")
FETCHED: Final = "fetched"
"""Folder of fetched files in ``state_dir``."""


class NfpClient:
    """See the package for an example.

    Args:
        name: our identity, in use once at a time. Jobs of a named client are kept on disk and found again after a
            restart (``unfinished``, ``attach``). Default: a new name each time, which keeps nothing.
        broker: addresses in order of preference, ``tcp://HOST:PORT`` or ``ipc://PATH``; None: see
            ``peer.brokers.choose_brokers``.
        server_key: the broker's CURVE key: Z85, the file of its certificate, or {address: key}. Default: the one of a
            broker that has its state in ``state_dir`` or in the usual folder; without any, and for "", plaintext, which
            stays on this machine.
        key: our certificate or its file. Default: kept in ``state_dir``, for a name belongs to its key for good; a new
            one each time without a ``name``.
        state_dir: folder where jobs and key are kept; None: the usual one, ``peer.keys.default_base_dir``.
        store: False keeps no jobs on disk.
        limits: what it may hold and how long it waits.
        failover_s, open_timeout_s: see ``DealerChannel``.
        insecure: allow plaintext off this machine.
        channel: speaks to the broker in place of a DEALER; the arguments about brokers and keys do not count then.

    Attributes:
        store_path: the file where jobs are kept; None: they are not.

    Raises:
        ConfigError: an address, key or name is wrong, or a file cannot be used.
    """

    def __init__(
        self,
        name: str = "",
        *,
        broker: str | Sequence[str] | None = None,
        server_key: BrokerKeys = None,
        key: OwnKey = None,
        state_dir: str | os.PathLike[str] | None = None,
        store: bool = True,
        limits: Limits | None = None,
        failover_s: float = FAILOVER_S,
        open_timeout_s: float = OPEN_TIMEOUT_S,
        insecure: bool = False,
        channel: Channel | None = None,
    ) -> None:
        self.name = name or (channel.name if channel is not None else f"client-{uuid4().hex[:12]}")
        self.limits = limits or Limits()
        self.state_dir = None if state_dir is None else Path(state_dir)
        self._channel: Channel
        if channel is not None:
            self._channel = channel
        else:
            brokers = choose_brokers(broker, os.environ)
            own = key if key is not None or name else generate()
            curves = credentials(
                self.state_dir, self.name, brokers, key=own, server_key=server_key, insecure=insecure
            )
            self._channel = DealerChannel(
                brokers,
                identity=self.name,
                sender=Sender.CLIENT,
                curves=curves,
                failover_s=failover_s,
                open_timeout_s=open_timeout_s,
                insecure=insecure,
                refused=lambda error: self._session.on_refused(error),  # noqa: PLW0108 - it is made below
            )
        self.store_path = self._store_file() if name and store else None
        self._store: ClientStore | None = None
        self._session = ClientSession(self._channel, self.limits)
        self._folder = self.state_dir / FETCHED if self.state_dir is not None else Path.cwd()

    def _store_file(self) -> Path:
        try:
            return peer_file(self.state_dir or default_base_dir(), self.name, ".db")
        except ConfigError as error:
            raise type(error)(f"{error}; store=False keeps no jobs on disk", error.errno) from error

    # -- life -------------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        if self.store_path is not None:
            self._store = ClientStore(
                self.store_path, self.name, retention=Retention(keep_s=self.limits.keep_s)
            )
            await self._store.open()
            log.info("%s: jobs are kept in %s", self.name, self.store_path)
        self._session.start(self._store)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave: what waits raises LinkClosed, and jobs go on at the broker. Harmless twice."""
        await self._session.close()
        if self._store is not None:
            await self._store.close()

    @property
    def is_connected(self) -> bool:
        """True while there is a session with a broker."""
        return self._session.is_connected

    @property
    def broker(self) -> str:
        """The address of the broker that we have a session with, or had one last; "" before the first."""
        return self._session.broker

    @property
    def opened(self) -> dict[str, Any] | None:
        """What the broker said in its OPEN; None for deployed NorFab's, and while we are not connected yet."""
        return self._session.opened

    @property
    def trouble(self) -> str:
        """Why there is no session at present, for people; "" while there is one."""
        return self._channel.trouble

    async def wait_connected(self, timeout_s: float | None = None) -> str:
        """Wait for a session and return the broker's address. Nothing else needs this: requests wait by themselves.

        Raises:
            LinkBroken: there was none within ``timeout_s`` (None: wait for ever); the text says why. LinkRefused: keys
            do not fit, ours or the broker's.
        """
        return await self._session.wait_connected(timeout_s)

    # -- jobs -------------------------------------------------------------------------------------

    async def submit(
        self,
        service: str,
        task: str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        target: Targeting = "all",
        timeout_s: float = JOB_TIMEOUT_S,
        uuid: str = "",
        keep: bool = True,
    ) -> Job:
        """Have ``task`` run by workers of ``service`` and return the job at once, connected or not.

        ``target`` is ``all`` workers of the service, ``any`` one, or names. All results must be here within
        ``timeout_s`` seconds from now, restarts of this client included. ``uuid`` is the job's id, "" a new one; a job
        that is known is not run twice. ``keep`` writes the job to the client's store, if it has one.

        A service that takes no jobs (``names.ASKED_BY_MMI``, such as ``mmi.service.broker``) is asked by MMI, once and
        never again: an answer that is lost with the connection is a LinkBroken. The result is that of "broker".

        Raises:
            ConfigError: service, target or uuid cannot be sent. HeadgateError: EAGAIN, too many unfinished jobs.
            ValueError: ``timeout_s`` is not finite.
        """
        chosen = target_of(target)
        uuid = uuid or uuid4().hex
        check_name(service, "service")
        check_name(uuid, "uuid")
        session = self._session
        session.check_open()
        known = session.jobs.get(uuid) or session.questions.get(uuid)
        if known is not None:
            return known
        deadline = asyncio.get_running_loop().time() + checked_seconds(timeout_s)
        asked = service in ASKED_BY_MMI
        body = bodies.request(task, args, kwargs or {}, None if asked else timeout_s)
        submission = Submission(uuid, service, task, chosen, body, timeout_s, deadline)
        if asked:
            return session.question(submission, once=True)
        if not keep or self._store is None:
            return session.submit(submission)
        added = await self._store.add(submission)
        try:
            return session.submit(submission)
        except HeadgateError:
            if added:  # it was refused: a later life must not find it
                self._store.drop(uuid)
            raise

    async def run(
        self,
        service: str,
        task: str,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        target: Targeting = "all",
        timeout_s: float = JOB_TIMEOUT_S,
        check: bool = False,
    ) -> dict[str, Any]:
        """Have ``task`` run and return the results, {worker: result}. A wait that is cancelled cancels the job.

        Raises:
            JobFailed, JobCancelled, JobTimeout: the job ended so. TaskFailed: with ``check``, when a result says so.
            LinkRefused: keys do not fit, ours or the broker's.
        """
        job = await self.submit(
            service, task, args=args, kwargs=kwargs, target=target, timeout_s=timeout_s, keep=False
        )
        try:
            return await job.result(check=check)
        except asyncio.CancelledError:
            job.give_up()
            raise

    async def attach(self, uuid: str, *, service: str = "", timeout_s: float = JOB_TIMEOUT_S) -> Job:
        """Return a job that was submitted before, by this client or, for owners and on other brokers, by anybody.

        ``service`` is the job's; with "" the client asks its store, then the broker, if that is ours.

        Raises:
            RequestFailed: the broker does not know it, or keeps no jobs (then name the ``service``).
        """
        self._session.check_open()
        if (known := self._session.jobs.get(uuid)) is not None:
            return known
        stored = await self._store.find(uuid) if self._store is not None else None
        if stored is not None:
            return self._session.take_up(stored)
        check_name(uuid, "uuid")
        task, target = "", ALL
        if not service:
            shown = await self.mmi("show", service=JOBS, kwargs={"uuid": uuid, "results": False})
            service, task = str(shown["service"]), str(shown.get("task") or "")
            names = [str(name) for name in shown.get("workers") or () if name]
            target = target_of(names) if names else target_of(str(shown.get("target") or "all"))
        deadline = asyncio.get_running_loop().time() + checked_seconds(timeout_s)
        return self._session.submit(Submission(uuid, service, task, target, b"", timeout_s, deadline))

    async def unfinished(self) -> list[Job]:
        """Return the jobs of an earlier life of this client whose deadline has not passed, and those of this one.

        They go on: the client asks for results that came meanwhile, and sends jobs that were not sent.
        """
        self._session.check_open()
        if self._store is not None:
            for stored in await self._store.unfinished():
                if stored.submission.uuid not in self._session.jobs:
                    self._session.take_up(stored)
        return list(self._session.jobs.values())

    # -- questions --------------------------------------------------------------------------------

    async def mmi(
        self,
        task: str,
        *,
        service: str = MMI_BROKER,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        target: Targeting = "any",
        timeout_s: float | None = None,
    ) -> Any:
        """Return the answer of a service of the broker itself or, for ``mmi.service.worker``, of workers (``target``).

        Raises:
            RequestFailed: the answer is an error. TimeoutError: there was none within ``timeout_s`` (None:
            ``Limits.answer_s``).
        """
        patience_s = self.limits.answer_s if timeout_s is None else timeout_s
        return await self._session.ask(
            service, task, args, kwargs, target=target_of(target), timeout_s=patience_s
        )

    async def inventory(self, name: str = "") -> Any:
        """Return what the broker's inventory has for the worker ``name`` ("": for us); None when it has nothing."""
        return await self.mmi("get_inventory", service=SID, kwargs={"name": name or self.name})

    async def services(self) -> list[dict[str, Any]]:
        """Return the services as ``show_services`` tells them; of deployed NorFab's broker names and workers."""
        if self.opened is not None:
            return list(await self.mmi("show_services"))
        found: dict[str, list[str]] = {}
        for worker in await self.workers():
            found.setdefault(str(worker["service"]), []).append(str(worker["name"]))
        return [{"name": name, "workers": names, "alive": len(names)} for name, names in found.items()]

    async def workers(self, service: str = "") -> list[dict[str, Any]]:
        """Return the workers of ``service`` ("": of all) as ``show_workers`` tells them."""
        kwargs = {"service": service or "all", "status": "all"}
        told = await self.mmi("show_workers", kwargs=kwargs)
        return [worker for worker in told if isinstance(worker, dict) and worker.get("name")]

    async def jobs(self, /, **wanted: Any) -> list[dict[str, Any]]:
        """Return jobs of the broker's store, the newest first: our own; for an owner everybody's.

        Args:
            wanted: ``service``, ``task``, ``state``, ``worker``, ``client``, ``limit``; see ``management.jobs``.
        """
        told = await self.mmi("list", service=JOBS, kwargs=wanted)
        return list(told["jobs"])

    def subscribe(
        self, *, uuid: str = "", service: str = "", kinds: Iterable[str] = (), since: int | None = None
    ) -> Subscription:
        """Subscribe to events of all jobs that we may see, for an ``async with`` block; the broker has to be ours.

        ``uuid``, ``service`` and ``kinds`` leave out other events. With ``since`` the events behind that sequence
        number that the broker still has come first (0: all of them).
        """
        return Subscription(self._session.subscriptions, EventFilter(uuid, service, frozenset(kinds)), since)

    # -- files ------------------------------------------------------------------------------------

    async def fetch(
        self,
        url: str,
        to: Place = None,
        *,
        progress: Progress | None = None,
        timeout_s: float = JOB_TIMEOUT_S,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> Fetched:
        """Fetch the file ``nf://PATH`` and return where it is; a copy that is here and the same is not sent again.

        ``to`` is a file or folder, or a function of the file's Details that says where it goes; by default PATH below
        ``state_dir/fetched`` or, without ``state_dir``, below the present folder. Of several that fetch the same
        content to the same place one does, the others wait. ``progress`` is called with (bytes here, bytes in all).

        Raises:
            FetchFailed: nobody has it, or it did not come whole; what came is kept and continued next time.
        """
        how: dict[str, Any] = {"progress": progress, "timeout_s": timeout_s, "chunk_bytes": chunk_bytes}
        return await fetch.fetch(self, url, to, self._folder, **how)

    async def list_files(self, url: str = "nf://", *, timeout_s: float = 60.0) -> list[str]:
        """Return the names in a folder of the shared files, of all workers together."""
        return await fetch.list_names(self, url, timeout_s)

    async def file_details(self, url: str, *, timeout_s: float = 60.0) -> Details:
        """Return size and digests of a shared file, as most workers have it.

        Raises:
            FetchFailed: ENOENT, nobody has it.
        """
        return (await fetch.find(self, url, timeout_s))[0]
