"""One DEALER to one directory: says HELLO, announces states and renews their leases, notices silence and restarts.

The host's name is looked up beside the reactor (``naming``). libzmq connects again by itself and says nothing about it.
So a connection sends a BEAT every ``pulse_s``: it names the version of each state that was announced. A directory that
does not know who that is, or has another version, answers GREET. GREET is answered by HELLO, HELLO by WELCOME, and that
by announcing everything: whatever was lost is mended so. A directory that said nothing for a lease is lost; the first
word from it afterwards is answered by HELLO, too.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Final

import zmq

from broker.awake import StallMeter
from broker.backoff import Backoff
from broker.oslo.directory import wire
from broker.oslo.directory.wire import Body, DirectoryKind, DirectoryMessage, Hello, Welcome
from broker.oslo.frames import Malformed
from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.reactor.naming import connect
from broker.oslo.reactor.socket import Outcome, Socket
from broker.oslo.reactor.tuning import Tuning, tune_local, tune_tcp
from broker.oslo.records import Beat, Place, State
from broker.rates import Throttle
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


class DirectoryConnection:
    """A connection to the directory at ``endpoint``, until ``close``; made in the reactor's thread, after its ``open``.

    This one announces. Who reads overrides ``on_welcome``, ``on_message`` and ``on_lost`` (``link.DirectoryLink``).

    Args:
        reactor: whose thread.
        endpoint: ``tcp://host:port`` or ``ipc://path``.
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
        *,
        tuning: Tuning,
        hello: Hello,
        pulse_s: float = PULSE_S,
    ) -> None:
        if reactor.context is None:
            raise RuntimeError("a connection to a directory is made before its reactor was opened")
        self.endpoint = endpoint
        self.welcome: Welcome | None = None
        self.counts = dict.fromkeys(
            ("hellos", "welcomes", "lost", "heard", "malformed", "refused", "unsent"), 0
        )
        self._reactor = reactor
        self._hello = hello
        self._pulse_s = pulse_s
        self._heard_at = self._known_at = reactor.now()
        self._stall = StallMeter(reactor.now)
        self._expected = "expected a directory there, in plaintext as we are"
        if tuning.curve is not None and not endpoint.startswith("ipc:"):
            key = tuning.curve.server_key if isinstance(tuning.curve, CurveClient) else ""
            self._expected = (
                f"expected a directory with the CURVE key {key} (directory_key, or curve_cert) there"
            )
        self._greeted_at = -GREET_AGAIN_S
        self._backoff = Backoff(GREET_FIRST_S, GREET_LAST_S, spread=False)
        self._greet_timer: Timer | None = None
        self._lines = Throttle(QUIET_S)
        self._states: dict[Place, State] = {}
        sock = reactor.context.socket(zmq.DEALER)
        if endpoint.startswith("ipc:"):
            tune_local(sock, wire.JSON_BYTES_MAX)
        else:
            tune_tcp(sock, replace(tuning, max_bytes=wire.JSON_BYTES_MAX))
        self._socket = Socket(reactor, sock, self._receive, outbox_msgs=1)
        try:
            own = tuning.curve.certificate.public_key if tuning.curve is not None else ""
            self._connection = connect(reactor, self._socket, endpoint, own)
        except BaseException:
            self._socket.close()
            raise
        self._tick_timer = self._tick_in(pulse_s)
        self._greet()

    # ------------------------------------------------------------ for the owner

    @property
    def alive(self) -> bool:
        """True while the directory answers."""
        return self.welcome is not None

    @property
    def closed(self) -> bool:
        """True after ``close``."""
        return self._socket.closed

    def announce(self, state: State) -> None:
        """The directory shall have ``state``, from now on and whenever it was lost, until ``withdraw``."""
        self._states[state.place] = state
        if self.alive:
            self._send(DirectoryKind.ANNOUNCE, state)

    def announced(self) -> tuple[State, ...]:
        """All that the directory shall have."""
        return tuple(self._states.values())

    def withdraw(self, place: Place) -> None:
        """The pipeline there has ended; harmless when it was not announced."""
        state = self._states.pop(place, None)
        if state is not None and self.alive:
            self._send(DirectoryKind.LEAVE, state.beat)

    def away(self, place: Place) -> None:
        """The pipeline there is started again in a moment."""
        state = self._states.get(place)
        if state is not None and self.alive:
            self._send(DirectoryKind.AWAY, state.beat)

    def status(self) -> dict[str, Any]:
        """For status."""
        return {"endpoint": self.endpoint, "alive": self.alive, "closed": self.closed, **self.counts}

    def close(self, linger_ms: int = 0) -> None:
        """End it; what was sent has ``linger_ms`` to leave. Harmless twice."""
        self._tick_timer.cancel()
        if self._greet_timer is not None:
            self._greet_timer.cancel()
        self._socket.close(linger_ms)
        self.welcome = None

    # ------------------------------------------------------------ for who reads

    def on_welcome(self, _welcome: Welcome) -> bool:
        """The directory knows us, from the beginning; False ends the connection: it must not be spoken to."""
        return True

    def on_message(self, _message: DirectoryMessage) -> None:
        """It said something else, after WELCOME."""

    def on_lost(self) -> None:
        """It is silent."""

    # ------------------------------------------------------------ speaking

    def _send(self, kind: DirectoryKind, body: Body) -> bool:
        """Say it now, or not at all: what waits is out of date later, and is asked for again."""
        if self._socket.send(wire.encode(kind, body)) is Outcome.SENT:
            return True
        self._socket.take_back()
        self.counts["unsent"] += self.alive
        return False

    def _greet(self) -> None:
        if self._greet_timer is not None:
            self._greet_timer.cancel()
            self._greet_timer = None
        if self._socket.closed:
            return
        if self._send(DirectoryKind.HELLO, self._hello):
            self.counts["hellos"] += 1
            self._greeted_at = self._reactor.now()
            self._backoff.reset()
            return
        self._greet_timer = self._reactor.call_later(self._backoff.after(), self._greet)

    def _greet_soon(self) -> None:
        wait_s = self._greeted_at + GREET_AGAIN_S - self._reactor.now()
        if wait_s <= 0:
            self._greet()
        elif self._greet_timer is None:
            self._greet_timer = self._reactor.call_later(wait_s, self._greet)

    def _tick_in(self, seconds: float) -> Timer:
        self._stall.wakes_at(self._reactor.now() + seconds)
        return self._reactor.call_later(seconds, self._tick)

    def _tick(self) -> None:
        now = self._reactor.now()
        # what was said while we were stopped comes now
        self._heard_at = min(self._heard_at + self._stall.stalled_s(), now)
        pulse_s = self._pulse_s
        if self.welcome is not None:
            pulse_s = min(pulse_s, self.welcome.lease_s / 5)
            if now - self._heard_at > self.welcome.lease_s:
                self._lose()
        self._tick_timer = self._tick_in(pulse_s)
        self._connection.look(not self.alive)
        if not self.alive and now - self._known_at > STRANGE_S and not self.endpoint.startswith("ipc:"):
            self._log(logging.WARNING, f"%s: no answer for %.0f s; {self._expected}", now - self._known_at)
        if self._greet_timer is None:
            self._send(DirectoryKind.BEAT, self._beats() if self.alive else ())

    def _beats(self) -> tuple[Beat, ...]:
        return tuple(state.beat for state in self._states.values())

    def _lose(self) -> None:
        self.counts["lost"] += 1
        lease_s = 0.0 if self.welcome is None else self.welcome.lease_s
        self.welcome = None
        self._known_at = self._reactor.now()
        self._log(logging.WARNING, "%s: silent for %.3g s; what it told stays in use", lease_s)
        self.on_lost()

    # ------------------------------------------------------------ listening

    def _receive(self, parts: list[bytes], _origin: str) -> None:
        self._heard_at = self._reactor.now()
        self.counts["heard"] += 1
        try:
            message = wire.decode(parts)
        except Malformed as error:
            self.counts["malformed"] += 1
            self._log(logging.WARNING, "%s: %s", error)
            return
        if message.kind is DirectoryKind.WELCOME:
            self._welcomed(message.body)
        elif message.kind is DirectoryKind.REFUSED:
            self.counts["refused"] += 1
            self._log(logging.WARNING, "%s: refused: %s", message.body.reason[:200])
        elif self.welcome is None or message.kind is DirectoryKind.GREET:
            self._greet_soon()
        else:
            self.on_message(message)

    def _welcomed(self, welcome: Welcome) -> None:
        self.counts["welcomes"] += 1
        self.welcome = welcome
        if not self.on_welcome(welcome):
            self.close()
            return
        for state in self._states.values():
            self._send(DirectoryKind.ANNOUNCE, state)

    def _log(self, level: int, text: str, *values: object) -> None:
        if self._lines.admits(text, self._reactor.now()):  # or rubbish would fill the log
            self._reactor.say(level, f"directory {text}", (self.endpoint, *values))
