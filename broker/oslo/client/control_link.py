"""The DEALER of a process at one ``.ctl`` file of its node: listeners that it opens and closes there, and its pulse.

Whatever is opened is opened again when the connection was made anew, since the proxy was started again then, and when
the proxy says that it does not know us. An OPEN that is not answered is repeated; for the proxy that changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import msgspec
import zmq

from broker.nesting import decoder
from broker.oslo.client.folder import TrustedFolder
from broker.oslo.contract import Settings
from broker.oslo.frames import NO_ID, Envelope, Kind, Malformed, decode, encode, new_id
from broker.oslo.names import REASONS, Pipeline, Reason, control_file
from broker.oslo.reactor import Reactor, Socket, Timer
from broker.oslo.reactor.monitor import SocketEvents
from broker.oslo.reactor.socket import Frames, Outcome
from broker.oslo.reactor.tuning import tune_local
from broker.oslo.records import Opened, Opening, to_json

if TYPE_CHECKING:
    from broker.oslo.client.registrations import ListenerRegistrations

PULSE_S: Final = 1.0
REPEAT_S: Final = 2.0
"""After so long an OPEN is sent again."""
DENIED_S: Final = 30.0
"""After so long an OPEN that was denied is tried again: the rules of a proxy may change."""
CLOSE_S: Final = 2.0
"""After so long the answer to CLOSE is not waited for any more."""
_WATCHED: Final = int(zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED)
_PULSE: Final = (encode(Kind.PULSE), b"")
_ABOUT_US: Final = frozenset(map(int, (Kind.OPENED, Kind.CLOSED, Kind.REFUSED, Kind.PULSE)))
"""All else is for a listener."""
_read_opened: Final = decoder(Opened)


class _Entry:
    """Attributes: ``opening``: says what to open with; ``number`` of the last OPEN or CLOSE; ``frames`` of the last
    OPEN; ``sent_s`` when.
    """

    __slots__ = ("closing", "confirmed", "denied", "frames", "listener", "number", "opening", "sent_s")

    def __init__(self, listener: str, opening: Callable[[], Opening]) -> None:
        self.listener = listener
        self.opening = opening
        self.number = NO_ID
        self.frames: Frames = ()
        self.sent_s = 0.0
        self.confirmed = self.closing = self.denied = False


class ControlLink:
    """One control link, opened with its first listener. For the thread of the sockets.

    Attributes:
        socket: the DEALER; None before it is opened.
    """

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        folder: TrustedFolder,
        pipeline: Pipeline,
        registrations: ListenerRegistrations,
    ) -> None:
        self.socket: Socket | None = None
        self._reactor = reactor
        self._settings = settings
        self._folder = folder
        self._pipeline = pipeline
        self._registrations = registrations
        self._entries: dict[str, _Entry] = {}
        self._numbers: dict[bytes, str] = {}
        self._timer: Timer | None = None
        self._pulse_waits = False
        self._events: SocketEvents | None = None
        self._was_lost = False

    # ------------------------------------------------------------ listeners

    def open(self, listener: str, opening: Callable[[], Opening]) -> None:
        """Register a listener, for as long as it is not closed; ``opening`` is asked whenever that is said."""
        socket = self._opened()
        entry = self._entries[listener] = _Entry(listener, opening)
        self._send_open(socket, entry)

    def close(self, listener: str) -> bool:
        """End it; False: the proxy does not know it, so nothing has to be waited for."""
        entry = self._entries.get(listener)
        socket = self.socket
        if entry is None or socket is None:
            return False
        unsent = socket.sift_all(lambda frames: frames is entry.frames)
        self._numbers.pop(entry.number, None)
        if entry.denied or (unsent and not entry.confirmed):
            del self._entries[listener]
            return False
        entry.closing = True
        entry.number = new_id()
        self._numbers[entry.number] = listener
        socket.send((encode(Kind.CLOSE, listeners=(listener,), id=entry.number), b""))
        self._reactor.call_later(CLOSE_S, self._give_up, entry)
        return True

    def _give_up(self, entry: _Entry) -> None:
        if self._entries.get(entry.listener) is entry:
            self._end_entry(entry)

    def _end_entry(self, entry: _Entry) -> None:
        del self._entries[entry.listener]
        self._numbers.pop(entry.number, None)
        self._registrations.on_closed(self._pipeline, entry.listener)

    def _send_open(self, socket: Socket, entry: _Entry) -> None:
        if entry.frames:
            socket.sift_all(lambda frames: frames is entry.frames)
        self._numbers.pop(entry.number, None)
        entry.number = new_id()
        entry.sent_s = self._reactor.now()
        entry.confirmed = False
        entry.frames = (encode(Kind.OPEN, id=entry.number), to_json(entry.opening()))
        self._numbers[entry.number] = entry.listener
        socket.send(entry.frames)

    # ------------------------------------------------------------ the socket

    def _opened(self) -> Socket:
        if self.socket is None:
            assert self._reactor.context is not None
            settings = self._settings
            sock: zmq.Socket[bytes] = self._reactor.context.socket(zmq.DEALER)
            tune_local(sock, settings.message_bytes_max)
            self.socket = Socket(
                self._reactor,
                sock,
                self.on_proxy_message,
                outbox_msgs=settings.outbox_msgs,
                outbox_bytes=settings.outbox_bytes,
            )
            self.socket.flushed = self._flushed
            self._events = SocketEvents(self._reactor, sock, _WATCHED, self._happened)
            self._folder.connect(self.socket, control_file(self._pipeline))
            self._timer = self._reactor.call_later(PULSE_S, self._pulse)
        return self.socket

    def _happened(self, event: int, _value: int) -> None:
        """The connection has ended, or is there again: who starts a proxy again waits for us to register."""
        if event == zmq.EVENT_DISCONNECTED:
            self._was_lost = True
        elif self._was_lost:
            self._was_lost = False
            self._open_again()

    def send(self, frames: Frames) -> bool:
        """Send something; False: no room, or nothing was ever opened."""
        return self.socket is not None and self.socket.send(frames) > Outcome.FULL

    def _pulse(self) -> None:
        """Say that we are here. One pulse waits at most: it is what a proxy hears first when it comes back."""
        self._timer = self._reactor.call_later(PULSE_S, self._pulse)
        socket = self.socket
        if socket is None or not self._entries:
            return
        if not self._pulse_waits:
            self._pulse_waits = socket.send(_PULSE) is Outcome.QUEUED
        now = self._reactor.now()
        for entry in self._entries.values():
            late_s = now - (DENIED_S if entry.denied else REPEAT_S)
            if not (entry.confirmed or entry.closing) and entry.sent_s < late_s:
                self._send_open(socket, entry)

    def _flushed(self, frames: Frames) -> None:
        if frames is _PULSE:
            self._pulse_waits = False

    def shut(self, linger_ms: int) -> int:
        """Close the socket; returns how many messages were still to be sent."""
        if self._timer is not None:
            self._timer.cancel()
        if self.socket is None:
            return 0
        if self._events is not None:
            self._events.close()
        left = self.socket.waiting
        self.socket.close(linger_ms)
        return left

    # ------------------------------------------------------------ what comes

    def on_proxy_message(self, frames: list[bytes], _origin: str) -> None:
        """The proxy sent something: a call for one of our listeners, or a word about them."""
        try:
            envelope = decode(frames[0])
        except Malformed as error:
            self._registrations.on_malformed(self._pipeline, str(error))
            return
        kind = envelope.kind
        if kind not in _ABOUT_US:
            self._registrations.on_message(self._pipeline, envelope, frames)
        elif kind == Kind.OPENED:
            self._on_opened(envelope, frames)
        elif kind == Kind.CLOSED:
            entry = self._entries.get(self._numbers.get(envelope.id, ""))
            if entry is not None and entry.closing:
                self._end_entry(entry)
        elif kind == Kind.REFUSED:
            self._on_refused(envelope, frames)

    def _on_opened(self, envelope: Envelope, frames: list[bytes]) -> None:
        entry = self._entries.get(self._numbers.pop(envelope.id, ""))
        if entry is None or entry.closing or len(frames) != 2:
            return
        try:
            opened = _read_opened(frames[1])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._registrations.on_malformed(self._pipeline, f"body of OPENED: {error}")
            return
        entry.confirmed, entry.denied = True, False
        self._registrations.on_opened(self._pipeline, entry.listener, opened)

    def _on_refused(self, envelope: Envelope, frames: list[bytes]) -> None:
        if envelope.id == NO_ID:
            if envelope.reason == Reason.NO_ROUTE:
                self._open_again()
            return
        if envelope.reason == Reason.NO_CALLER:
            self._registrations.on_message(self._pipeline, envelope, frames)
            return
        entry = self._entries.get(self._numbers.pop(envelope.id, ""))
        if entry is None or entry.closing:
            return
        known = Reason(envelope.reason) if envelope.reason in Reason._value2member_map_ else Reason.BUSY
        entry.denied = known in (Reason.DENIED, Reason.MALFORMED)
        text = frames[1][:64].decode(errors="replace") if len(frames) > 1 else ""
        self._registrations.on_refused(self._pipeline, entry.listener, known, text or REASONS[known])

    def _open_again(self) -> None:
        """The proxy does not know us; an OPEN that is on its way already does no harm twice."""
        socket = self.socket
        entries = [entry for entry in self._entries.values() if not (entry.closing or entry.denied)]
        if socket is None or not entries:
            return
        self._registrations.on_unknown(self._pipeline)
        for entry in entries:
            self._send_open(socket, entry)
        for entry in [entry for entry in self._entries.values() if entry.closing]:
            self._end_entry(entry)
