"""Connects to the broker and reconnects after a loss; takes events up again from the last known number.

One task does it all and lives from ``start`` to ``stop``. A join is complete when (1) the upstream has told that it
takes us for the owner, (2) the subscription to everything is live, (3) one event of our own has come back: with its
number, and rank 0's uuid read before and behind it, the first number we will not miss is known. Until then nothing
of a session is sent and no event is handed on.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from broker.awake import stall_s
from broker.backoff import Backoff
from broker.client.calls import Response
from broker.client.past_events import past_page
from broker.errors import (
    ConfigError,
    HeadgateError,
    LinkBroken,
    LinkClosed,
    LinkError,
    LinkRefused,
    ProtocolError,
    RpcError,
)
from broker.identity import Role
from broker.schemes import capabilities_of
from broker.secret import masked
from broker.settings.transport_options import from_words, typed
from broker.transport.link import Options
from broker.transport.outbox import OutboxLimits
from broker.transport.registry import dial, transport_for
from broker.wire.message import NORESPONSE, request
from broker.wire.payload import encode_json
from gateway.upstream.flux_core import FluxCoreAdapter
from gateway.upstream.trunk import Trunk, UpstreamReceiver

if TYPE_CHECKING:
    from broker.client import Handler
    from broker.client.nearby import Nearby
    from broker.wire.message import Message
    from gateway.notices import State
    from gateway.settings.schema import GatewaySection


CERT: Final = "HEADGATE_CERT"
"""Environment: our certificate, where the settings name none."""
SERVER_KEY: Final = "HEADGATE_SERVER_KEY"
"""Environment: the key that the upstream must have, likewise."""


OPTIONS: Final = "HEADGATE_OPTIONS"
"""Environment: ``KEY=VALUE ...`` for the transport of another package, likewise."""


def keys_of(
    section: GatewaySection, uri: str, environ: Mapping[str, str] = os.environ
) -> Callable[[], dict[str, Any]] | None:
    """With which CURVE keys the gateway dials its upstream: what gives ``Options.extra`` of a dialer each time it is
    called, and raises ConfigError when a file is wrong. The files are read again at each attempt, so that a key can be
    changed while the gateway runs; nothing of ZeroMQ is loaded where none is named.

    None: no keys are named, or ``uri`` is nothing that CURVE is spoken to.

    Raises:
        ConfigError: only one of certificate and key is named.
    """
    if not uri.startswith(("tcp://", "ipc://")):
        return None
    named = section.upstream_cert or section.upstream_key
    cert = section.upstream_cert if named else environ.get(CERT)
    key = section.upstream_key if named else environ.get(SERVER_KEY)
    if not cert and not key:
        return None
    if not cert or not key:
        missing = f"{SERVER_KEY} (or gateway.upstream_key)" if cert else f"{CERT} (or gateway.upstream_cert)"
        raise ConfigError(f"{missing} is not set; CURVE needs a certificate and the upstream's key")
    given = (cert, key)

    def extra() -> dict[str, Any]:
        from broker.transport import curve

        cert, key = given
        server = key if is_key(key) else curve.load_public(key).public_key
        return {"curve": curve.CurveClient(curve.load(cert), server)}

    return extra


def options_for(section: GatewaySection, uri: str) -> Any:
    """``Options.settings`` of a dialer; None at an address whose transport takes none.

    Raises:
        ConfigError: they are not what the transport takes.
    """
    if section.upstream_options:
        return typed(section.upstream_options, capabilities_of(uri))
    return from_words(os.environ.get(OPTIONS, ""), uri) if capabilities_of(uri).options is not None else None


def is_key(text: str) -> bool:
    """Whether ``text`` is a key in Z85 rather than the path of a file."""
    from broker.transport.curve import check_key

    try:
        return bool(check_key(text)) and not os.path.exists(text)
    except ConfigError:
        return False


log = logging.getLogger("headgate")

ONLINE: Final = "gateway.online"
"""Topic of the private event that a gateway publishes to learn the newest number; its payload names the gateway."""
JOIN_S: Final = 15.0
"""Seconds one attempt to join, or to settle what is in doubt, may take."""
FIRST_PAUSE_S: Final = 0.05
"""Bound of the pause before the first new attempt; see ``broker.backoff``."""
SILENT_S: Final = 10.0
"""Nothing came for so many seconds: ask for a sign of life."""
PATIENCE_S: Final = 30.0
"""Seconds the upstream may take for it."""
OWN_CAP_BYTES: Final = 8 << 20
"""What may wait on the link of one session that streams from a flux-core which does not read."""
UNREACHABLE: Final = "upstream lost: the gateway has no broker now"
"""What a client is told while the upstream is away; why, and which address it has, is for owners and admins."""
AGREE_TRIES: Final = 5
"""How often rank 0 may turn out to be another one while it is asked for its number."""


Methods: TypeAlias = "Mapping[str, Handler | tuple[Handler, int]]"
"""Of a service, as ``Handle.serve`` takes them."""


def _limits() -> OutboxLimits:
    """Of the link up: sessions are held back at high water, so that an event beyond it is no reason to end it."""
    limits = OutboxLimits()
    limits.event_bytes = limits.cap_bytes
    return limits


class Upstream:
    """The broker behind the gateway, ours or a real flux-core, on an owner link.

    Args:
        uri: its address. shown: the same for people.
        options: of the link; share flusher and budget with all links of the process. None is ``Options()``.
        name: of this gateway process; its service is registered under it, so that the upstream takes the link for a
            provider's, which is never paused. None makes one: ``gateway-`` and eight hexadecimal digits.
        rejoin_max_s: longest pause between two attempts, in seconds.
        keys: gives ``Options.extra`` (CURVE) at each attempt, see `keys_of`; None: nothing.

    Attributes:
        handle: for calls as the owner; None while not joined.
        way: queues a message of a session, stamped, its hop on top, and never waits; None while not joined.
        joined: session traffic can be sent.
        epoch: uuid of rank 0's broker, whose numbers events carry; "" while not joined.
        owner: userid of the instance's owner, as whom we are stamped there; None before the first join.
        rank: of the broker we are attached to. size: brokers of the instance. version: as it says.
        headgate: it is one of ours, not a flux-core. journals: it has a journal, on or off, that takes refusals.
        reason: why it is not joined; "" while it is.
        choked: it reads slowly at present.
        joins: how often it was joined. losses: how often the link was lost.
    """

    def __init__(
        self,
        uri: str,
        options: Options | None = None,
        *,
        name: str | None = None,
        rejoin_max_s: float = 5.0,
        keys: Callable[[], dict[str, Any]] | None = None,
    ) -> None:
        self.uri = uri
        self.shown = masked(uri)
        self.name = name or f"gateway-{random.randbytes(4).hex()}"
        self.handle: Trunk | None = None
        self.way: Callable[[Message], object] | None = None
        self.joined = False
        self.epoch = ""
        self.owner: int | None = None
        self.rank = 0
        self.size = 0
        self.version = ""
        self.headgate = False
        self.journals = False
        self.reason = "not connected yet"
        self.choked = False
        self.joins = 0
        self.losses = 0
        self._receiver: UpstreamReceiver
        self._service: Methods = {}
        self._own_service: Methods = {}
        self._options = replace(options or Options(), limits=_limits(), connect_timeout_s=JOIN_S)
        self._keys = keys
        self._rejoin_max_s = rejoin_max_s
        self._task: asyncio.Task[None] | None = None
        self._since = inf  # when this link was joined
        self._here = asyncio.Event()
        self._wake = asyncio.Event()
        self._deployed: FluxCoreAdapter | None = None

    # -- life ----------------------------------------------------------------------------------

    async def start(
        self, receiver: UpstreamReceiver, service: Methods | None = None, own_service: Methods | None = None
    ) -> None:
        """Begin to join and go on until ``stop``; returns at once (see ``wait_joined``).

        Args:
            receiver: gets what comes for sessions.
            service: methods of ``gateway``, for whoever is behind the upstream.
            own_service: methods of the service that has the name of this process.

        Raises:
            ConfigError: no transport understands the address, or a key of ours is wrong: trying again would not help.
        """
        transport_for(self.uri)
        self._fresh_options()
        self._receiver, self._service, self._own_service = receiver, service or {}, own_service or {}
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._run(), name=f"upstream {self.shown}")

    async def stop(self) -> None:
        """Leave the upstream and try no more; harmless twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def wait_joined(self, timeout_s: float) -> bool:
        """Wait for the upstream, at most ``timeout_s`` seconds; False when it is still away: see ``reason``."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._here.wait()
        except TimeoutError:
            pass
        return self.joined

    @property
    def asked(self) -> Trunk | None:
        """The link for questions of the gateway itself; None while the upstream is away."""
        return self.handle if self.joined else None

    @property
    def state(self) -> State:
        """As welcomes and statistics show it."""
        return {"joined": self.joined, "rank": self.rank, "size": self.size, "version": self.version}

    @property
    def nearby(self) -> Nearby | None:
        """Which ranks have which service; None while the upstream is away."""
        return self.handle.nearby if self.handle is not None and self.joined else None

    # -- session traffic -----------------------------------------------------------------------

    def send(self, message: Message) -> bool:
        """Send a message by ``way``; False when the upstream is away."""
        if self.way is None:
            return False
        self.way(message)
        return True

    def forget(self, front: bytes) -> None:
        """A session has ended and its notices were sent; ``front`` is the route stack of its requests."""
        if self._deployed is not None:
            self._deployed.forget(front)

    def tell(self, topic: str, payload: bytes) -> None:
        """Send a request of the gateway's own to the broker it is attached to; it wants no response."""
        handle = self.handle
        if handle is not None:
            handle.link.send(request(topic, payload, nodeid=self.rank, flags=NORESPONSE))

    # -- the task ------------------------------------------------------------------------------

    async def _run(self) -> None:
        clock = asyncio.get_running_loop().time
        backoff = Backoff(FIRST_PAUSE_S, self._rejoin_max_s)
        while True:
            self._since = inf
            try:
                await self._live()
            except HeadgateError as error:
                told = isinstance(error, LinkBroken) and isinstance(error.__cause__, LinkError)
                self._failed(str(error.__cause__ if told else error))
            except Exception as error:  # whatever an odd upstream made of us: it is tried again all the same
                log.error("upstream: %s", self.shown, exc_info=error)
                self._failed(f"{self.shown}: {error!r}")
            await asyncio.sleep(backoff.after(max(0.0, clock() - self._since)))

    def _fresh_options(self) -> Options:
        """With the keys that the files hold now.

        Raises:
            ConfigError: one of them is wrong.
        """
        options = replace(self._options, failing=lambda error: self._failed(str(error)))
        return options if self._keys is None else replace(options, extra=self._keys())

    async def _live(self) -> None:
        """One link, from dialling to its end, whose reason is raised."""
        trunk = Trunk(
            await dial(self.uri, self._fresh_options()),
            self._receiver,
            on_doubt=self._wake.set,
            on_choked=self._choked,
            on_end=self._lost,
        )
        try:
            await self._join(trunk)
            while trunk.ended is None:
                await self._watch(trunk)
        finally:
            deployed, self._deployed = self._deployed, None
            if deployed is not None:
                await deployed.close()
            await trunk.close()
        raise trunk.ended

    async def _watch(self, trunk: Trunk) -> None:
        """Wait until something has to be done about ``trunk``, and do it."""
        reads = trunk.reads
        try:
            async with asyncio.timeout(SILENT_S):
                await self._wake.wait()
        except TimeoutError:
            if trunk.reads == reads:
                await self._prove_alive(trunk)
        self._wake.clear()
        if trunk.ended is None and trunk.numbering.in_doubt:
            await self._settle_again(trunk)

    async def _prove_alive(self, trunk: Trunk, again: bool = True) -> None:
        """Nothing came for a while: an upstream that says nothing is given up; who was stopped asks ``again``."""
        clock = asyncio.get_running_loop().time
        reads, due = trunk.reads, clock() + PATIENCE_S
        try:
            await trunk.rpc("broker.ping", {"seq": 0}, timeout_s=PATIENCE_S)
        except TimeoutError:
            if again and stall_s(due, clock()):
                await self._prove_alive(trunk, again=False)
            elif trunk.reads == reads:
                trunk.link.abort(LinkBroken(f"{self.shown}: no sign of life for {SILENT_S + PATIENCE_S:g} s"))
        except HeadgateError:
            return  # an answer, if an odd one; or the end of the link, which the caller sees

    async def _join(self, trunk: Trunk) -> None:
        try:
            async with asyncio.timeout(JOIN_S):
                await self._introduce(trunk)
                await self._ask(trunk, "event.subscribe", {"topic": ""})
                # a provider is never paused: a busy dashboard must not hold back everybody's answers
                await trunk.serve(self.name, self._own_service)
                epoch, sequence = await self._agree(trunk)
                await self._offer(trunk)
        except TimeoutError:
            raise LinkBroken(f"{self.shown}: no answer within {JOIN_S:g} s", errno.ETIMEDOUT) from None
        if trunk.ended is not None:
            raise trunk.ended
        first = not self._receiver.history.epoch
        if first:  # before anybody can be live, for whom it would be news
            await self._fill(trunk, epoch, sequence)
            if trunk.ended is not None:
                raise trunk.ended
        self._joined(trunk, epoch)
        if not first:
            await self._fill(trunk, epoch, sequence)
        if trunk.ended is None:
            self._settle(trunk, epoch, sequence)
            self._here.set()

    async def _introduce(self, trunk: Trunk) -> None:
        """Ask who it takes us for, and who it is.

        Raises:
            LinkRefused: it takes us for a guest, whose stamps it would overwrite.
        """
        seen = (await trunk.rpc("broker.ping", {"seq": 0})).json()
        # RFC 12: a broker overwrites the stamps of guests, and every web user would be that guest
        if not int(seen.get("rolemask", 0)) & Role.OWNER:
            raise LinkRefused(
                f"{self.shown} takes us for the guest {seen.get('userid')}: a gateway has to run as its owner",
                errno.EPERM,
            )
        self.owner = int(seen["userid"])
        self.rank = await trunk.rank()
        trunk.numbering.certain = self.rank == 0
        self.size = await trunk.size()
        self.version = await trunk.attr("version")
        try:
            self.version = await trunk.attr("headgate.version")
            self.headgate = True
        except RpcError:
            self.headgate = False
        self.journals = self.headgate and await self._has_journal(trunk)

    async def _has_journal(self, trunk: Trunk) -> bool:
        """Whether one is configured: a broker without says ENOSYS, an older one has no such service."""
        try:
            await trunk.rpc("journal.status", nodeid=self.rank)
        except RpcError:
            return False
        return True

    async def _root(self, trunk: Trunk) -> str:
        """The epoch of the numbers that rank 0 gives: its uuid, or what a rank 0 of ours says."""
        try:
            if self.headgate:
                try:
                    return await trunk.attr("headgate.event-epoch", nodeid=0)
                except RpcError as error:
                    if error.errno != errno.ENOENT:  # an older one of ours, or a flux-core above
                        raise
            return await trunk.attr("broker.uuid", nodeid=0)
        except RpcError as error:
            raise LinkBroken(f"{self.shown}: rank 0 of the instance cannot be reached: {error}") from error

    async def _ask(self, trunk: Trunk, topic: str, payload: dict[str, object]) -> None:
        answer = Response(await trunk.request(request(topic, encode_json(payload))))
        if answer.errnum:
            raise answer.error()

    async def _agree(self, trunk: Trunk) -> tuple[str, int]:
        """(epoch, number) that belong together, of an event that was published after now.

        Raises:
            LinkBroken: rank 0 is another one each time it is asked.
        """
        for _ in range(AGREE_TRIES):
            trunk.watch_root()
            epoch = await self._root(trunk)
            sequence = await trunk.publish(ONLINE, {"name": self.name}, private=True)
            # asked before and behind the event: the number in between belongs to this rank 0
            if await self._root(trunk) == epoch and not trunk.root_lost:
                return epoch, sequence
        raise LinkBroken(f"{self.shown}: rank 0 changes faster than it can be asked")

    async def _fill(self, trunk: Trunk, epoch: str, sequence: int) -> None:
        """Take from rank 0 what it has kept of the events that were not seen here, while new ones are held back.

        Nothing where it keeps none, is none of ours, or cannot be asked: then they count as missed.
        """
        if not self.headgate:
            return
        history, numbering = self._receiver.history, trunk.numbering
        numbering.agree(epoch, sequence)
        same = history.epoch == epoch
        behind = history.last if same else max(0, sequence - history.max_msgs)
        patient, asked = True, dict[str, object](epoch=epoch, sequence=behind)
        try:
            while True:
                page = await past_page(trunk, asked, timeout_s=JOIN_S)
                numbering.fillable = True
                if page.epoch != epoch or trunk.ended is not None:
                    return  # another rank 0 answers by now, which is found out by what tells of the loss of this one
                if page.events:
                    numbering.fill(epoch, page.events)
                    patient = patient and await self._receiver.until_read()
                if page.final or (same and numbering.meets(page.end)):
                    return
                asked = page.rest
        except (RpcError, ProtocolError, TimeoutError) as error:
            log.debug("upstream: no events of before: %s", error)

    async def _offer(self, trunk: Trunk) -> None:
        """Let others call ``gateway.*`` through the upstream; of several gateways the first one answers."""
        try:
            await trunk.serve("gateway", self._service)
        except RpcError as error:
            if error.errno != errno.EEXIST:
                raise
            log.info("upstream: another gateway answers gateway.* already; this one is %s", self.name)

    async def _settle_again(self, trunk: Trunk) -> None:
        """The numbering is in doubt: find out whose it is, however long the way to rank 0 stays broken."""
        backoff = Backoff(FIRST_PAUSE_S, self._rejoin_max_s)
        while trunk.ended is None:
            try:
                async with asyncio.timeout(JOIN_S):
                    epoch, sequence = await self._agree(trunk)
                break
            except (HeadgateError, TimeoutError) as error:
                log.debug("upstream: events are in doubt: %s", error)
            await asyncio.sleep(backoff.after())
        else:
            return
        self.epoch = epoch
        await self._fill(trunk, epoch, sequence)
        if trunk.ended is None:
            self._settle(trunk, epoch, sequence)

    def _settle(self, trunk: Trunk, epoch: str, sequence: int) -> None:
        """End the doubt, unless rank 0 was lost while events of before were read: what was held back may be another
        one's.
        """
        if trunk.root_lost:
            self._wake.set()  # to settle it again
        else:
            trunk.settle(epoch, sequence)

    # -- what changed --------------------------------------------------------------------------

    def _joined(self, trunk: Trunk, epoch: str) -> None:
        self.handle = trunk
        if self.headgate:
            self.way = trunk.link.send
            trunk.ask_handled()
        else:
            options = replace(self._options, limits=OutboxLimits(cap_bytes=OWN_CAP_BYTES))
            self._deployed = FluxCoreAdapter(self.uri, options, trunk, self._receiver)
            self.way = self._deployed.send
        self.joined = True
        self._since = asyncio.get_running_loop().time()
        self.reason = ""
        self.joins += 1
        what = "headgate" if self.headgate else "flux-core"
        log.info(
            "upstream: joined %s, %s %s, rank %d of %d", self.shown, what, self.version, self.rank, self.size
        )
        self.epoch = epoch
        self._receiver.reregister()

    def _choked(self, choked: bool) -> None:
        if self.choked is not choked:
            self.choked = choked
            self._receiver.upstream_choked(choked)

    def _lost(self, trunk: Trunk, error: LinkError) -> None:
        """The link ended: at once, whatever the task waits for."""
        self._wake.set()
        self._choked(False)  # also of a link that was never joined: the next one begins unchoked
        if self.handle is not trunk:
            return
        self.handle = self.way = None
        self.joined = False
        self.epoch = ""
        self.losses += 1
        self._here.clear()
        if isinstance(error, LinkClosed):
            self.reason = "left"
            log.info("upstream: left %s", self.shown)
        else:
            self._failed(str(error))
        self._receiver.upstream_lost(self.reason)

    def _failed(self, reason: str) -> None:
        """Log a reason once, however often it comes."""
        if reason != self.reason:
            self.reason = reason
            log.warning("upstream: %s", reason)
