"""Messages that came in, with what a program asks of them: Response, Event (RFC 3).

They are thin views: nothing is decoded before it is asked for, and ``message`` is the whole of it.
"""

from __future__ import annotations

from broker.errors import RpcError
from broker.serving.request import Received
from broker.wire.message import PRIVATE, Message


class Response(Received):
    """The answer to a request, or one of the answers of a stream (RFC 6)."""

    __slots__ = ()

    @property
    def errnum(self) -> int:
        """0, or the POSIX error number; nonzero only where a raw ``request`` was made: ``rpc`` raises it."""
        return self.message.errnum

    def error(self) -> RpcError:
        """The RpcError this response stands for, with the service's text or the system's."""
        return RpcError(self.message.errnum, self.text, self.topic)


class Event(Received):
    """One event.

    Attributes:
        lost: how many events this subscription had no room for right before this one; 0 almost always.
        missed: why others may be missing right before this one: the link was lost, say; "" almost always.
    """

    __slots__ = ("lost", "missed")

    def __init__(self, message: Message, lost: int = 0, missed: str = "") -> None:
        super().__init__(message)
        self.lost = lost
        self.missed = missed

    @property
    def sequence(self) -> int:
        """Number of the event in the whole instance, from 1 on; other topics leave gaps."""
        return self.message.sequence

    @property
    def private(self) -> bool:
        """True when only the sender's userid and the owner received it."""
        return bool(self.message.flags & PRIVATE)
