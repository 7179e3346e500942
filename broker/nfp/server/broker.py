"""The broker of NFP, put together (NFP, "NFP/Broker").

The walk of a message: ``router`` reads it, ``ingress`` decodes it, answers it or hands it to the dispatcher, which
writes down what must not be lost and queues what is to be said. At the end of the turn the store
gets what was written down, and the outboxes let go what does not wait for it.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Final

from broker.endpoints import parse
from broker.errors import ConfigError
from broker.journal.options import JournalOptions
from broker.nfp.contract import JobEvent, Peer, unnoticed
from broker.nfp.inventory import Datastore, Reader
from broker.nfp.jobs import DispatchConfig, Dispatcher
from broker.nfp.management import SERVICES, EventBus, Questions
from broker.nfp.management.jobs import SEARCHES_MAX
from broker.nfp.names import CLIENT_OF_WORKER, Sender
from broker.nfp.principal import Principal, Standing
from broker.nfp.records import JobAdded, Op, WorkerSeen
from broker.nfp.self_report import LogBuffer, ProcessStats
from broker.nfp.server.files_worker import FilesWorker
from broker.nfp.server.ingress import Ingress
from broker.nfp.server.local import LocalChannel, LocalPeer, OnPacket
from broker.nfp.server.names import BrokerKeys, NameOwners, access_of, prepare
from broker.nfp.server.recording import Recording
from broker.nfp.server.router import EVERYBODY, NfpRouter
from broker.nfp.server.turn import QueuedPeer, QueueLimits, Turn
from broker.nfp.store import NoStore, Store
from broker.settings.nfp import NfpSection
from broker.transport.byte_stream import all_left
from broker.transport.zeromq.listening import SCHEMES

log = logging.getLogger("headgate")
FAREWELL_S: Final = 1.0
"""How long a stop waits for peers to take what was said to them."""
LINGER_S: Final = 0.25
"""How long an end waits for peers to take what was written to them."""
_POLL_S: Final = 0.01
AHEAD: Final = 1
"""Jobs that a worker of ours is given beyond its slots: none of them is empty until the next job is there."""
HERE: Final = Principal("broker", Standing.OWNER, name="broker")
"""Who the broker's own workers and clients in this process are, unless it is said otherwise."""


class NfpBroker:
    """One broker of NFP in a running loop.

    Args:
        settings: the section ``[nfp]``. name: for people, default "NFPBroker". journal: record what passes.

    Attributes:
        dispatcher: jobs and workers. event_bus: events about jobs, for listeners. access: the rules.
        outcome: "" while it runs, then "stop" or "restart", as management asked; see ``left``. clock: the dispatcher's.
        recording: what passes is recorded there; None without. limits: of each peer's queue.
        dropped: messages that found no room or nobody. expected: workers of an earlier run that have not spoken yet.
        called_back: how many of them were told to register. locals, channels: peers in this process; names of channels.
    """

    def __init__(
        self, settings: NfpSection, *, name: str = "", journal: JournalOptions | None = None
    ) -> None:
        self.settings = settings
        self.name = name or "NFPBroker"
        self.epoch = secrets.token_hex(8)
        self.loop = asyncio.get_running_loop()
        self.stopping = False
        self.outcome = ""
        self.routers: list[NfpRouter] = []
        self.locals: dict[str, LocalPeer] = {}
        self.channels: set[str] = set()
        self.keys: BrokerKeys = prepare(settings)
        self.log = LogBuffer(self.name)
        self._left = asyncio.Event()
        self._closed = False
        self.limits = QueueLimits(settings.peer_queue_bytes, settings.peer_queue_msgs)
        self.dropped = self.called_back = 0
        self.expected: dict[str, WorkerSeen] = {}
        self.recording = Recording(journal) if journal is not None else None
        self._make_jobs()
        self._make_ingress()

    def _make_jobs(self) -> None:
        """What knows of jobs: store, rules, names, events, dispatcher, and what ends a turn."""
        settings = self.settings
        self.store: Store | NoStore = NoStore()
        if settings.store:
            self.store = Store(
                settings.store_file,
                self.loop,
                sync=settings.sync,
                on_commit=lambda number: self.turn.commit_done(number),  # noqa: PLW0108 - made later
                on_failed=self._unstored,
                on_stuck=lambda: self.turn.retry(),  # noqa: PLW0108 - what waits for nothing may leave
            )
        self.access = access_of(settings, self.keys)
        self.name_owners = NameOwners(
            self.store, self.access, self.is_here, self.is_connected, self._needed, self.loop.time
        )
        self.event_bus = EventBus(self.epoch, self.access, held_max=settings.events_ring)
        self.dispatcher = Dispatcher(
            dispatch_config(settings),
            self.store,
            self.access,
            self._happened,
            self._offended,
            on_refused=self.recording.refused if self.recording is not None else unnoticed,
            on_worker_change=self.recording.worker_changed if self.recording is not None else None,
        )
        self.turn = Turn(
            self.loop,
            commit=self.store.commit,
            tick=self.dispatcher.tick,
            gate_is_stuck=lambda: bool(self.store.broken),
        )
        self.clock = self.turn.clock
        self.started_s = self.clock.now()

    def _make_ingress(self) -> None:
        """What peers reach: the broker's own services, and the walk of a message to them and to the dispatcher."""
        settings = self.settings
        self.datastore = Datastore(settings.inventory)
        self.reader = Reader(self.datastore, self.loop)
        self.files_worker = FilesWorker(settings, self.local_channel)
        self.process = ProcessStats()
        self.questions = Questions(self, SERVICES)
        self.searches = asyncio.Semaphore(SEARCHES_MAX)
        self.ingress = Ingress(self)

    # -- start and stop ------------------------------------------------------------------------

    async def start(self) -> None:
        """Open the store, take up what it kept, listen, and call the workers of an earlier run.

        Raises:
            ConfigError: a setting that cannot be followed; nothing is left open.
        """
        log.addHandler(self.log)
        try:
            if self.recording is not None:
                self.recording.begin(self.loop)
            await self.reader.start()
            snapshot = await self.store.open()
            self.name_owners.restore(snapshot.pins)
            self.ingress.expect_clients([*snapshot.jobs, *(closed.job for closed in snapshot.closed)])
            self.dispatcher.restore(snapshot, self.clock.now())
            self.expected = {seen.name: seen for seen in snapshot.workers}
            self._listen()
            self.files_worker.start()
        except ConfigError as error:
            await self._close()
            raise _explained(error) from error
        except BaseException:
            await self._close()
            raise
        self.turn.soon()
        for router in self.routers:
            log.info("%s listens at %s", self.name, router.address)

    def _listen(self) -> None:
        """Open the routers: one for everybody, or one for clients and one for workers.

        Raises:
            ConfigError: an endpoint cannot be had, or would be open to other machines in plaintext.
        """
        settings = self.settings
        places = [(settings.endpoint, EVERYBODY)]
        if settings.worker_endpoint is not None:
            # workers have requests, too: for inventory, files, others
            places = [(settings.endpoint, frozenset({Sender.CLIENT})), (settings.worker_endpoint, EVERYBODY)]
        for uri, senders in places:
            self.routers.append(NfpRouter(self, parse(uri, *SCHEMES), senders))

    async def stop(self, reason: str = "the broker stops") -> None:
        """Tell the workers, let leave what was said so far (at most ``FAREWELL_S``), and close. Harmless twice."""
        if self.stopping:
            return
        self.stopping = True
        log.info("%s stops: %s", self.name, reason)
        for router in self.routers:
            await router.stop()
        await self.files_worker.stop()
        self.dispatcher.disconnect_workers(None, reason, self.clock.now())
        self.turn.finish()
        deadline = self.loop.time() + FAREWELL_S
        while self.loop.time() < deadline and any(peer.waiting[0] for peer in self.peers()):  # noqa: ASYNC110 - of how many nobody tells
            await asyncio.sleep(_POLL_S)
        await self._close()
        counts = self.dispatcher.counts
        log.info(
            "%s has left after %.0f s: %d jobs came, %d were done, %d requests refused",
            self.name,
            self.uptime_s,
            counts.submitted,
            counts.done,
            counts.denied,
        )

    async def _close(self) -> None:
        if self._closed:
            return
        self._closed = True
        await self.questions.stop()
        self.reader.close()
        await self.files_worker.stop()
        await self.store.close()
        for local in list(self.locals.values()):
            local.close()
            local.on_lost("the broker stops")
        self.turn.close()
        for router in self.routers:
            await router.close()
        await all_left(LINGER_S)
        if self.recording is not None:
            await self.recording.stop()
        log.removeHandler(self.log)
        self._left.set()

    async def abandon(self) -> None:
        """Close without waiting for anybody. Harmless after ``stop``."""
        self.stopping = True
        await self._close()

    async def left(self) -> str:
        """Wait until management has asked for an end, or it was stopped: "restart" or "stop"."""
        await self._left.wait()
        return self.outcome or "stop"

    def leave(self, *, restart: bool, reason: str) -> None:
        """Have ``left`` return, in a moment: what was answered so far leaves before."""
        self.outcome = "restart" if restart else "stop"
        log.info("%s is asked to %s: %s", self.name, self.outcome, reason)
        self.loop.call_later(_POLL_S, self._left.set)

    # -- who is there --------------------------------------------------------------------------

    @property
    def uptime_s(self) -> float:
        """Seconds since it was started."""
        return self.clock.now() - self.started_s

    @property
    def endpoints(self) -> Sequence[str]:
        """Where it listens, as peers write it."""
        return [router.contact_address for router in self.routers]

    @property
    def server_key(self) -> str:
        """Its public key, Z85; "" in plaintext."""
        return self.keys.broker.public_key if self.keys.broker is not None else ""

    def peers(self) -> Iterator[QueuedPeer[Any]]:
        """Everybody who is connected and has spoken."""
        for router in self.routers:
            yield from router.peers()
        yield from self.locals.values()

    def local_peer(
        self,
        principal: Principal,
        name: str,
        on_packet: OnPacket,
        features: frozenset[str] = frozenset(),
    ) -> LocalPeer:
        """A client or worker in this process, named as nobody else may be from now on.

        Raises:
            ConfigError: somebody here has this name.
        """
        if name in self.locals:
            raise ConfigError(f"two peers in this process are called {name!r}, expected one")
        peer = LocalPeer(self, principal, name, on_packet, features)
        self.locals[name] = peer
        return peer

    def local_channel(self, name: str, sender: Sender, principal: Principal = HERE) -> LocalChannel:
        """A channel for the libraries of workers and clients (see ``peer.channel``).

        It is made anew when the broker has cut it, and may be started again once it was closed.
        """
        self.channels.add(name)
        return LocalChannel(self, name, sender, principal)

    def tell_room(self, peer: QueuedPeer[Any]) -> None:
        """Have ``peer`` sent what it is owed, in a turn of its own: whoever is sending now need not expect it."""
        self.loop.call_soon(self.ingress.has_room, peer)

    def is_here(self, name: str) -> bool:
        """Whether a peer in this process has this name, or a channel that makes its peer yet, or anew."""
        return name in self.locals or name in self.channels

    def is_connected(self, name: str) -> bool:
        """Whether somebody of this name is connected, and has spoken."""
        return any(router.has(name.encode()) for router in self.routers)

    def _needed(self, name: str, key: str) -> bool:
        """See ``NameOwners``; whom the list of keys gives a userid has no pin that ends with jobs."""
        if self.dispatcher.knows_worker(name.removesuffix(CLIENT_OF_WORKER)):
            return True
        return self.dispatcher.remembers(name.encode(), f"key:{key}")

    # -- what happens --------------------------------------------------------------------------

    def _happened(self, event: JobEvent) -> None:
        """Tell everybody who wants to know what happens to jobs."""
        self.event_bus.publish(event)
        if self.recording is not None:
            self.recording.happened(event)

    def local_closed(self, peer: LocalPeer) -> None:
        """A local peer has left, or was cut."""
        if self.locals.get(peer.name) is peer:
            del self.locals[peer.name]
        self.ingress.gone(peer, self.clock.now())
        self.turn.soon()

    def _offended(self, peer: Peer, kind: str, text: str) -> None:
        """The dispatcher saw what only a broken or hostile peer does."""
        assert isinstance(peer, QueuedPeer)
        self.ingress.drop(peer, kind, text, self.clock.now())

    # -- the store -----------------------------------------------------------------------------

    def _unstored(self, error: str, ops: list[Op]) -> list[Op]:
        """A commit failed: new jobs are refused, everything else is tried again."""
        refused = {op.uuid for op in ops if isinstance(op, JobAdded)}
        if refused:
            for peer in self.peers():
                self.dropped += peer.drop(refused)
            self.dispatcher.unstored(refused, error, self.clock.now())
        self.turn.retry()
        return [op for op in ops if getattr(op, "uuid", "") not in refused]


def dispatch_config(settings: NfpSection) -> DispatchConfig:
    """Make the dispatcher's limits and intervals of the settings, most of which have the same names there."""
    names = {each.name for each in fields(DispatchConfig)} & set(settings.__struct_fields__)
    same = {name: getattr(settings, name) for name in names}
    return DispatchConfig(keepalive_s=settings.keepalive_ms / 1000, ahead=AHEAD, **same)


def _explained(error: ConfigError) -> ConfigError:
    """``error`` with what keeps two brokers on one machine apart, if it is that another one is in the way."""
    if error.errno not in (errno.EADDRINUSE, errno.EBUSY):
        return error
    hint = "a second broker on one machine needs an nfp.endpoint and an nfp.base_dir of its own"
    return type(error)(f"{error}; {hint}", error.errno)
