"""The links of a process to the proxy of its own node: listeners that it opens and closes there, and its fan-outs.

Whatever is opened is opened again when the connection was made anew, since the proxy was started again then, and when
the proxy says that it does not know us. An OPEN that is not answered is repeated; for the proxy that changes nothing.

A subscription has no answer in ZeroMQ. So a token is subscribed to behind it: the proxy publishes ``[?token][OPENED]
[JSON Opened]`` when it sees that, and by then what was subscribed to before is in force. A token that is not answered
is followed by another one; after ``TOKENS`` of them the connection is made anew. libzmq repeats all subscriptions by
itself when the connection is lost.
"""

# compiled: mypyc

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

import msgspec
import zmq

from broker.nesting import decoder
from broker.oslo.frames import (
    HANDSHAKE_LETTER,
    NO_ID,
    Envelope,
    Kind,
    Malformed,
    decode,
    encode,
    new_id,
)
from broker.oslo.names import REASONS, Pipeline, Reason, control_file, exit_file
from broker.oslo.reactor import Timer
from broker.oslo.reactor.link import Link
from broker.oslo.reactor.socket import Frames, Outcome
from broker.oslo.reactor.tuning import PUBLISH_MSGS, Tuning
from broker.oslo.records import Opened, Opening, to_json

if TYPE_CHECKING:
    from broker.oslo.client.client import Client
    from broker.oslo.client.listeners import Listeners

PULSE_S: Final = 1.0
REPEAT_S: Final = 2.0
"""After so long an OPEN is sent again."""
DENIED_S: Final = 30.0
"""After so long an OPEN that was denied is tried again: the rules of a proxy may change."""
CLOSE_S: Final = 2.0
"""After so long the answer to CLOSE is not waited for any more."""
PATIENCE_S: Final = 0.5
"""For the answer to a token: some milliseconds when the proxy is there."""
TOKENS: Final = 4
_PULSE: Final = (encode(Kind.PULSE), b"")
_ABOUT_US: Final = frozenset(map(int, (Kind.OPENED, Kind.CLOSED, Kind.REFUSED, Kind.PULSE)))
"""All else is for a listener."""
_read_opened: Final = decoder(Opened)

Confirmed = Callable[[Opened], None]


class _State(Enum):
    """Of a listener at one pipeline of the proxy."""

    OPENING = 1
    OPEN = 2
    DENIED = 3
    CLOSING = 4


class _Entry:
    """Attributes: ``opening``: says what to open with; ``number`` of the last OPEN or CLOSE; ``frames`` of the last
    OPEN; ``sent_s`` when.
    """

    def __init__(self, listener: str, opening: Callable[[], Opening]) -> None:
        self.listener = listener
        self.opening = opening
        self.number = NO_ID
        self.frames: Frames = ()
        self.sent_s = 0.0
        self.state = _State.OPENING


class ControlLink(Link):
    """The DEALER at one ``.ctl`` file, made for its first listener. For the thread of the sockets.

    Args:
        listeners: is told what the proxy says of them, and takes everything else.
    """

    def __init__(
        self,
        client: Client,
        pipeline: Pipeline,
        listeners: Listeners,
    ) -> None:
        self._pipeline = pipeline
        self._listeners = listeners
        self._entries: dict[str, _Entry] = {}
        self._numbers: dict[bytes, str] = {}
        self._pulse_waits = False
        self._was_lost = False
        self._timer: Timer | None = None
        settings, folder = client.settings, client.folder
        super().__init__(
            client.reactor,
            zmq.DEALER,
            folder.endpoint(control_file(pipeline)),
            self.on_proxy_message,
            tuning=Tuning(max_bytes=settings.message_bytes_max),
            watched=True,
            usable=folder.usable,
            outbox_msgs=settings.outbox_msgs,
            outbox_bytes=settings.outbox_bytes,
        )
        self.flushed = self._on_flushed
        self._timer = client.reactor.call_later(PULSE_S, self._pulse)

    # ------------------------------------------------------------ listeners

    def register(self, listener: str, opening: Callable[[], Opening]) -> None:
        """Open a listener, for as long as it is not closed; ``opening`` is asked whenever that is said."""
        entry = self._entries[listener] = _Entry(listener, opening)
        self._send_open(entry)

    def unregister(self, listener: str) -> bool:
        """Close it; False: the proxy does not know it, so nothing has to be waited for."""
        entry = self._entries.get(listener)
        if entry is None:
            return False
        unsent = self.sift_all(lambda frames: frames is entry.frames)
        self._numbers.pop(entry.number, None)
        if entry.state is _State.DENIED or (unsent and entry.state is not _State.OPEN):
            del self._entries[listener]
            return False
        entry.state = _State.CLOSING
        entry.number = new_id()
        self._numbers[entry.number] = listener
        self.send((encode(Kind.CLOSE, listeners=(listener,), id=entry.number), b""))
        self._reactor.call_later(CLOSE_S, self._give_up, entry)
        return True

    def _give_up(self, entry: _Entry) -> None:
        if self._entries.get(entry.listener) is entry:
            self._end_entry(entry)

    def _end_entry(self, entry: _Entry) -> None:
        del self._entries[entry.listener]
        self._numbers.pop(entry.number, None)
        self._listeners.on_closed(self._pipeline, entry.listener)

    def _send_open(self, entry: _Entry) -> None:
        if entry.frames:
            self.sift_all(lambda frames: frames is entry.frames)
        self._numbers.pop(entry.number, None)
        entry.number = new_id()
        entry.sent_s = self._reactor.now()
        if entry.state is _State.OPEN:
            entry.state = _State.OPENING
        entry.frames = (encode(Kind.OPEN, id=entry.number), to_json(entry.opening()))
        self._numbers[entry.number] = entry.listener
        self.send(entry.frames)

    def on_lost(self) -> None:
        """See ``Link``."""
        self._was_lost = True

    def on_up(self) -> None:
        """The connection is there again: who starts a proxy again waits for us to register."""
        if self._was_lost:
            self._was_lost = False
            self._open_again()

    def _pulse(self) -> None:
        """Say that we are here. One pulse waits at most: it is what a proxy hears first when it comes back."""
        self._timer = self._reactor.call_later(PULSE_S, self._pulse)
        if not self._entries:
            return
        if not self._pulse_waits:
            self._pulse_waits = self.send(_PULSE) is Outcome.QUEUED
        now = self._reactor.now()
        for entry in self._entries.values():
            late_s = now - (DENIED_S if entry.state is _State.DENIED else REPEAT_S)
            if entry.state in (_State.OPENING, _State.DENIED) and entry.sent_s < late_s:
                self._send_open(entry)

    def _on_flushed(self, frames: Frames) -> None:
        if frames is _PULSE:
            self._pulse_waits = False

    def close(self, linger_ms: int = 0) -> None:
        """See ``Socket.close``."""
        if self._timer is not None:
            self._timer.cancel()
        super().close(linger_ms)

    # ------------------------------------------------------------ what comes

    def on_proxy_message(self, frames: list[bytes], _origin: str) -> None:
        """The proxy sent something: a call for one of our listeners, or a word about them."""
        try:
            envelope = decode(frames[0])
        except Malformed as error:
            self._listeners.on_malformed(self._pipeline, str(error))
            return
        kind = envelope.kind
        if kind not in _ABOUT_US:
            self._listeners.on_message(self._pipeline, envelope, frames)
        elif kind == Kind.OPENED:
            self._on_opened(envelope, frames)
        elif kind == Kind.CLOSED:
            entry = self._entries.get(self._numbers.get(envelope.id, ""))
            if entry is not None and entry.state is _State.CLOSING:
                self._end_entry(entry)
        elif kind == Kind.REFUSED:
            self._on_refused(envelope, frames)

    def _on_opened(self, envelope: Envelope, frames: list[bytes]) -> None:
        entry = self._entries.get(self._numbers.pop(envelope.id, ""))
        if entry is None or entry.state is _State.CLOSING or len(frames) != 2:
            return
        try:
            opened = _read_opened(frames[1])
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._listeners.on_malformed(self._pipeline, f"body of OPENED: {error}")
            return
        entry.state = _State.OPEN
        self._listeners.on_opened(self._pipeline, entry.listener, opened)

    def _on_refused(self, envelope: Envelope, frames: list[bytes]) -> None:
        if envelope.id == NO_ID:
            if envelope.reason == Reason.NO_ROUTE:
                self._open_again()
            return
        if envelope.reason == Reason.NO_CALLER:
            self._listeners.on_message(self._pipeline, envelope, frames)
            return
        entry = self._entries.get(self._numbers.pop(envelope.id, ""))
        if entry is None or entry.state is _State.CLOSING:
            return
        known = Reason(envelope.reason) if envelope.reason in Reason._value2member_map_ else Reason.BUSY
        entry.state = _State.DENIED if known in (Reason.DENIED, Reason.MALFORMED) else _State.OPENING
        text = frames[1][:64].decode(errors="replace") if len(frames) > 1 else ""
        self._listeners.on_refused(self._pipeline, entry.listener, known, text or REASONS[known])

    def _open_again(self) -> None:
        """The proxy does not know us; an OPEN that is on its way already does no harm twice."""
        entries = [entry for entry in self._entries.values() if entry.state in (_State.OPENING, _State.OPEN)]
        if not entries:
            return
        self._listeners.on_unknown(self._pipeline)
        for entry in entries:
            self._send_open(entry)
        for entry in [entry for entry in self._entries.values() if entry.state is _State.CLOSING]:
            self._end_entry(entry)


class FanoutSubscriptions(Link):
    """The SUB for the fan-outs of the node, made for its first subscription. For the thread of the sockets.

    Args:
        take: takes the frames of a message that is no answer to a token.
    """

    def __init__(self, client: Client, take: Callable[[list[bytes]], None]) -> None:
        self._take = take
        self._filters: Counter[bytes] = Counter()
        self._tokens: dict[bytes, list[Confirmed]] = {}
        self._timer: Timer | None = None
        self._tries = 0
        super().__init__(
            client.reactor,
            zmq.SUB,
            client.folder.endpoint(exit_file(Pipeline.FANOUT)),
            self._on_proxy_message,
            tuning=Tuning(max_bytes=client.settings.message_bytes_max),
            receive_msgs=PUBLISH_MSGS,
            usable=client.folder.usable,
        )

    def subscribe(self, data: bytes, confirmed: Confirmed) -> None:
        """Subscribe, once more; ``confirmed`` is called when it is in force."""
        self._filters[data] += 1
        if self._filters[data] == 1:
            self.sock.setsockopt(zmq.SUBSCRIBE, data)
        self._ask([confirmed])

    def unsubscribe(self, data: bytes) -> bool:
        """Take one subscription back; True when it was the last one of that filter."""
        if not self._filters[data]:
            return False
        self._filters[data] -= 1
        if self._filters[data]:
            return False
        del self._filters[data]
        self.sock.setsockopt(zmq.UNSUBSCRIBE, data)
        self._reactor.check_after_turn(self)
        return True

    def close(self, linger_ms: int = 0) -> None:
        """See ``Socket.close``."""
        if self._timer is not None:
            self._timer.cancel()
        self._tokens.clear()
        super().close(linger_ms)

    def _ask(self, confirmed: list[Confirmed]) -> None:
        token = HANDSHAKE_LETTER + new_id()
        self._tokens[token] = confirmed
        self.sock.setsockopt(zmq.SUBSCRIBE, token)
        self._reactor.check_after_turn(self)
        if self._timer is None:
            self._timer = self._reactor.call_later(PATIENCE_S, self._impatient)

    def _impatient(self) -> None:
        """Nothing was answered for a while: ask again, for all who wait."""
        self._timer = None
        if self.closed or not self._tokens:
            return
        waiting = [each for confirmed in self._tokens.values() for each in confirmed]
        for token in self._tokens:
            self.sock.setsockopt(zmq.UNSUBSCRIBE, token)
        self._tokens.clear()
        self._tries += 1
        if self._tries % TOKENS == 0:
            self.reconnect()
        self._ask(waiting)

    def _on_proxy_message(self, frames: list[bytes], _origin: str) -> None:
        if frames[0][:1] != HANDSHAKE_LETTER:
            self._take(frames)
            return
        confirmed = self._tokens.get(frames[0])
        opened = _answer(frames)
        if confirmed is None or opened is None:
            return  # what is no answer changes nothing: it is asked for again when patience ends
        del self._tokens[frames[0]]
        self.sock.setsockopt(zmq.UNSUBSCRIBE, frames[0])
        self._reactor.check_after_turn(self)
        self._tries = 0
        if not self._tokens and self._timer is not None:
            self._timer.cancel()
            self._timer = None
        for each in confirmed:
            each(opened)


def _answer(frames: list[bytes]) -> Opened | None:
    """The answer to a token; None when it is none."""
    if len(frames) != 3:
        return None
    try:
        return _read_opened(frames[2]) if decode(frames[1]).kind == Kind.OPENED else None
    except (Malformed, msgspec.MsgspecError, UnicodeDecodeError):
        return None
