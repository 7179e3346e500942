"""Registry of open streaming requests of a service: its parameters by request, and how each is ended (RFC 6).

A stream is known by its sender's whole route stack and its matchtag. It ends when its sender cancels it or is gone,
or when the service has no more to say: with ENODATA in each case but the second, where nobody listens.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Generic, TypeVar

from broker.errors import RpcError
from broker.holdings import Holdings
from broker.serving.request import Request
from broker.wire.message import NORESPONSE

STREAMS_MAX: int = 4096
"""Open streams of one service; beyond it a request is refused with EAGAIN. A browser page opens a handful."""
GUEST_STREAMS_MAX: int = 1024
"""Of one userid that is not the owner's."""
GUESTS_STREAMS_MAX: int = 3072
"""Of all but the owner: the rest is kept for it."""

Interest = TypeVar("Interest")


class Streams(Generic[Interest]):
    """The open streams of one service, each with what its caller asked for."""

    def __init__(self) -> None:
        self._by_sender: dict[bytes, dict[int, tuple[Request, Interest]]] = {}
        self._by_guest: Holdings[int] = Holdings()
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[tuple[Request, Interest]]:
        """Every open stream; ending some on the way is allowed."""
        return iter([entry for tags in self._by_sender.values() for entry in tags.values()])

    def open(self, request: Request, interest: Interest) -> None:
        """Keep ``request`` open. One that wants no response is not kept; one that uses a matchtag again ends the first.

        Raises:
            RpcError: EAGAIN; as many are open as may be, of this user, of all guests or of everybody.
        """
        if request.message.flags & NORESPONSE:
            return
        if request.message.matchtag in self._by_sender.get(request.sender, {}):
            self.end(request.sender, request.message.matchtag)
        else:
            self._refuse_more(request)
        self._by_sender.setdefault(request.sender, {})[request.message.matchtag] = (request, interest)
        self._count += 1
        if not request.owner:
            self._by_guest.add(request.message.userid)

    def _refuse_more(self, request: Request) -> None:
        if self._count >= STREAMS_MAX:
            raise RpcError(errno.EAGAIN, f"{self._count} streams are open")
        if request.owner:
            return
        userid = request.message.userid
        if self._by_guest.of(userid) >= GUEST_STREAMS_MAX:
            raise RpcError(
                errno.EAGAIN, f"userid {userid} has {GUEST_STREAMS_MAX} streams open, the limit of one guest"
            )
        if self._by_guest.total >= GUESTS_STREAMS_MAX:
            raise RpcError(
                errno.EAGAIN, f"guests have {GUESTS_STREAMS_MAX} streams open, the limit of all guests"
            )

    def _forget(self, request: Request) -> None:
        self._count -= 1
        if not request.owner:
            self._by_guest.add(request.message.userid, -1)

    def take(self, sender: bytes, matchtag: int) -> Request | None:
        """Forget one stream; returns its request, still to be answered."""
        tags = self._by_sender.get(sender, {})
        entry = tags.pop(matchtag, None)
        if entry is None:
            return None
        self._forget(entry[0])
        if not tags:
            del self._by_sender[sender]
        return entry[0]

    def end(self, sender: bytes, matchtag: int) -> None:
        """End one stream with ENODATA; an unknown one was never there or is over."""
        request = self.take(sender, matchtag)
        if request is not None:
            request.respond_error(errno.ENODATA)

    def forget(self, sender: bytes) -> None:
        """The sender is gone: drop its streams without a word."""
        for request, _interest in self._by_sender.pop(sender, {}).values():
            self._forget(request)
