"""One DEALER to one directory, and who finds the directories of an application.

A link says HELLO, announces states and renews their leases, feeds a replica with what it is told, and notices silence
and restarts. libzmq connects again by itself and says nothing about it. So a link sends a BEAT every ``pulse_s``: it
names the version of each state that was announced. A directory that does not know who that is, or has another version,
answers GREET. GREET is answered by HELLO, HELLO by WELCOME, and that by announcing everything: whatever was lost is
mended so. A directory that said nothing for a lease is lost; the first word from it afterwards is answered by HELLO,
too.

Used in applications, too: nothing is logged but through the reactor, and nothing waits.
"""

# compiled: mypyc

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Final

import zmq

from broker.awake import StallMeter
from broker.backoff import Backoff
from broker.errors import HeadgateError
from broker.oslo.directory import wire
from broker.oslo.directory.replica import Replica
from broker.oslo.directory.wire import Body, DirectoryKind, DirectoryMessage, Hello, Welcome
from broker.oslo.frames import Malformed
from broker.oslo.names import DIRECTORY_SOCKET
from broker.oslo.reactor.link import Link
from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.reactor.socket import Outcome
from broker.oslo.reactor.tuning import Tuning
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
LOOK_S: Final = 1.0
# read where it is used, not folded by the compiler: tests change it
RENEW_S: float = 5.0
"""Between two looks at certificates while a directory is silent."""


class DirectoryLink(Link):
    """A connection to the directory at ``endpoint``, until ``close``; made in the reactor's thread, after its ``open``.

    Args:
        reactor: whose thread.
        endpoint: ``tcp://host:port`` or ``ipc://path``; the name of the source in ``replica``.
        replica: what is fed; None: who announces only, and wants to be told nothing.
        tuning: keep-alive and CURVE, with the directory's key.
        known: is told who the directory is; False ends the link: it is ourselves. None: whoever it is.
        pulse_s: between two BEATs; never more than a fifth of the directory's lease.

    Attributes:
        counts: what happened how often.
        welcome: what the directory said of itself; None while it is not known to be there.
    """

    def __init__(
        self,
        reactor: Reactor,
        endpoint: str,
        replica: Replica | None = None,
        *,
        tuning: Tuning | None = None,
        known: Callable[[Welcome], bool] | None = None,
        pulse_s: float = PULSE_S,
    ) -> None:
        if tuning is None:
            tuning = Tuning()
        self.welcome: Welcome | None = None
        self.counts = dict.fromkeys(
            ("hellos", "welcomes", "lost", "heard", "malformed", "refused", "unsent"), 0
        )
        self._replica = replica
        self._known = known
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
        self._pauses = Backoff(GREET_FIRST_S, GREET_LAST_S, spread=False)
        self._greet_timer: Timer | None = None
        self._tick_timer: Timer | None = None
        self._lines = Throttle(QUIET_S)
        self._states: dict[Place, State] = {}
        tuning = replace(tuning, max_bytes=wire.JSON_BYTES_MAX)
        super().__init__(reactor, zmq.DEALER, endpoint, self._on_frames, tuning=tuning, outbox_msgs=1)
        self._tick_in(pulse_s)
        self._greet()

    # ------------------------------------------------------------ for the owner

    @property
    def alive(self) -> bool:
        """True while the directory answers."""
        return self.welcome is not None

    def announce(self, state: State) -> None:
        """The directory shall have ``state``, from now on and whenever it was lost, until ``withdraw``."""
        self._states[state.place] = state
        if self.alive:
            self._tell(DirectoryKind.ANNOUNCE, state)

    def announced(self) -> tuple[State, ...]:
        """All that the directory shall have."""
        return tuple(self._states.values())

    def withdraw(self, place: Place) -> None:
        """The pipeline there has ended; harmless when it was not announced."""
        state = self._states.pop(place, None)
        if state is not None and self.alive:
            self._tell(DirectoryKind.LEAVE, state.beat)

    def away(self, place: Place) -> None:
        """The pipeline there is started again in a moment."""
        state = self._states.get(place)
        if state is not None and self.alive:
            self._tell(DirectoryKind.AWAY, state.beat)

    def status(self) -> dict[str, Any]:
        """For status."""
        return {"endpoint": self.endpoint, "alive": self.alive, "closed": self.closed, **self.counts}

    def close(self, linger_ms: int = 0) -> None:
        """End it; what was sent has ``linger_ms`` to leave, what was told stays. Harmless twice."""
        for timer in (self._tick_timer, self._greet_timer):
            if timer is not None:
                timer.cancel()
        super().close(linger_ms)
        self.welcome = None
        self._note_source_lost()

    def _note_source_lost(self) -> None:
        if self._replica is not None:
            self._replica.source_lost(self.endpoint, self._reactor.now())

    # ------------------------------------------------------------ speaking

    def _tell(self, kind: DirectoryKind, body: Body) -> bool:
        """Say it now, or not at all: what waits is out of date later, and is asked for again."""
        if self.send(wire.encode(kind, body)) is Outcome.SENT:
            return True
        self.take_back()
        self.counts["unsent"] += self.alive
        return False

    def _greet(self) -> None:
        if self._greet_timer is not None:
            self._greet_timer.cancel()
            self._greet_timer = None
        if self.closed:
            return
        if self._tell(DirectoryKind.HELLO, Hello(want=self._replica is not None)):
            self.counts["hellos"] += 1
            self._greeted_at = self._reactor.now()
            self._pauses.reset()
            return
        self._greet_timer = self._reactor.call_later(self._pauses.after(), self._greet)

    def _greet_soon(self) -> None:
        wait_s = self._greeted_at + GREET_AGAIN_S - self._reactor.now()
        if wait_s <= 0:
            self._greet()
        elif self._greet_timer is None:
            self._greet_timer = self._reactor.call_later(wait_s, self._greet)

    def _tick_in(self, seconds: float) -> None:
        self._stall.wakes_at(self._reactor.now() + seconds)
        self._tick_timer = self._reactor.call_later(seconds, self._tick)

    def _tick(self) -> None:
        now = self._reactor.now()
        # what was said while we were stopped comes now
        self._heard_at = min(self._heard_at + self._stall.stalled_s(), now)
        pulse_s = self._pulse_s
        if self.welcome is not None:
            pulse_s = min(pulse_s, self.welcome.lease_s / 5)
            if now - self._heard_at > self.welcome.lease_s:
                self._lose()
        self._tick_in(pulse_s)
        self.check_peer(not self.alive)
        if not self.alive and now - self._known_at > STRANGE_S and not self.endpoint.startswith("ipc:"):
            self._log(logging.WARNING, f"%s: no answer for %.0f s; {self._expected}", now - self._known_at)
        if self._greet_timer is None:
            self._tell(DirectoryKind.BEAT, self._beats() if self.alive else ())

    def _beats(self) -> tuple[Beat, ...]:
        return tuple(state.beat for state in self._states.values())

    def _lose(self) -> None:
        self.counts["lost"] += 1
        lease_s = 0.0 if self.welcome is None else self.welcome.lease_s
        self.welcome = None
        self._known_at = self._reactor.now()
        self._log(logging.WARNING, "%s: silent for %.3g s; what it told stays in use", lease_s)
        self._note_source_lost()

    # ------------------------------------------------------------ listening

    def _on_frames(self, parts: list[bytes], _origin: str) -> None:
        self._heard_at = self._reactor.now()
        self.counts["heard"] += 1
        try:
            message = wire.decode(parts)
        except Malformed as error:
            self.counts["malformed"] += 1
            self._log(logging.WARNING, "%s: %s", error)
            return
        if message.kind is DirectoryKind.WELCOME:
            self._on_welcome(message)
        elif message.kind is DirectoryKind.REFUSED:
            self.counts["refused"] += 1
            self._log(logging.WARNING, "%s: refused: %s", message.body.reason[:200])
        elif self.welcome is None or message.kind is DirectoryKind.GREET:
            self._greet_soon()
        elif self._replica is not None:
            self._replica.feed(self.endpoint, message, self._heard_at)

    def _on_welcome(self, message: DirectoryMessage) -> None:
        self.counts["welcomes"] += 1
        self.welcome = message.body
        if self._known is not None and not self._known(message.body):
            if self._replica is not None:
                self._replica.forget(self.endpoint)
            self.close()
            return
        if self._replica is not None:
            self._replica.feed(self.endpoint, message, self._heard_at)
        for state in self._states.values():
            self._tell(DirectoryKind.ANNOUNCE, state)

    def _log(self, level: int, text: str, *values: object) -> None:
        if self._lines.admits(text, self._reactor.now()):  # or rubbish would fill the log
            self._reactor.say(level, f"directory {text}", (self.endpoint, *values))


class Reader:
    """What an application's process reads: the directory of its node, or else those of ``directories``.

    Args:
        reactor: whose thread; open.
        replica: what is fed.
        ipc_dir: folder of the node's proxy.
        directories: ``tcp://host:port``, asked while the local directory is not there; () none.
        tuning: keep-alive and CURVE of those, asked for when the first is connected to, and again while one is silent:
            certificates are replaced. May raise HeadgateError later on, which keeps the former ones.
        trusted: whether the folder may be used now; asked before it is.
        look_s: between two looks for the socket of the local directory.

    Attributes:
        links: by endpoint, once they are opened.
    """

    def __init__(
        self,
        reactor: Reactor,
        replica: Replica,
        *,
        ipc_dir: str,
        directories: tuple[str, ...] = (),
        tuning: Callable[[], Tuning] = Tuning,
        trusted: Callable[[], bool] | None = None,
        look_s: float = LOOK_S,
    ) -> None:
        self.links: dict[str, DirectoryLink] = {}
        self._reactor = reactor
        self._replica = replica
        self._path = os.path.join(ipc_dir, DIRECTORY_SOCKET)
        self._local = f"ipc://{self._path}"
        self._trusted = trusted
        self._look_s = look_s
        self._directories = directories
        self._read_tuning = tuning
        self._tuning = tuning()
        self._read_s = reactor.now()
        self._timer: Timer | None = None
        self._look()

    @property
    def alive(self) -> bool:
        """True while some directory answers."""
        return any(link.alive for link in self.links.values())

    def status(self) -> dict[str, Any]:
        """For status."""
        return {"links": [link.status() for link in self.links.values()], **self._replica.status()}

    def close(self) -> None:
        """End all links; what they told stays. Harmless twice."""
        if self._timer is not None:
            self._timer.cancel()
        for link in self.links.values():
            link.close()

    def _look(self) -> None:
        self._timer = self._reactor.call_later(self._look_s, self._look)
        self._replica.tick(self._reactor.now())
        local = self.links.get(self._local)
        if local is None and os.path.exists(self._path) and (self._trusted is None or self._trusted()):
            # it knows the node's own servers, and all that its uplinks and Redis tell it: whoever answered before
            self._open(self._local)
        elif (local is None or not local.alive) and not (self.alive and self._replica.synced):
            for endpoint in self._directories:
                if endpoint not in self.links:
                    self._open(endpoint)
        if self._reactor.now() - self._read_s >= RENEW_S:
            self._renew()

    def _renew(self) -> None:
        """Connect anew where nobody answers and our certificate, or the one that nodes share, is another one now."""
        silent = [endpoint for endpoint in self._directories if self._is_silent(endpoint)]
        if not silent:
            return
        self._read_s = self._reactor.now()
        try:
            tuning = self._read_tuning()
        except HeadgateError:
            return  # said when it is connected to; a file that is just being written is read whole later
        if tuning != self._tuning:
            self._tuning = tuning
            for endpoint in silent:
                self.links[endpoint].close()
                self._open(endpoint)

    def _is_silent(self, endpoint: str) -> bool:
        link = self.links.get(endpoint)
        return link is not None and not (link.alive or link.closed)

    def _open(self, endpoint: str) -> None:
        self.links[endpoint] = DirectoryLink(self._reactor, endpoint, self._replica, tuning=self._tuning)
