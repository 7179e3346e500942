"""What speaks with a directory: a pipeline that announces, an application that reads, another directory that does both.

A ``Peer`` has one connection. It says HELLO, announces states and renews their leases, feeds a replica with what it is
told, and notices silence and restarts. libzmq connects again by itself and says nothing about it. So a peer sends a
BEAT every ``pulse_s``: it names the version of each state that was announced. A directory that does not know who that
is, or has another version, answers GREET. GREET is answered by HELLO, HELLO by WELCOME, and that by announcing
everything: whatever was lost is mended so. A directory that said nothing for a lease is lost; the first word from it
afterwards is answered by HELLO, too. While one is silent its CURVE keys may have changed: others are tried, if there
are any.

An ``Announcer`` makes the states: all of what one pipeline offers, told whenever that changes. The first change of a
pipeline that was quiet is told in the next turn of the reactor: ``listen`` waits for it. After that the pipeline
gathers what changes, and tells it together. The more it offers, the longer it gathers, so that listeners that open one
after another cost a bounded part of the processor, however many they are.

Used in applications, too: nothing is logged but through the reactor, and nothing waits.
"""

# compiled: mypyc

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from itertools import accumulate, islice, takewhile
from typing import Any, Final

import msgspec.structs
import zmq

from broker.awake import StallMeter
from broker.errors import HeadgateError
from broker.memory import compact
from broker.oslo.directory import wire
from broker.oslo.directory.state import Replica
from broker.oslo.directory.wire import Body, DirectoryKind, DirectoryMessage, Hello, Welcome
from broker.oslo.frames import Malformed
from broker.oslo.names import DIRECTORY_SOCKET
from broker.oslo.node import NodeConfig
from broker.oslo.reactor.link import Link
from broker.oslo.reactor.loop import Reactor, Timer
from broker.oslo.reactor.socket import Outcome
from broker.oslo.reactor.tuning import Tuning
from broker.oslo.records import Place, Record, State, chars_of, fits_state
from broker.rates import Throttle
from broker.transport.curve import CurveClient

PULSE_S: Final = 1.0
"""Between two BEATs, unless somebody says otherwise."""
GREET_AGAIN_S: Final = 0.2
"""Between two HELLOs because something did not fit."""
STRANGE_S: Final = 5.0
"""A directory that has not answered for so long is told to the log: it is away, or does not let us in."""
QUIET_S: Final = 60.0
"""Between two lines in the log about the same refusal."""
LOOK_S: Final = 1.0
# read where it is used, not folded by the compiler: tests change it
RENEW_S: float = 3.0
"""So long a directory is silent before other keys are tried, and between two attempts."""
GATHER_S: Final = 0.002
"""Between two announcements of one pipeline, at least."""
GATHER_RECORD_S: Final = 10e-6
"""And so much more for each record: 12 ms with 1,000, 0.66 s with 65,536. Who hears a record needs about as long."""
LEAVE_MS: Final = 200
"""What was said last has so long to reach a directory."""


def _plaintext() -> tuple[Tuning, ...]:
    return (Tuning(),)


class Pace:
    """Calls ``tell`` when there is news: after a quiet time in the next turn, else when the pause is over.

    Args:
        reactor: whose thread and clock.
        tell: tells what there is, and returns how long the next one has to wait, seconds.
    """

    def __init__(self, reactor: Reactor, tell: Callable[[], float]) -> None:
        self._reactor = reactor
        self._tell = tell
        self._not_before = 0.0
        self._timer: Timer | None = None

    @property
    def due(self) -> bool:
        """True while there is something to tell."""
        return self._timer is not None

    def soon(self) -> None:
        """There is news."""
        if self._timer is None:
            wait_s = max(self._not_before - self._reactor.now(), 0.0)
            self._timer = self._reactor.call_later(wait_s, self.flush)

    def flush(self) -> None:
        """Tell it now. Harmless when there is nothing."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._not_before = self._reactor.now() + self._tell()


class Peer:
    """A connection to the directory at ``endpoint``, until ``close``; made in the reactor's thread, after its ``open``.

    Args:
        reactor: whose thread.
        endpoint: ``tcp://host:port`` or ``ipc://path``; the name of the source in ``replica``.
        replica: what is fed; None: who announces only, and wants to be told nothing.
        tunings: keep-alive and CURVE, with the directory's key, the likeliest first; asked when it connects, and again
            while the directory is silent: keys change.
        known: is told who the directory is; False ends the connection: it is ourselves. None: whoever it is.
        pulse_s: between two BEATs; never more than a fifth of the directory's lease.

    Attributes:
        counts: what happened how often.
        welcome: what the directory said of itself; None while it is not known to be there.
        link: the connection.
    """

    def __init__(
        self,
        reactor: Reactor,
        endpoint: str,
        replica: Replica | None = None,
        *,
        tunings: Callable[[], Sequence[Tuning]] = _plaintext,
        known: Callable[[Welcome], bool] | None = None,
        pulse_s: float = PULSE_S,
    ) -> None:
        self.endpoint = endpoint
        self.welcome: Welcome | None = None
        self.counts = dict.fromkeys(
            ("hellos", "welcomes", "lost", "heard", "malformed", "refused", "unsent"), 0
        )
        self._reactor = reactor
        self._replica = replica
        self._tunings = tunings
        self._known = known
        self._pulse_s = pulse_s
        self._heard_at = self._known_at = self._tried_at = self._greeted_at = reactor.now()
        self._stall = StallMeter(reactor.now)
        self._greet_timer: Timer | None = None
        self._tick_timer: Timer | None = None
        self._lines = Throttle(QUIET_S)
        self._states: dict[Place, State] = {}
        self._connect(tunings()[0])
        self._tick_in(pulse_s)

    # ------------------------------------------------------------ for the owner

    @property
    def alive(self) -> bool:
        """True while the directory answers."""
        return self.welcome is not None

    @property
    def heard_all(self) -> bool:
        """True when the directory has told all it knows, or is ourselves."""
        return self.link.closed or (self._replica is not None and self._replica.told_all(self.endpoint))

    def announce(self, state: State) -> None:
        """The directory shall have ``state``, from now on and whenever it was lost, until ``withdraw``."""
        self._states[state.place] = state
        if self.alive:
            self._tell(DirectoryKind.ANNOUNCE, state)

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
        return {"endpoint": self.endpoint, "alive": self.alive, "closed": self.link.closed, **self.counts}

    def close(self, linger_ms: int = 0) -> None:
        """End it; what was sent has ``linger_ms`` to leave, what was told stays. Harmless twice."""
        for timer in (self._tick_timer, self._greet_timer):
            if timer is not None:
                timer.cancel()
        self.link.close(linger_ms)
        self._forget_welcome()

    # ------------------------------------------------------------ speaking

    def _connect(self, tuning: Tuning) -> None:
        self._tuning = tuning
        tuning = replace(tuning, max_bytes=wire.JSON_BYTES_MAX)
        self.link = Link(
            self._reactor, zmq.DEALER, self.endpoint, self._on_frames, tuning=tuning, outbox_msgs=1
        )
        self._greet()

    def _tell(self, kind: DirectoryKind, body: Body) -> None:
        """Say it now, or not at all: what waits is out of date later, and is asked for again. Only HELLO waits."""
        if not self.link.waiting:
            if self.link.send(wire.encode(kind, body)) is Outcome.SENT:
                return
            self.link.take_back()
        self.counts["unsent"] += self.alive

    def _greet(self) -> None:
        """Say HELLO, as soon as there is a connection."""
        self._greet_timer = None
        self._greeted_at = self._reactor.now()
        self.link.take_back()
        self.link.send(wire.encode(DirectoryKind.HELLO, Hello(want=self._replica is not None)))
        self.counts["hellos"] += 1

    def _greet_again(self) -> None:
        if self._greet_timer is None:
            wait_s = max(self._greeted_at + GREET_AGAIN_S - self._reactor.now(), 0.0)
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
                self._lose(self.welcome.lease_s)
        self._tick_in(pulse_s)
        self.link.check_peer(not self.alive)
        if not self.alive:
            self._look_for_keys(now)
        beats = tuple(state.beat for state in self._states.values()) if self.alive else ()
        self._tell(DirectoryKind.BEAT, beats)

    def _look_for_keys(self, now: float) -> None:
        """Say what was expected of a directory that is silent, and connect with other keys if there are any now."""
        if self.endpoint.startswith("ipc:"):
            return
        if now - self._known_at > STRANGE_S:
            key = self._tuning.curve.server_key if isinstance(self._tuning.curve, CurveClient) else ""
            how = (
                f"with the CURVE key {key} (directory_key, or curve_cert)"
                if key
                else "in plaintext as we are"
            )
            text = "%s: no answer for %.0f s; expected a directory there, %s"
            self._log(logging.WARNING, text, now - self._known_at, how)
        if now - self._tried_at < RENEW_S:
            return
        self._tried_at = now
        tunings = self._tunings()
        at = tunings.index(self._tuning) + 1 if self._tuning in tunings else 0
        other = tunings[at % len(tunings)]
        if other != self._tuning:
            self.link.close()
            self._connect(other)

    def _lose(self, lease_s: float) -> None:
        self.counts["lost"] += 1
        self._known_at = self._reactor.now()
        self._log(logging.WARNING, "%s: silent for %.3g s; what it told stays in use", lease_s)
        self._forget_welcome()

    def _forget_welcome(self) -> None:
        self.welcome = None
        if self._replica is not None:
            self._replica.source_lost(self.endpoint)

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
            self._greet_again()
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
        tuning: keep-alive and CURVE of those, asked for at the beginning, and again while one is silent: certificates
            are replaced. May raise HeadgateError later on, which keeps the former one.
        trusted: whether the folder may be used now; asked before it is.
        look_s: between two looks for the socket of the local directory.

    Attributes:
        peers: by endpoint, once they are connected to.
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
        self.peers: dict[str, Peer] = {}
        self._reactor = reactor
        self._replica = replica
        self._path = os.path.join(ipc_dir, DIRECTORY_SOCKET)
        self._trusted = trusted
        self._look_s = look_s
        self._directories = directories
        self._read_tuning = tuning
        self._tuning = tuning()
        self._timer: Timer | None = None
        self._look()

    @property
    def local(self) -> Peer | None:
        """The directory of this node; None before it was there."""
        return self.peers.get(f"ipc://{self._path}")

    @property
    def alive(self) -> bool:
        """True while some directory answers."""
        return any(peer.alive for peer in self.peers.values())

    def status(self) -> dict[str, Any]:
        """For status."""
        return {"links": [peer.status() for peer in self.peers.values()], **self._replica.status()}

    def close(self) -> None:
        """End all connections; what they told stays. Harmless twice."""
        if self._timer is not None:
            self._timer.cancel()
        for peer in self.peers.values():
            peer.close()

    def _look(self) -> None:
        self._timer = self._reactor.call_later(self._look_s, self._look)
        self._replica.tick(self._reactor.now())
        local = self.local
        if local is None and os.path.exists(self._path) and (self._trusted is None or self._trusted()):
            # it knows the node's own servers, and all that other directories and Redis tell it
            self.peers[f"ipc://{self._path}"] = Peer(self._reactor, f"ipc://{self._path}", self._replica)
        elif (local is None or not local.alive) and not (self.alive and self._replica.synced):
            for endpoint in self._directories:
                if endpoint not in self.peers:
                    self.peers[endpoint] = Peer(self._reactor, endpoint, self._replica, tunings=self._tunings)

    def _tunings(self) -> tuple[Tuning, ...]:
        with contextlib.suppress(HeadgateError):  # a file that is just being written is read whole later
            self._tuning = self._read_tuning()
        return (self._tuning,)


class Announcer:
    """Tells the directory of this node what one pipeline offers, as long as it is not closed.

    The directory may come later, or again: it is told whenever it does not know us.

    Args:
        reactor: whose thread; open.
        config: of the node.
        pipeline: whose state it is.
        endpoint: where other nodes connect; "" nowhere.
        key: Z85 public key there; "" plaintext.
        incarnation: of the pipeline; 0: now.
        held: nothing is told before ``begin``: what an earlier process has announced stays in force.

    Attributes:
        state: what was announced last.
        peer: whom it is told.
        counts: what happened how often; ``unfit``: records that cannot be announced.
    """

    def __init__(
        self,
        reactor: Reactor,
        config: NodeConfig,
        pipeline: str,
        endpoint: str,
        key: str,
        *,
        incarnation: int = 0,
        held: bool = False,
    ) -> None:
        self.state = State(config.node, str(pipeline), incarnation or time.time_ns(), 1, endpoint, key)
        self.peer = Peer(reactor, config.path(DIRECTORY_SOCKET), pulse_s=config.beat_s)
        self.counts = self.peer.counts
        self.counts["unfit"] = 0
        self._reactor = reactor
        self._wanted: dict[Record, None] = {}
        self._chars = 0
        self._full = self._left = False
        self._pace = Pace(reactor, self._announce)
        self._held = held
        if not held:
            self.peer.announce(self.state)

    def begin(self) -> None:
        """Tell what is offered, from now on; harmless twice."""
        if self._held:
            self._held = False
            self._pace.soon()
            self._pace.flush()

    def away(self) -> None:
        """Another process of the pipeline is started in a moment: the directory keeps what it knows."""
        self._left = True
        self.peer.away(self.state.place)

    @property
    def incarnation(self) -> int:
        """Of the pipeline."""
        return self.state.incarnation

    def add(self, records: Iterable[Record]) -> None:
        """The pipeline offers these, too."""
        for record in records:
            record = wire.canonical(self.state.pipeline, record)
            if record in self._wanted:
                continue
            if wire.fits_record(self.state.pipeline, record):
                self._wanted[record] = None
                self._chars += chars_of(record)
                self._pace.soon()
            else:
                self.counts["unfit"] += 1

    def remove(self, records: Iterable[Record]) -> None:
        """The pipeline does not offer these any more."""
        for record in records:
            record = wire.canonical(self.state.pipeline, record)
            if record in self._wanted:
                del self._wanted[record]
                self._chars -= chars_of(record)
                self._pace.soon()
        self._wanted = compact(self._wanted)

    def change_key(self, key: str) -> None:
        """Other nodes find another ``key`` there from now on."""
        if key != self.state.key and not self._left:
            self.state = msgspec.structs.replace(self.state, key=key)
            self._pace.soon()

    def promise(self) -> int:
        """The version of the state that tells all that came or went until now."""
        return self.state.version + self._pace.due

    def leave(self) -> None:
        """The pipeline ends: the directory tells everybody."""
        if not self._left:
            self._left = True
            self.peer.withdraw(self.state.place)

    def close(self) -> None:
        """End it; without ``leave`` the lease has to end first. Harmless twice."""
        self._left = True
        self.peer.close(LEAVE_MS)

    def _announce(self) -> float:
        if self._held or self._left:
            return 0.0
        records = self._fitting()
        self.state = msgspec.structs.replace(self.state, version=self.state.version + 1, records=records)
        self.peer.announce(self.state)
        return GATHER_S + GATHER_RECORD_S * len(records)

    def _fitting(self) -> tuple[Record, ...]:
        """All that is offered, or the first of it that one state has room for: the others wait, in their order."""
        was_full, self._full = self._full, not fits_state(len(self._wanted), self._chars)
        if not self._full:
            return tuple(self._wanted)
        sizes = enumerate(accumulate(map(chars_of, self._wanted)), 1)
        fitting = sum(1 for _ in takewhile(lambda size: fits_state(*size), sizes))
        if not was_full:
            self.counts["unfit"] += 1
            text = "%s: %d listeners are too many for one node's directory; %d of them wait for others to end"
            values = (self.state.pipeline, len(self._wanted), len(self._wanted) - fitting)
            self._reactor.say(logging.ERROR, text, values)
        return tuple(islice(self._wanted, fitting))
