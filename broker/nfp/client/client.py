"""NfpClient: one connection to a broker (or to the next of several), what is asked over it, from the request to the
last answer: jobs, and questions.

A *job* goes to workers. Until the broker has answered its POST, the POST is sent again under the same uuid. At every
new session with a broker that has OPEN, every unfinished job is POSTed again: it is known there (then the broker tells
its state anew) or it is not (then it runs). A deployed NorFab broker remembers no job, so what its workers have is
asked for with GET, and only what nobody has confirmed is POSTed again. A DELETE that could not be sent, or whose answer
was lost with the connection, goes out in front of everything else at the next session, and its job is not posted again.

A *question* is answered by the broker itself, at once: management, inventory, events, the jobs of its store (NFP,
"MMI"). One whose answer was lost with the connection is asked again in the next session, except where that would be
done twice (``Question.once``).

Each has one timer, for whichever of deadline, resend and poll comes first.

Concurrency: a client belongs to the event loop that entered it; any number of its tasks may use it at once.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from uuid import uuid4

import msgspec

from broker.errors import ConfigError, HeadgateError, LinkBroken, LinkClosed, LinkRefused
from broker.nfp import bodies
from broker.nfp.client import fetch
from broker.nfp.client.errors import JobFailed, JobTimeout, RequestFailed
from broker.nfp.client.events import Subscription, Subscriptions
from broker.nfp.client.fetch import Details, Fetched, Progress
from broker.nfp.client.job import JOB_TIMEOUT_S, Job, JobOwner, Limits, Question, Submission
from broker.nfp.client.store import ENDS, ClientStore, StoredJob
from broker.nfp.contract import EventFilter
from broker.nfp.frames import Packet
from broker.nfp.names import ASKED_BY_MMI, JOBS, MMI_BROKER, SID, Code, Command, Sender
from broker.nfp.opening import DIALECT, broker_of
from broker.nfp.outcome import CANCELLED, worker_of
from broker.nfp.peer.brokers import choose_brokers
from broker.nfp.peer.channel import Channel
from broker.nfp.peer.dealer import FAILOVER_S, OPEN_TIMEOUT_S, DealerChannel
from broker.nfp.peer.keys import BrokerKeys, OwnKey, check_name, credentials, default_base_dir, peer_file
from broker.nfp.peer.liveness import BrokerLiveness
from broker.nfp.store.peers import Retention
from broker.nfp.targets import ALL, ANY, Target, Targeting, target_of
from broker.tasks import Tasks, awaited_seconds, checked_seconds, within
from broker.transport.curve import generate

log = logging.getLogger("headgate")
FETCHED: Final = "fetched"
"""Folder of fetched files in ``state_dir``."""
PUSH: Final = "push"
ONCE: Final = frozenset({"restart", "shutdown", "disconnect"})
"""Tasks of management that end connections: their answers may well be lost with them."""
RETRY_S: Final = 0.05
"""Until a full outbox is tried again."""
SUBSCRIBE_AGAIN_S: Final = 1.0
"""Until a broker that is there, and did not take the subscription, is asked again."""
_LOST: Final = "the connection was lost before the answer; it may have been done, and is not asked again"


class NfpClient(JobOwner):
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
        broker: the address of the broker that we have a session with, or had one last; "" before the first.
        opened: what the broker said in its OPEN; None for deployed NorFab's, and while we are not connected yet.
        unknown: packets about jobs that are not here, dropped.

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
        self.broker = ""
        self.opened: dict[str, Any] | None = None
        self.unknown = 0
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
                refused=self.on_refused,
            )
        self.store_path = self._store_file() if name and store else None
        self._store: ClientStore | None = None
        self._folder = self.state_dir / FETCHED if self.state_dir is not None else Path.cwd()
        self._loop: asyncio.AbstractEventLoop
        self._liveness: BrokerLiveness
        self._started = self._closed = False
        self._connected = asyncio.Event()
        self._refusal: LinkRefused | None = None
        self._pushes = False
        self._epoch = ""
        self._message_bytes = 0
        self._jobs: dict[str, Job] = {}
        """The unfinished ones, in the order they were submitted."""
        self._questions: dict[str, Question] = {}
        """Those without an answer."""
        self._deleted: dict[str, Job] = {}
        """Deleted here, and the broker does not know yet; oldest first."""
        self._unasked: deque[Question] = deque()
        self._waiting: deque[Job] = deque()
        self._at_broker: set[str] = set()
        self._retrying = False
        self._probe_uuid = uuid4().hex
        self._tasks = Tasks()
        self._behind = self._subscribing = False
        bounds = (self.limits.subscription_msgs, self.limits.stream_bytes)
        self._subscriptions = Subscriptions(self.mmi, self._subscribe_soon, bounds)

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
        self._started = True
        self._loop = asyncio.get_running_loop()
        self._liveness = BrokerLiveness(self._channel, self._awaits, self._probe, self._loop)
        self._channel.start(self, self._open_body)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Leave: what waits raises LinkClosed, and jobs go on at the broker; those on disk stay unfinished there.

        Harmless twice.
        """
        self._closed = True
        if self.is_connected:
            self._end_session()
        for job in (*self._questions.values(), *self._jobs.values()):
            job.finish(LinkClosed(f"{job.title}: the client was closed"))
        self._subscriptions.close(LinkClosed("the client was closed"))
        self._deleted.clear()
        await self._tasks.stop()
        await self._channel.close()
        if self._store is not None:
            await self._store.close()

    def _check_open(self) -> None:
        if self._closed:
            raise LinkClosed("the client was closed")
        if not self._started:
            raise LinkClosed("the client is not open: use `async with NfpClient(...)`")

    @property
    def is_connected(self) -> bool:
        """True while there is a session with a broker."""
        return self._connected.is_set()

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
        try:
            async with within(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            text = (
                f"{self._channel.broker}: not connected within {timeout_s:g} s: {self.trouble or 'no answer'}"
            )
            raise LinkBroken(text) from None
        if self._refusal is not None:
            raise self._refusal
        return self.broker

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
        self._check_open()
        known = self._jobs.get(uuid) or self._questions.get(uuid)
        if known is not None:
            return known
        deadline = self._loop.time() + checked_seconds(timeout_s)
        asked = service in ASKED_BY_MMI
        body = bodies.request(task, args, kwargs or {}, None if asked else timeout_s)
        submission = Submission(uuid, service, task, chosen, body, timeout_s, deadline)
        if asked:
            return self._question(submission, once=True)
        if not keep or self._store is None:
            return self._job(submission)
        added = await self._store.add(submission)
        try:
            return self._job(submission)
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
        self._check_open()
        if (known := self._jobs.get(uuid)) is not None:
            return known
        stored = await self._store.find(uuid) if self._store is not None else None
        if stored is not None:
            return self._take_up(stored)
        check_name(uuid, "uuid")
        task, target = "", ALL
        if not service:
            shown = await self.mmi("show", service=JOBS, kwargs={"uuid": uuid, "results": False})
            service, task = str(shown["service"]), str(shown.get("task") or "")
            names = [str(name) for name in shown.get("workers") or () if name]
            target = target_of(names) if names else target_of(str(shown.get("target") or "all"))
        deadline = self._loop.time() + checked_seconds(timeout_s)
        return self._job(Submission(uuid, service, task, target, b"", timeout_s, deadline))

    async def unfinished(self) -> list[Job]:
        """Return the jobs of an earlier life of this client whose deadline has not passed, and those of this one.

        They go on: the client asks for results that came meanwhile, and sends jobs that were not sent.
        """
        self._check_open()
        if self._store is not None:
            for stored in await self._store.unfinished():
                self._take_up(stored)
        return list(self._jobs.values())

    def _job(self, submission: Submission, stored: StoredJob | None = None) -> Job:
        """Begin to look after a job; it is posted as soon as possible. ``stored``: what came before a restart.

        One of this uuid that is looked after already is returned as it is: somebody may have asked for it while the
        caller waited for the disk or the broker.
        """
        if (known := self._jobs.get(submission.uuid)) is not None:
            return known
        self._check_room(len(self._jobs), "jobs are unfinished")
        job = Job(submission, self)
        if stored is not None:
            stored.restore(job)
        self._jobs[job.uuid] = job
        job.known = not submission.body or stored is not None
        self._waiting.append(job)
        self._pump()
        self._arm(job, submission.deadline)
        return job

    def _take_up(self, stored: StoredJob) -> Job:
        """Go on with a job that was kept; one that is over ends as it did."""
        if stored.state not in ENDS:
            return self._job(stored.submission, stored)
        job = Job(stored.submission, self)
        stored.restore(job)
        job.finish(stored.error_of(job))
        return job

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

        What is in ``ONCE`` is not asked again on another connection.

        Raises:
            RequestFailed: the answer is an error. TimeoutError: there was none within ``timeout_s`` (None:
            ``Limits.answer_s``). LinkClosed: the client is not open. LinkBroken: the connection was lost before the
            answer to a question asked once, which may have been done. LinkRefused: no broker lets us in, because of
            keys. HeadgateError: EAGAIN, too many wait. ValueError: ``timeout_s`` is nan.
        """
        patience_s = self.limits.answer_s if timeout_s is None else timeout_s
        body = bodies.request(task, args, kwargs or {}, None)
        deadline = asyncio.get_running_loop().time() + awaited_seconds(patience_s)
        submission = Submission(uuid4().hex, service, task, target_of(target), body, patience_s, deadline)
        question = self._question(submission, once=task in ONCE)
        try:
            await question.wait()
        finally:
            question.give_up()
        if isinstance(question.error, JobFailed):
            raise RequestFailed(str(question.error), question.error.status)
        if isinstance(question.error, JobTimeout):
            raise TimeoutError(str(question.error))
        if question.error is not None:
            raise question.error
        return question.value

    def _question(self, submission: Submission, *, once: bool) -> Question:
        """Ask, now or when there is a connection; ``once``: not again when that one is lost, see ``Question``."""
        self._check_room(len(self._questions), "questions wait")
        question = self._questions[submission.uuid] = Question(submission, self, once=once)
        self._unasked.append(question)
        self._pump()
        self._arm(question, submission.deadline)
        return question

    def _check_room(self, waiting: int, what: str) -> None:
        self._check_open()
        if waiting >= self.limits.jobs:
            raise HeadgateError(f"{waiting} {what}, that is the limit", errno.EAGAIN)

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
        return Subscription(self._subscriptions, EventFilter(uuid, service, frozenset(kinds)), since)

    # -- files ------------------------------------------------------------------------------------

    async def fetch(
        self,
        url: str,
        to: str | os.PathLike[str] | None = None,
        *,
        progress: Progress | None = None,
        timeout_s: float = JOB_TIMEOUT_S,
    ) -> Fetched:
        """Fetch the file ``nf://PATH`` and return where it is; a copy that is here and the same is not sent again.

        ``to`` is a file or folder; by default PATH below ``state_dir/fetched`` or, without ``state_dir``, below the
        present folder. Of several that fetch the same content to the same place one does, the others wait.
        ``progress`` is called with (bytes here, bytes in all).

        Raises:
            FetchFailed: nobody has it, or it did not come whole; what came is kept and continued next time.
        """
        return await fetch.fetch(self, url, to, self._folder, progress=progress, timeout_s=timeout_s)

    async def list_files(self, url: str = "nf://", *, timeout_s: float = 60.0) -> list[str]:
        """Return the names in a folder of the shared files, of all workers together."""
        return await fetch.list_names(self, url, timeout_s)

    async def file_details(self, url: str, *, timeout_s: float = 60.0) -> Details:
        """Return size and digests of a shared file, as most workers have it.

        Raises:
            FetchFailed: ENOENT, nobody has it.
        """
        return (await fetch.find(self, url, timeout_s))[0]

    # -- the connection (peer.channel.Receiver) ---------------------------------------------------

    def _open_body(self) -> dict[str, Any]:
        return {"name": self._channel.name, "dialect": DIALECT, "features": [PUSH]}

    def on_connect(self, broker: str, opened: dict[str, Any] | None) -> None:
        """Note that a session begins: what has no answer is asked again, and every unfinished job made known."""
        again, said = self.is_connected, broker_of(opened or {})
        self.broker, self.opened, self._refusal = broker, opened, None
        self._connected.set()
        self._liveness.begin(opened)
        self._pushes = PUSH in said.features
        self._message_bytes = said.message_bytes
        self._unasked = deque(each for each in self._questions.values() if not (each.once and each.sent))
        if self._pushes or not again:
            self._waiting = deque(self._jobs.values())
            self._at_broker.clear()
            self._deleted |= {job.uuid: job for job in self._waiting if job.cancelling is not None}
            if opened is not None:
                self._reopen(said.epoch)
        self._pump()
        if len(self._subscriptions):
            self._subscribe_soon()

    def _reopen(self, epoch: str) -> None:
        """A broker that remembers jobs is posted all of them, and says what it knows."""
        for job in self._jobs.values():
            # one that does not know our jobs counts their time from now on, as their POST says; see ``_due``
            job.moved |= bool(self._epoch) and epoch != self._epoch
            if job.submission.body:
                job.outcome.reopen()
        self._epoch = epoch

    def _subscribe_soon(self) -> None:
        """Have the subscriptions made anew: by one task, which does it again for what is asked meanwhile."""
        if not self.is_connected:
            return  # the next session begins with it
        self._behind = True
        if not self._subscribing:
            self._subscribing = True
            self._tasks.spawn(f"events of {self.name}", self._subscribe_again())

    async def _subscribe_again(self) -> None:
        try:
            while self._behind and self.is_connected:
                self._behind = False
                try:
                    await self._subscriptions.resubscribe()
                except (TimeoutError, HeadgateError) as error:
                    text = "%s: the broker did not take the subscription, and is asked again: %s"
                    log.warning(text, self.name, error)
                    self._loop.call_later(SUBSCRIBE_AGAIN_S, self._subscribe_soon)
        finally:
            self._subscribing = False

    def on_packet(self, packet: Packet) -> None:
        """Hand on a packet of the broker.

        Deployed NorFab's answers a question twice, as RESPONSE and as MMI; the first one counts.
        """
        if packet.uuid == self._probe_uuid:
            return
        if packet.command is Command.EVENT and self._subscriptions.take(packet):
            return
        job = self._questions.get(packet.uuid) or self._jobs.get(packet.uuid)
        if job is None:
            self.unknown += packet.command is not Command.MMI
            return
        job.heard = self._loop.time()
        error = packet.command is Command.RESPONSE and packet.status >= Code.UNKNOWN
        if error and self._is_passing(job, packet):
            return
        job.take(packet)
        if packet.command is Command.EVENT and not self._pushes and not job.done:
            self._ask_if_ready(job, packet)

    def _ask_if_ready(self, job: Job, packet: Packet) -> None:
        """``result_ready``: at a broker that does not push, the result has to be asked for."""
        if bodies.event_kind(packet.data) != "result_ready":
            return
        worker = worker_of(packet.data)
        if worker and worker not in job.outcome.results:
            self.send(job, Command.GET, job.submission.body, Target("list", (worker,)))

    def _is_passing(self, job: Job, packet: Packet) -> bool:
        """Whether an error says no more than that a deployed NorFab broker cannot answer at present.

        Its 400 to a GET means that the worker is not connected now; 404 of a worker that it never got the job, which
        it is given again. Our broker does not answer so while a job may still end.
        """
        if self._pushes or not job.workers or job.cancelling is not None:
            return False
        if packet.status == Code.NOT_FOUND:
            worker = worker_of(packet.data)
            known = worker in job.outcome.outstanding
            return known and self._post(job, self._loop.time(), worker)
        return packet.status == Code.UNKNOWN

    def on_disconnect(self, why: str) -> None:
        """Note that the session is over; deadlines go on, and what must not be asked twice is given up."""
        log.info("%s: %s", self.name, why)
        self._end_session()
        for question in list(self._questions.values()):
            if question.once and question.sent:
                question.finish(LinkBroken(f"{question.service}: {_LOST}"))

    def _end_session(self) -> None:
        self._connected.clear()
        self._liveness.end()
        self._subscriptions.forget_session()

    def on_refused(self, error: LinkRefused) -> None:
        """Tell who waits, and end what no broker can have: none lets us in, and none ever has.

        The channel tries on, so that a new attempt of the caller goes well once the keys are right.
        """
        self._refusal = error
        self._connected.set()  # wakes who waits now
        self._connected.clear()
        for job in (*self._questions.values(), *self._jobs.values()):
            if not job.known:
                job.finish(LinkRefused(str(error), error.errno))

    def _awaits(self) -> bool:
        return bool(self._questions or self._jobs or len(self._subscriptions))

    def _probe(self) -> None:
        """Send what the broker answers at once: ours every OPEN, whatever its rules, deployed NorFab's only MMI."""
        if self.opened is not None:
            packet = Packet(Sender.CLIENT, Command.OPEN, body=msgspec.json.encode(self._open_body()))
        else:
            body = bodies.request("show_broker_version", (), {}, None)
            packet = Packet(Sender.CLIENT, Command.MMI, service=MMI_BROKER, target=ANY, body=body)
            packet.uuid = self._probe_uuid
        self._channel.send(packet)

    # -- sending ----------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Hand over what waits while there is room in the outbox, and jobs while the broker takes more of them."""
        if not self.is_connected or (
            (not self._deleted or self._send_deletes())
            and (not self._unasked or self._send_questions())
            and (not self._waiting or self._send_jobs())
        ):
            return
        if not self._retrying:  # the outbox is full: go on once it is shorter
            self._retrying = True
            self._loop.call_later(RETRY_S, self._retry)

    def _retry(self) -> None:
        self._retrying = False
        self._pump()

    def _send_deletes(self) -> bool:
        """Send what DELETEs there are; False when there was no room for all, as the next two."""
        for uuid, job in list(self._deleted.items()):
            if not self.send(job, Command.DELETE, job.submission.body or b"{}"):
                return False
            del self._deleted[uuid]
        return True

    def _send_questions(self) -> bool:
        waiting = self._unasked
        while waiting:
            question = waiting[0]
            if not question.done and not self._refuse_too_large(question):
                if not self.send(question, Command.MMI, question.submission.body):
                    return False
                question.sent = True
            waiting.popleft()
        return True

    def _send_jobs(self) -> bool:
        waiting = self._waiting
        while waiting and len(self._at_broker) < self.limits.at_broker_msgs:
            job = waiting.popleft()
            if job.done or job.uuid in self._at_broker or job.cancelling is not None:
                continue
            if self._refuse_too_large(job):
                continue
            if not self._hand_over(job):
                waiting.appendleft(job)
                return False
            self._at_broker.add(job.uuid)
        return True

    def _refuse_too_large(self, job: Job) -> bool:
        """End what the broker would end the connection for, each time that it comes; False: it is not too large."""
        size, most = len(job.submission.body), self._message_bytes
        if not most or size <= most:
            return False
        text = f"the request has {size} bytes, the broker takes {most} (nfp.message_bytes_max)"
        job.finish(JobFailed(text, Code.UNKNOWN, job.uuid))
        return True

    def _hand_over(self, job: Job) -> bool:
        now = self._loop.time()
        if not job.submission.body or (job.outcome.acknowledged and job.workers):  # "": somebody else's POST
            sent = self._get(job, now)
            self._arm(job, now + self._patience_s(job))
            return sent
        return self._post(job, now)

    def _post(self, job: Job, now: float, worker: str = "") -> bool:
        target = Target("list", (worker,)) if worker else None
        if not self.send(job, Command.POST, job.submission.body, target):
            return False
        job.posted, job.known = now, True
        self._arm(job, now + self.limits.resend_s)
        return True

    def _get(self, job: Job, now: float) -> bool:
        names = job.outcome.outstanding
        target = Target("list", names) if names and job.workers else None
        body = job.submission.body or bodies.request(job.task, (), {}, None)
        if not self.send(job, Command.GET, body, target):
            return False
        job.asked = now
        return True

    def send(self, job: Job, command: Command, body: bytes, target: Target | None = None) -> bool:
        """See ``JobOwner``."""
        return self.is_connected and self._channel.send(job.packet(command, body, target))

    # -- time -------------------------------------------------------------------------------------

    def _patience_s(self, job: Job) -> float:
        """After how long a silence a job is asked for; nothing is pushed about other people's."""
        if not job.submission.body:
            return self.limits.poll_attached_s
        return self.limits.poll_pushed_s if self._pushes else self.limits.poll_s

    def _arm(self, job: Job, due: float) -> None:
        """One timer a job, at the earliest thing that may be due; what is due is decided when it fires."""
        if job.done:
            return
        due = min(due, job.submission.deadline)
        if job.timer is not None:
            if job.timer.when() <= due and not job.timer.cancelled():
                return
            job.timer.cancel()
        job.timer = self._loop.call_at(due, self._due, job)

    def _due(self, job: Job) -> None:
        job.timer = None
        now = self._loop.time()
        deadline = job.submission.deadline
        if now >= deadline:
            job.expire(self.trouble)
            if job.moved:
                self._delete(job)  # this broker would still have it run
            return
        next_at = deadline
        if self.is_connected and job.uuid in self._at_broker and job.cancelling is None:
            next_at = self._ask_again(job, now)
        self._arm(job, max(next_at, now + 0.001))

    def _ask_again(self, job: Job, now: float) -> float:
        """POST or GET when it is time; returns when to look again."""
        unsure = job.submission.body and not job.outcome.acknowledged
        wait_s = self.limits.resend_s if unsure else self._patience_s(job)
        due = (job.posted if unsure else max(job.heard, job.asked, job.posted)) + wait_s
        if now < due:
            return due
        if unsure:
            self._post(job, now)
        else:
            self._get(job, now)
        return now + wait_s

    # -- the end (job.JobOwner) -------------------------------------------------------------------

    def keep_progress(self, job: Job) -> None:
        """Keep what has come; who works on it is worth keeping at a broker that remembers no job."""
        if self._store is not None:
            if not self._pushes:
                self._store.keep_workers(job.uuid, job.workers)
            self._store.keep_results(job)

    async def cancel(self, job: Job) -> bool:
        """See ``Job.cancel``."""
        if job.done:
            return False
        if not job.known:
            job.give_up()  # nobody else knows of it
            return True
        if job.cancelling is None:
            job.cancelling = self._loop.create_future()
        try:
            self._delete(job)
            async with asyncio.timeout(self.limits.answer_s):
                return await asyncio.shield(job.cancelling)
        except TimeoutError:
            return False
        finally:
            job.cancelling = None
            job.finish(job.cancellation())

    def abandon(self, job: Job) -> None:
        """Tell the broker that nobody waits for ``job`` any more; its answer does not matter."""
        if job.known:
            self._delete(job)

    def _delete(self, job: Job) -> None:
        """Have the broker end it: now, or when it can be told."""
        self._deleted[job.uuid] = job
        if len(self._deleted) > self.limits.jobs:
            del self._deleted[next(iter(self._deleted))]
        self._pump()

    def forget(self, job: Job) -> None:
        """Forget what is over; a job that waits may take its place at the broker."""
        if job.timer is not None:
            job.timer.cancel()
        if self._questions.pop(job.uuid, None) is not None or self._jobs.pop(job.uuid, None) is None:
            return  # no job, or one that was over when it was found again
        self._at_broker.discard(job.uuid)
        if job.cancelling is not None and not job.cancelling.done():
            job.cancelling.set_result(job.status == CANCELLED)
        if self._store is not None and not self._closed:
            self._store.end(job.uuid, job.status, str(job.error or ""))
        if self._waiting and not self._closed:
            self._pump()
