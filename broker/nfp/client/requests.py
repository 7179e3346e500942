"""Questions to services that the broker answers itself, at once: management, inventory, events, jobs.

Deployed NorFab's broker answers each twice, as RESPONSE and as MMI; the first one counts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import msgspec

from broker.errors import LinkClosed
from broker.nfp import bodies
from broker.nfp.client.errors import RequestFailed
from broker.nfp.client.outcome import error_text
from broker.nfp.frames import Packet
from broker.nfp.names import Code, Command, Sender
from broker.nfp.targets import ANY, Target

if TYPE_CHECKING:
    from broker.nfp.peer.channel import Channel


class _Pending:
    """A question without an answer."""

    __slots__ = ("future", "packet")

    def __init__(self, packet: Packet, future: asyncio.Future[Any]) -> None:
        self.packet = packet
        self.future = future


class Requests:
    """The questions of one client that wait for answers; each is asked again at every new conversation."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._pending: dict[str, _Pending] = {}
        self._connected = False

    async def ask(
        self,
        service: str,
        task: str,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        *,
        target: Target = ANY,
        timeout_s: float,
    ) -> Any:
        """The answer, read from JSON.

        Raises:
            RequestFailed: it is an error. TimeoutError: none came. LinkClosed: the client was closed.
        """
        uuid = uuid4().hex
        packet = Packet(
            Sender.CLIENT,
            Command.MMI,
            service=service,
            target=target,
            uuid=uuid,
            body=bodies.request(task, args, kwargs or {}, None),
        )
        pending = _Pending(packet, asyncio.get_running_loop().create_future())
        self._pending[uuid] = pending
        try:
            async with asyncio.timeout(timeout_s):
                if self._connected:
                    await self._send(packet)
                return await pending.future
        except TimeoutError as error:
            why = f": {self._channel.trouble}" if self._channel.trouble else ""
            raise TimeoutError(f"{service} {task}: no answer within {timeout_s:g} s{why}") from error
        finally:
            del self._pending[uuid]

    async def _send(self, packet: Packet) -> None:
        while not self._channel.send(packet):
            await self._channel.writable()

    def began(self) -> None:
        """A conversation begins."""
        self._connected = True
        for pending in self._pending.values():
            self._channel.send(pending.packet)

    def lost(self) -> None:
        """The conversation is over."""
        self._connected = False

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
    if not data:
        return None
    try:
        return msgspec.json.decode(data)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return data.decode("utf-8", "replace")
