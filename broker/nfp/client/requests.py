"""Questions to services that the broker answers itself, at once: management, inventory, events, jobs.

Deployed NorFab's broker answers each twice, as RESPONSE and as MMI; the first one counts. A question whose answer was
lost with the connection is asked again at the next conversation, except where that would be done twice (``ONCE``, and
what is asked ``once``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from broker.errors import LinkBroken, LinkClosed, LinkRefused
from broker.nfp import bodies
from broker.nfp.client.errors import RequestFailed
from broker.nfp.frames import Packet
from broker.nfp.names import Code, Command, Sender
from broker.nfp.opening import read_any
from broker.nfp.outcome import error_text
from broker.nfp.targets import ANY, Target

if TYPE_CHECKING:
    from broker.nfp.peer.channel import Channel


ONCE: Final = frozenset({"restart", "shutdown", "disconnect"})
"""Tasks of management that end connections: their answers may well be lost with them."""


class _Pending:
    """A question without an answer; ``once``: not asked again when it was ``sent``."""

    __slots__ = ("future", "once", "packet", "sent")

    def __init__(self, packet: Packet, future: asyncio.Future[Any], *, once: bool) -> None:
        self.packet = packet
        self.future = future
        self.once = once
        self.sent = False


class Requests:
    """The questions of one client that wait for answers."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pending: dict[str, _Pending] = {}
        self._connected = False

    def __len__(self) -> int:
        return len(self._pending)

    async def ask(
        self,
        service: str,
        task: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        target: Target = ANY,
        timeout_s: float,
        uuid: str = "",
        once: bool = False,
    ) -> Any:
        """The answer, read from JSON; ``uuid`` is the question's, by default a new one.

        A question that is to be asked ``once``, as all of ``ONCE`` are, is not sent again on another connection.

        Raises:
            RequestFailed: it is an error. TimeoutError: none came. LinkClosed: the client was closed. LinkBroken: the
            connection was lost before the answer to a question asked once, which may have been done. LinkRefused: no
            broker lets us in, because of keys.
        """
        uuid = uuid or uuid4().hex
        packet = Packet(
            Sender.CLIENT,
            Command.MMI,
            service=service,
            target=target,
            uuid=uuid,
            body=bodies.request(task, args, kwargs or {}, None),
        )
        pending = _Pending(packet, asyncio.get_running_loop().create_future(), once=once or task in ONCE)
        self._pending[uuid] = pending
        try:
            async with asyncio.timeout(timeout_s):
                if self._connected:
                    await self._send(pending)
                return await pending.future
        except TimeoutError as error:
            why = f": {self._channel.trouble}" if self._channel.trouble else ""
            raise TimeoutError(f"{service} {task}: no answer within {timeout_s:g} s{why}") from error
        finally:
            del self._pending[uuid]

    async def _send(self, pending: _Pending) -> None:
        while not pending.sent and not self._sent(pending):
            await self._channel.writable()

    def _sent(self, pending: _Pending) -> bool:
        if self._channel.send(pending.packet):
            pending.sent = True
        return pending.sent

    def began(self) -> None:
        """A conversation begins."""
        self._connected = True
        for pending in self._pending.values():
            if not (pending.once and pending.sent):
                self._sent(pending)

    def lost(self) -> None:
        """The conversation is over."""
        self._connected = False
        for pending in self._pending.values():
            if pending.once and pending.sent and not pending.future.done():
                lost = (
                    "the connection was lost before the answer; it may have been done, and is not asked again"
                )
                pending.future.set_exception(LinkBroken(f"{pending.packet.service}: {lost}"))

    def refused(self, error: LinkRefused) -> None:
        """No broker lets us in."""
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(LinkRefused(str(error), error.errno))

    def received(self, packet: Packet) -> bool:
        """A packet with the uuid of a question; False when there is no such question."""
        pending = self._pending.get(packet.uuid)
        if pending is None:
            return False
        if packet.status in (Code.ACCEPTED, Code.PENDING, Code.CREATED) or pending.future.done():
            return True
        value = _value(packet)
        if packet.status >= Code.UNKNOWN:
            text = error_text(packet.status, value if isinstance(value, dict) else {})
            about = f"{pending.packet.service}: {text}"
            pending.future.set_exception(RequestFailed(about, packet.status))
        else:
            pending.future.set_result(value)
        return True

    def close(self) -> None:
        """The client is closed."""
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(LinkClosed("the client was closed"))


def _value(packet: Packet) -> Any:
    data = packet.data
    return read_any(data, data.decode("utf-8", "replace")) if data else None
