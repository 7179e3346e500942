"""aiohttp's side of one HTTP connection, which ends when its client is slow, and has its slot in `admission`.

aiohttp closes a connection on which nothing was asked for a while, however many others there are, and waits as long
for a request head that comes a byte at a time (slowloris). Here each head has a deadline, the first one from the
moment of accept and further ones from their first byte; a connection on which nothing is under way may end for a
newcomer. WebSockets are none of them: they were taken over, and `sessions` counts them.

What aiohttp answers by itself, to what is no HTTP, has the body and the headers of our own answers, and is worth one
line of the log without a traceback: the fault is the client's.
"""

from __future__ import annotations

import asyncio
import errno
import logging
from typing import TYPE_CHECKING, Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError, InvalidURLError

from broker.awake import Deadline
from gateway.web.answers import Refusal, of_http, problem, secure

if TYPE_CHECKING:
    from aiohttp.streams import StreamReader

    from gateway.web.admission import Admission, Slot
    from gateway.web.app_context import Caller
    from gateway.web.rpc import ExchangeLink

log = logging.getLogger("headgate")

LINGER_S = 5.0
"""How long a client may take to read the end of a stream whose session has ended."""
REASON_CHARS = 120
"""How much of a parser's reason is told."""


class Connection(web.RequestHandler):
    """One connection.

    Args:
        manager: of aiohttp.
        admission: whose pools it is in.
        slot: its slot among the strangers.
        deadline: loop time at which the first request head has to be there.
        head_s: how long a further one may take, from its first byte.

    Attributes:
        caller: who sent the last request, where that can be said of a further one that says the same of itself.
        exchange: the session in which its calls are made, one after the other; None before the first.
    """

    __slots__ = (
        "_admission",
        "_body",
        "_deadline",
        "_first_head_by",
        "_head_s",
        "_slot",
        "_wire",
        "caller",
        "exchange",
    )

    def __init__(
        self,
        manager: web.Server,
        admission: Admission,
        slot: Slot,
        deadline: float,
        head_s: float,
        **options: Any,
    ) -> None:
        super().__init__(manager, loop=asyncio.get_running_loop(), logger=log, **options)
        self._admission = admission
        self._slot = slot
        self._head_s = head_s
        self._first_head_by = deadline
        self._deadline: Deadline | asyncio.TimerHandle | None = None
        self._body: StreamReader | None = (
            None  # of the request that was answered last; None while one is under way
        )
        self._wire: asyncio.Transport | None = None
        self.caller: Caller | None = None
        self.exchange: ExchangeLink | None = None

    def arrived(self) -> None:
        """A request head is there."""
        self._body = None
        self._expect_nothing()
        self._slot.set_busy()

    def belongs_to(self, user: str) -> None:
        """A credential of ``user`` was accepted with the present request.

        Raises:
            Refusal: 429, too many connections of this user are at work.
        """
        users = self._admission.users
        if not self._slot.move(users, user):
            text = f"{users.of(user)} HTTP connections of {user} are at work (limits.connections_per_user)"
            raise Refusal(429, text)

    def keep(self, exchange: ExchangeLink) -> None:
        """Have further calls made in this session, which ends with the connection; if that is still there."""
        if self._wire is not None:
            self.exchange = exchange

    def lingers(self) -> None:
        """The session of its request has ended: the client has a while to read the last of it, and may lose that to a
        newcomer.
        """
        self._expect_nothing()
        if self._wire is not None:
            self._slot.set_idle()
            self._deadline = self._loop.call_later(LINGER_S, self.cut)

    def cut(self) -> None:
        """End it at once, whether or not its client reads."""
        wire = self._wire
        self._end()
        self.force_close()
        if wire is not None:
            wire.abort()

    def _end(self) -> None:
        self._wire = None
        self._expect_nothing()
        self._slot.release()
        if self.exchange is not None:
            self.exchange.close("the connection ended")
            self.exchange = None

    def _expect_head_by(self, due: float) -> None:
        self._deadline = Deadline(self._loop, due, self._head_s, self.cut)

    def _expect_nothing(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None

    # -- what asyncio and aiohttp call

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The connection begins, its TLS handshake done."""
        assert isinstance(transport, asyncio.Transport)
        self._wire = transport
        self._slot.abort = self.cut
        self._expect_head_by(self._first_head_by)
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        """It has ended, or was taken over."""
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Bytes behind the end of a request begin the next head, which may be there in one piece."""
        # bytes of a body that still comes are no new head: its own deadline is that of whoever reads it
        begins = bool(data) and self._body is not None and self._deadline is None and self._body.is_eof()
        super().data_received(data)
        if begins and not self._messages:
            self._expect_head_by(self._loop.time() + self._head_s)

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        """The answer is there and is written now."""
        self._expect_nothing()
        self._slot.set_idle()
        # raised before our handlers, as for an Expect that nobody knows
        if isinstance(resp, web.HTTPException):
            resp = of_http(resp)
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            self._body = request.content

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no HTTP, or to a fault outside of our handlers; the connection ends behind it."""
        self.log_exception("a request of %s failed", request.remote, exc_info=exc)
        # a second head in the middle of an answer would be read as its body
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun already")
        if isinstance(exc, HttpProcessingError):
            answer = problem(status, f"malformed request: {reason_of(exc)}", errno.EPROTO)
        else:
            answer = problem(status, "a fault of the gateway; its log has the reason", errno.EIO)
        secure(answer)
        answer.force_close()
        return answer

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """For aiohttp: one line on what a client did wrong, and more on what went wrong here."""
        error = kw.get("exc_info")
        if isinstance(error, HttpProcessingError | web.RequestPayloadError):
            name = self.peername
            log.info(
                "malformed request of %s: %s",
                name[0] if isinstance(name, tuple) else "unix",
                reason_of(error),
            )
        else:
            log.error(*args, **kw)


def connection_of(request: web.BaseRequest) -> Connection | None:
    """The connection that a request came over; None where another server than a `Listener` took it."""
    return request.protocol if isinstance(request.protocol, Connection) else None


def reason_of(error: BaseException) -> str:
    """What a parser says was wrong, without what it quotes: a URL or a header may hold a secret.

    >>> reason_of(HttpProcessingError(message="Got more than 16384 bytes when reading: b'secret'"))
    'Got more than 16384 bytes when reading'
    """
    if isinstance(error, InvalidURLError):
        return "invalid URL"
    text = error.message if isinstance(error, HttpProcessingError) else str(error)
    text = text.removeprefix("400, message:\n").strip()
    return text.partition("\n")[0].partition(":")[0][:REASON_CHARS]
