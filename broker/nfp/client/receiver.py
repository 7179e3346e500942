"""The session of a client with its broker: whether there is one, and who gets what it brings."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from uuid import uuid4

import msgspec

from broker.errors import LinkBroken, LinkClosed, LinkRefused
from broker.nfp import bodies
from broker.nfp.client.liveness import BrokerLiveness
from broker.nfp.client.mmi import MmiRequests
from broker.nfp.client.subscription import Subscriptions
from broker.nfp.client.tracker import PUSH, JobTracker
from broker.nfp.frames import Packet
from broker.nfp.names import MMI_BROKER, Command, Sender
from broker.nfp.opening import DIALECT
from broker.nfp.peer.channel import Channel
from broker.nfp.targets import ANY
from broker.tasks import within

log = logging.getLogger("headgate")


class ClientReceiver:
    """Implements ``peer.channel.Receiver`` for one client.

    Attributes:
        broker: address of the one we session to, or talked to last. opened: what it said in its OPEN; None: deployed
        NorFab's, or not connected yet.
    """

    def __init__(self, channel: Channel, requests: MmiRequests, subscriptions: Subscriptions) -> None:
        self.broker = ""
        self.opened: dict[str, Any] | None = None
        self._channel = channel
        self._requests = requests
        self._subscriptions = subscriptions
        self._tracker: JobTracker
        self._liveness: BrokerLiveness
        self._probe_uuid = uuid4().hex
        self._connected = asyncio.Event()
        self._refusal: LinkRefused | None = None
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, tracker: JobTracker) -> None:
        """Connect; the jobs of ``tracker`` go over this session."""
        self._tracker = tracker
        self._liveness = BrokerLiveness(self._channel, self._awaits, self._probe, asyncio.get_running_loop())
        self._channel.start(self, self._open_body)

    async def close(self) -> None:
        """End the session."""
        if self.is_connected:
            self._liveness.end()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        await self._channel.close()

    @property
    def is_connected(self) -> bool:
        """True while there is a session."""
        return self._connected.is_set()

    async def wait_connected(self, timeout_s: float | None) -> str:
        """Wait for a session and return the broker's address.

        Raises:
            LinkBroken: there was none within ``timeout_s``; the text says why. LinkRefused: see ``refused``.
        """
        try:
            async with within(timeout_s):
                await self._connected.wait()
        except TimeoutError:
            why = self._channel.trouble or "no answer"
            text = f"{self._channel.broker}: not connected within {timeout_s:g} s: {why}"
            raise LinkBroken(text) from None
        if self._refusal is not None:
            raise self._refusal
        return self.broker

    def refused(self, error: LinkRefused) -> None:
        """Tell who waits, and end jobs that no broker can have: none lets us in, and none ever has.

        The channel tries on, so that a new attempt of the caller goes well once the keys are right.
        """
        self._refusal = error
        self._connected.set()  # wakes who waits now
        self._connected.clear()
        self._requests.refused(error)
        self._tracker.refused(error)

    def _open_body(self) -> dict[str, Any]:
        return {"name": self._channel.name, "dialect": DIALECT, "features": [PUSH]}

    def _awaits(self) -> bool:
        return bool(len(self._requests) or self._tracker.jobs or len(self._subscriptions))

    def _probe(self) -> None:
        """Send what the broker answers at once: ours every OPEN, whatever its rules, deployed NorFab's only MMI."""
        if self.opened is not None:
            packet = Packet(Sender.CLIENT, Command.OPEN, body=msgspec.json.encode(self._open_body()))
        else:
            packet = Packet(
                Sender.CLIENT,
                Command.MMI,
                service=MMI_BROKER,
                target=ANY,
                uuid=self._probe_uuid,
                body=bodies.request("show_broker_version", (), {}, None),
            )
        self._channel.send(packet)

    # -- peer.channel.Receiver --------------------------------------------------------------------

    def received(self, packet: Packet) -> None:
        """Hand on a packet of the broker."""
        if packet.uuid == self._probe_uuid:
            return
        if packet.command is Command.EVENT and self._subscriptions.received(packet):
            return
        if not self._requests.received(packet) and packet.command is not Command.MMI:
            self._tracker.received(packet)

    def lost(self, why: str) -> None:
        """Note that the session is over."""
        log.info("%s: %s", self._channel.name, why)
        self._connected.clear()
        self._liveness.end()
        self._tracker.lost()
        self._requests.lost()

    def connected(self, broker: str, opened: dict[str, Any] | None) -> None:
        """Note that a session begins."""
        self.broker, self.opened, self._refusal = broker, opened, None
        self._connected.set()
        self._liveness.begin(opened)
        self._requests.began()
        self._tracker.began(opened)
        if len(self._subscriptions):
            task = asyncio.get_running_loop().create_task(
                self._subscribe_again(), name=f"events of {self._channel.name}"
            )
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _subscribe_again(self) -> None:
        try:
            await self._subscriptions.resubscribe()
        except (TimeoutError, LinkClosed):
            log.warning(
                "%s: the broker did not take the subscription; tried again when it is back",
                self._channel.name,
            )
