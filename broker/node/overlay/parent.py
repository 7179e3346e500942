"""The child's side of the tree: dial, hello, serve, lose, and join again as a new incarnation.

One incarnation has one uuid: it is the ZeroMQ identity, the name in hello, and the hop in route stacks. Responses to
a former incarnation name a uuid that is nobody's, so none of them can reach the wrong caller.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from broker.backoff import Backoff
from broker.errors import ConfigError, LinkBroken, LinkEnded, LinkError, LinkRefused, ProtocolError
from broker.identity import Credentials, Role
from broker.ingress.stamping import StampPolicy
from broker.node.broker import Broker
from broker.node.overlay import control, hello
from broker.node.overlay.liveness import KeepaliveTimer, SilenceTimer, lost_after_s
from broker.routing.port import PARENT, Port
from broker.secret import masked, masked_in
from broker.transport import registry
from broker.transport.link import Link
from broker.wire.message import CONTROL, UPSTREAM, Message

if TYPE_CHECKING:
    from broker.node.overlay.overlay import Objection, OverlayConfig

log = logging.getLogger("headgate")

REASONS_MAX: Final = 16
"""Different reasons that are said before we have joined: two may take turns, new ones must not go on."""


class Parent:
    """The way up from one broker.

    Args:
        broker: where the parent's port is attached. config: addresses and patience.
        introduce: makes our hello; joined: told of each answer that admits us, the port being attached.
        clock: monotonic seconds. watched: returns those in which we were there.

    Attributes:
        port: while joined.
    """

    def __init__(
        self,
        broker: Broker,
        config: OverlayConfig,
        introduce: Callable[[], hello.Hello],
        joined: Callable[[hello.Answer], object],
        clock: Callable[[], float],
        watched: Callable[[], float],
    ) -> None:
        self._broker = broker
        self._config = config
        self._shown = masked(config.parent_uri or "")
        self._introduce = introduce
        self._joined = joined
        self._clock = clock
        self._watched = watched
        self._keepalive = KeepaliveTimer(0, 0.0)
        self._silence = SilenceTimer(0, 0.0)
        self._keepalive_s = 0.0
        self._greeted: Link | None = None
        self._backoff = Backoff(config.backoff_s, config.backoff_max_s)
        self._since = 0.0
        self._said: set[str] = set()
        self.port: Port | None = None

    # -- joining -------------------------------------------------------------------------------

    async def join(self, *, again: bool = False) -> None:
        """Try until the parent admits us, a new incarnation each time but the first.

        Args:
            again: we have been there: a file of the transport that cannot be read now is tried again, too.

        Raises:
            LinkRefused: it refused us for good.
            ConfigError: the parent's address or a file of the transport cannot be used; never with ``again``.
        """
        while True:
            began = self._clock()
            shown = self._config.dial.extra.get("curve")
            try:
                await self._attempt()
                return
            except LinkRefused as error:
                if self._config.dial.extra.get("curve") is shown:
                    raise  # it was refused what we have; new keys, read meanwhile, it has not seen
                log.warning(
                    "cannot join the parent at %s: %s; keys have changed", self._shown, masked_in(str(error))
                )
            except (LinkError, ConfigError) as error:
                if isinstance(error, ConfigError) and not again:
                    raise
                log.warning("cannot join the parent at %s: %s", self._shown, masked_in(str(error)))
            # the time spent dialling counts as part of the pause
            await asyncio.sleep(max(0.0, began + self._backoff.after() - self._clock()))
            self.reincarnate()

    async def rejoin(self) -> None:
        """Join again, not at the same instant as all the others who lost the same parent, nor at once when the parent
        lets go of us each time.

        Raises:
            LinkRefused: it refused us for good.
        """
        await asyncio.sleep(self._backoff.after(self._clock() - self._since))
        await self.join(again=True)

    def reincarnate(self) -> None:
        """Take a new uuid; whatever is still addressed to the former one is dropped."""
        self._broker.router.reincarnate(str(uuid.uuid4()))

    async def _attempt(self) -> None:
        config = self._config
        extra = {**config.dial.extra, "identity": self._broker.router.uuid.encode(), "batch": config.batch}
        options = replace(config.dial, extra=extra, failing=self._failing)
        link = await registry.dial(config.parent_uri or "", options)
        # the key that we reached may be revoked by now
        if config.dial.extra.get("curve") is not extra.get("curve"):
            link.close()
            raise LinkBroken("keys have changed while we dialled")
        router = self._broker.router
        rank = router.topology.parent(router.rank)
        if link.peer.rank not in (None, rank):  # known by its key, and another broker of the tree
            link.close()
            text = f"{self._shown} has the key of rank {link.peer.rank}, expected that of rank {rank}"
            raise LinkRefused(text, errno.EPERM)
        greeting, self._greeted = _Greeting(self), link
        try:
            link.start(greeting)
            link.send(hello.encode(self._introduce()))
            async with asyncio.timeout(config.hello_timeout_s or None):
                await greeting.done
        except TimeoutError:
            # the answer came in the same turn of the loop as the time-out
            if self._is_joined(link):
                return
            raise LinkBroken(f"no answer to hello within {config.hello_timeout_s:g} s") from None
        finally:
            self._greeted = None
            if not self._is_joined(link):
                link.close()

    def _failing(self, error: LinkError) -> None:
        """Say at once what the first attempt failed of, and each other reason once until we have joined."""
        text = masked_in(str(error))
        if text not in self._said and len(self._said) < REASONS_MAX:
            self._said.add(text)
            log.info("cannot join the parent at %s yet: %s", self._shown, text)

    def _is_joined(self, link: Link) -> bool:
        return self.port is not None and self.port.link is link

    def _answered(self, link: Link, answer: hello.Answer) -> None:
        """The parent admits us: from here on the link is the broker's."""
        topology, router = self._broker.router.topology, self._broker.router
        owner = self._broker.own.cred.userid
        rank = topology.parent(router.rank)
        cred = Credentials(owner, Role.OWNER)
        policy = StampPolicy.tree(owner)
        port = Port(
            PARENT, answer.uuid, link.send, cred, name=f"rank {rank}", policy=policy, link=link, rank=rank
        )
        port.windowed = answer.ours.windows
        if answer.ours.batch and self._config.batch:
            link.enable_batch()
        link.receiver = self._broker.receiver
        self.port = port
        self._said.clear()
        now = self._since = self._clock()
        self._keepalive = KeepaliveTimer(link.outbox.sent, now, self._config.torpid_min_s)
        self._silence = SilenceTimer(port.received, self._watched())
        self._keepalive_s = answer.ours.keepalive_s
        self._broker.attach(port)
        log.info("joined rank %d (%s)", rank, link.peer.address)
        self._joined(answer)

    # -- serving -------------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Send a control message up; dropped while there is no parent, whom hello will tell."""
        if self.port is not None:
            self._broker.router.counters.sent_controls += 1
            self.port.send(message)

    def pulse(self, now: float, watched: float) -> None:
        """Give up a parent that is silent; say that we are here when nothing else did for a while."""
        port = self.port
        if port is None:
            return
        # our own backlog must not count as its silence
        if port in self._broker.backlog:  # it has spoken: we are behind with hearing it
            self._silence.restart(watched)
        silent = self._silence.seconds(port.received, watched)
        if silent >= lost_after_s(self._keepalive_s, self._config.lost_s) > 0:
            self.drop(f"silent for {silent:.1f} s")
        elif self._keepalive.due(port.link.outbox, now, self._config.torpid_min_s):
            self.send(control.heartbeat())

    def controlled(self, message: Message) -> None:
        """A control message of the parent: only ``disconnect`` means something; a heartbeat has been counted."""
        if message.aux1 == control.DISCONNECT:
            self.drop("the parent told us to leave")

    def drop(self, reason: str) -> None:
        """Give the connection up; the broker tells us of its end like of any other."""
        if self.port is not None:
            self.port.link.abort(LinkEnded(reason))

    def revoke(self, objection: Objection) -> int:
        """End the link to the parent, one that waits for the answer to hello, too, if there is an objection to it;
        returns how many.
        """
        link = self.port.link if self.port is not None else self._greeted
        if link is None:
            return 0
        rank = self._broker.router.topology.parent(self._broker.router.rank)
        reason = objection(link.peer, rank)
        if reason:
            link.abort(LinkEnded(f"rank {rank}: {reason}"))
        return bool(reason)

    # -- leaving -------------------------------------------------------------------------------

    async def goodbye(self, timeout_s: float) -> None:
        """Say goodbye, wait for the answer no longer than ``timeout_s``, close."""
        port = self.port
        if port is None:
            return
        answered = asyncio.Event()
        rank = self._broker.router.rank
        # UPSTREAM with our own rank: the service of the same name here must not catch it
        self._broker.calls.call(
            "overlay.goodbye", None, lambda _answer: answered.set(), nodeid=rank, flags=UPSTREAM
        )
        try:
            async with asyncio.timeout(timeout_s):
                await answered.wait()
        except TimeoutError:
            log.warning("no answer to goodbye within %g s", timeout_s)
        self.port = None
        port.link.close("goodbye")


class _Greeting:
    """Receives for a link to the parent until hello is answered.

    Attributes:
        done: resolves when the parent admitted us; otherwise it holds the LinkError.
    """

    def __init__(self, parent: Parent) -> None:
        self._parent = parent
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def received(self, link: Link, messages: list[Message]) -> None:
        """Wait for the answer; what comes after it belongs to the broker, what comes before is dropped."""
        for index, message in enumerate(messages):
            if hello.is_answer(message):
                if self._answer(link, message) and messages[index + 1 :]:
                    self._parent._broker.receiver.received(link, messages[index + 1 :])
                return
            if message.type == CONTROL and message.aux1 == control.DISCONNECT:
                link.abort(LinkEnded("the parent admits nobody now"))
                return

    def _answer(self, link: Link, message: Message) -> bool:
        if self.done.done():
            return False
        try:
            answer = hello.read_answer(message)
        except ProtocolError as error:
            self.done.set_exception(LinkBroken(f"the answer to hello makes no sense: {error}"))
            return False
        if answer.errnum:
            self.done.set_exception(LinkRefused(f"the parent refused hello: {answer.text}", answer.errnum))
            return False
        self._parent._answered(link, answer)
        self.done.set_result(None)
        return True

    def link_ended(self, link: Link, error: LinkError) -> None:
        """The link ended before the answer."""
        if not self.done.done():
            self.done.set_exception(error)

    def link_choked(self, link: Link, choked: bool) -> None:
        """One hello chokes nobody."""
