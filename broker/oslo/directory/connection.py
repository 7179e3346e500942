"""One DEALER to one directory: greets it, keeps it from forgetting us, notices its silence and its restarts.

The host's name is looked up beside the reactor (``naming``). libzmq connects again by itself and says nothing about it.
So a line sends a BEAT every ``PULSE_S``, and a directory that does not know who that is asks for HELLO. A directory
that said nothing for a lease is lost; the first word from it afterwards is answered by HELLO, which begins everything
anew.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

import msgspec
import zmq

from broker.nesting import decoder
from broker.oslo import frames
from broker.oslo.directory import wire
from broker.oslo.directory.wire import Body, DirectoryKind, DirectoryMessage, Hello, Welcome
from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.reactor.naming import connect
from broker.oslo.reactor.pipe import Outcome, Pipe
from broker.oslo.reactor.tuning import Tuning, tune_local, tune_tcp
from broker.oslo.records import Age, Beat, Change, Offer, Place
from broker.transport.curve import CurveClient

PULSE_S: Final = 1.0
"""Between two BEATs, unless somebody says otherwise."""
GREET_FIRST_S: Final = 0.005
"""After the first HELLO that could not be sent; doubled each time, since connecting takes a millisecond or for ever."""
GREET_LAST_S: Final = 0.5
GREET_AGAIN_S: Final = 0.2
"""Between two HELLOs because something did not fit."""
STRANGE_S: Final = 5.0
"""A directory that has not answered for so long is told to the log: it is away, or does not let us in."""
QUIET_S: Final = 60.0
"""Between two lines in the log about the same refusal."""
ASKED_MAX: Final = 16
"""Status requests that may wait for their answers."""
STATUS_S: Final = 2.0

_read_status: Final = decoder(dict[str, Any])

Done = Callable[[dict[str, Any] | None], None]
"""Takes a directory's status; None: no answer in time."""


@dataclass(slots=True)
class ConnectionHooks:
    """What a line tells its owner, in the reactor's thread.

    Attributes:
        welcomed: the directory knows us, from the beginning; False ends the line: it must not be spoken to.
        heard: anything else it said, after WELCOME.
        lost: it is silent.
        beats: what it is told to be alive every pulse.
    """

    welcomed: Callable[[Welcome], bool]
    heard: Callable[[DirectoryMessage], None]
    lost: Callable[[], None]
    beats: Callable[[], tuple[Beat, ...]]


class DirectoryConnection:
    """A connection to the directory at ``endpoint``, until ``close``; made in the reactor's thread, after its ``open``.

    Args:
        reactor: whose thread.
        endpoint: ``tcp://host:port`` or ``ipc://path``.
        hooks: who is told.
        tuning: of TCP sockets.
        hello: what we say first.
        pulse_s: between two BEATs; never more than a fifth of the directory's lease.

    Attributes:
        counts: what happened how often.
        welcome: what the directory said of itself; None while it is not known to be there.
    """

    def __init__(
        self,
        reactor: Reactor,
        endpoint: str,
        hooks: ConnectionHooks,
        *,
        tuning: Tuning,
        hello: Hello,
        pulse_s: float = PULSE_S,
    ) -> None:
        if reactor.context is None:
            raise RuntimeError("a line to a directory is made before its reactor was opened")
        self.endpoint = endpoint
        self.welcome: Welcome | None = None
        self.counts = dict.fromkeys(
            ("hellos", "welcomes", "lost", "heard", "malformed", "refused", "oversized", "unsent"), 0
        )
        self._reactor = reactor
        self._hooks = hooks
        self._hello = hello
        self._pulse_s = pulse_s
        self._heard_at = self._ticked_at = self._known_at = reactor.now()
        self._expected = "expected a directory there, in plaintext as we are"
        if tuning.curve is not None and not endpoint.startswith("ipc:"):
            key = tuning.curve.server_key if isinstance(tuning.curve, CurveClient) else ""
            self._expected = (
                f"expected a directory with the CURVE key {key} (directory_key, or curve_cert) there"
            )
        self._greeted_at = -GREET_AGAIN_S
        self._greet_s = GREET_FIRST_S
        self._greet_timer: Timer | None = None
        self._said: dict[str, float] = {}
        self._asked: dict[bytes, tuple[Done, Timer]] = {}
        sock = reactor.context.socket(zmq.DEALER)
        if endpoint.startswith("ipc:"):
            tune_local(sock, wire.HEARD_BYTES_MAX)
        else:
            tune_tcp(sock, replace(tuning, max_bytes=wire.HEARD_BYTES_MAX))
        self._pipe = Pipe(reactor, sock, self._receive, outbox_msgs=1)
        try:
            own = tuning.curve.certificate.public_key if tuning.curve is not None else ""
            self._connection = connect(reactor, self._pipe, endpoint, own)
        except BaseException:
            self._pipe.close()
            raise
        self._tick_timer = reactor.call_later(pulse_s, self._tick)
        self._greet()

    # ------------------------------------------------------------ for the owner

    @property
    def alive(self) -> bool:
        """True while the directory answers."""
        return self.welcome is not None

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self._pipe.closed

    def send(self, kind: DirectoryKind, body: Body) -> bool:
        """Say it now; False: it did not leave."""
        message = wire.encode(kind, body)
        if len(message[1]) > wire.TOLD_BYTES_MAX:
            self.counts["oversized"] += 1
            self._log(logging.ERROR, "%s: a %s of %d bytes is too large for it", kind.name, len(message[1]))
            return False
        if self._now(message):
            return True
        self.counts["unsent"] += 1
        return False

    def greet(self) -> None:
        """Begin anew, soon: something does not fit."""
        wait_s = self._greeted_at + GREET_AGAIN_S - self._reactor.now()
        if wait_s <= 0:
            self._greet()
        elif self._greet_timer is None:
            self._greet_timer = self._reactor.call_later(wait_s, self._greet)

    def request_status(self, done: Done) -> None:
        """Ask for the directory's counters; ``done`` is called once, within ``STATUS_S``."""
        number = frames.new_id()
        sent = len(self._asked) < ASKED_MAX and (
            self._now((frames.encode(frames.Kind.STATUS, id=number), b""))
        )
        if not sent:
            self._reactor.call_soon(done, None)
            return
        self._asked[number] = (done, self._reactor.call_later(STATUS_S, self._answer, number, None))

    def close(self, linger_ms: int = 0) -> None:
        """End it; what was sent has ``linger_ms`` to leave. Harmless twice."""
        self._tick_timer.cancel()
        if self._greet_timer is not None:
            self._greet_timer.cancel()
        for number in list(self._asked):
            self._answer(number, None)
        self._pipe.close(linger_ms)
        self.welcome = None

    # ------------------------------------------------------------ speaking

    def _now(self, message: tuple[bytes, bytes]) -> bool:
        """Send it, or not at all: what waits is out of date later, and is asked for again."""
        if self._pipe.send(message) is Outcome.SENT:
            return True
        self._pipe.take_back()
        return False

    def _greet(self) -> None:
        if self._greet_timer is not None:
            self._greet_timer.cancel()
            self._greet_timer = None
        if self._pipe.closed:
            return
        if self._now(wire.encode(DirectoryKind.HELLO, self._hello)):
            self.counts["hellos"] += 1
            self._greeted_at = self._reactor.now()
            self._greet_s = GREET_FIRST_S
            return
        self._greet_timer = self._reactor.call_later(self._greet_s, self._greet)
        self._greet_s = min(self._greet_s * 2, GREET_LAST_S)

    def _tick(self) -> None:
        now = self._reactor.now()
        late = now - self._ticked_at > 2 * self._pulse_s  # we were stopped: what was said meanwhile comes now
        self._ticked_at = now
        pulse_s = self._pulse_s
        if self.welcome is not None:
            pulse_s = min(pulse_s, self.welcome.lease_s / 5)
            if now - self._heard_at > self.welcome.lease_s and not late:
                self._lose()
        self._tick_timer = self._reactor.call_later(pulse_s, self._tick)
        self._connection.look(not self.alive)
        if not self.alive and now - self._known_at > STRANGE_S and not self.endpoint.startswith("ipc:"):
            self._log(logging.WARNING, f"%s: no answer for %.0f s; {self._expected}", now - self._known_at)
        if self._greet_timer is None:
            self._now(wire.encode(DirectoryKind.BEAT, self._hooks.beats() if self.alive else ()))

    def _lose(self) -> None:
        self.counts["lost"] += 1
        lease_s = 0.0 if self.welcome is None else self.welcome.lease_s
        self.welcome = None
        self._known_at = self._reactor.now()
        self._log(logging.WARNING, "%s: silent for %.3g s; what it told stays in use", lease_s)
        self._hooks.lost()

    # ------------------------------------------------------------ listening

    def _receive(self, parts: list[bytes], _origin: str) -> None:
        self._heard_at = self._reactor.now()
        self.counts["heard"] += 1
        if parts[0][:3] == frames.MAGIC:
            self._take_status(parts)
            return
        try:
            message = wire.decode(parts)
        except frames.Malformed as error:
            self.counts["malformed"] += 1
            self._log(logging.WARNING, "%s: %s", error)
            return
        if message.kind is DirectoryKind.WELCOME:
            self._welcomed(message.body)
        elif message.kind is DirectoryKind.REFUSED:
            self.counts["refused"] += 1
            self._log(logging.WARNING, "%s: refused: %s", message.body.reason[:200])
        elif self.welcome is None or (message.kind is DirectoryKind.RESEND and not message.body):
            self.greet()
        else:
            self._hooks.heard(message)

    def _welcomed(self, welcome: Welcome) -> None:
        self.counts["welcomes"] += 1
        self.welcome = welcome
        if not self._hooks.welcomed(welcome):
            self.close()

    def _take_status(self, parts: list[bytes]) -> None:
        try:
            status = _read_status(parts[1])
            number = frames.decode(parts[0]).id
        except (frames.Malformed, msgspec.MsgspecError, UnicodeDecodeError, IndexError):
            self.counts["malformed"] += 1
            return
        self._answer(number, status)

    def _answer(self, number: bytes, status: dict[str, Any] | None) -> None:
        asked = self._asked.pop(number, None)
        if asked is not None:
            asked[1].cancel()
            asked[0](status)

    def _log(self, level: int, text: str, *values: object) -> None:
        now = self._reactor.now()
        if now - self._said.get(text, -QUIET_S) < QUIET_S:
            return  # one line of each kind, or rubbish would fill the log
        self._said[text] = now
        self._reactor.say(level, f"directory {text}", (self.endpoint, *values))


class StateAnnouncer:
    """Keeps one directory told of some offers: all of them after each WELCOME, then what changes.

    It has them by reference: whoever changes one says so by ``put`` in the same turn.
    """

    def __init__(self) -> None:
        self.line: DirectoryConnection | None = None
        self._offers: dict[Place, Offer] = {}
        self._told: dict[Place, Age] = {}

    def put(self, offer: Offer, change: Change | None = None) -> None:
        """``offer`` is new, or has become what it is by ``change``."""
        self._offers[offer.place] = offer
        line = self.line
        if line is None or not line.alive:
            self._told.pop(offer.place, None)
        elif change is not None and self._told.get(offer.place) == (change.incarnation, change.since):
            self._sent(offer, line.send(DirectoryKind.CHANGE, change))
        else:
            self._sent(offer, line.send(DirectoryKind.ANNOUNCE, offer.state()))

    def remove(self, place: Place) -> None:
        """It has ended."""
        offer = self._offers.pop(place, None)
        self._told.pop(place, None)
        if offer is not None and self.line is not None and self.line.alive:
            self.line.send(DirectoryKind.LEAVE, _beat(offer))

    def welcomed(self) -> None:
        """The directory knows nothing of ours."""
        self._told.clear()
        for offer in self._offers.values():
            self.put(offer)

    def resend(self, places: tuple[Place, ...]) -> None:
        """The directory asks for these."""
        for place in places:
            self._told.pop(place, None)
            if place in self._offers:
                self.put(self._offers[place])

    def beats(self) -> tuple[Beat, ...]:
        """What is still alive; a directory that has another version of it asks for it."""
        return tuple(map(_beat, self._offers.values()))

    def _sent(self, offer: Offer, sent: bool) -> None:
        if sent:
            self._told[offer.place] = offer.age
        else:
            self._told.pop(offer.place, None)


def _beat(offer: Offer) -> Beat:
    return Beat(offer.node, offer.pipeline, offer.incarnation, offer.version)
