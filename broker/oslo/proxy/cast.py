"""The pipeline of casts: PULL from clients, a PUSH for each server process (seed 003, "PUSH/PULL for direct CAST").

::

    client PUSH    [envelope][body]     entry PULL     who: stamped; where: the client's choice, or whose turn it is
    proxy          [envelope][body]     cast-N.out     bound here, one for each process that registered at cast.ctl

Nobody is answered. While the queue of a server is nearly full and moves, nothing more is read, so that senders wait
(``brake``). What does not fit into the queue of one that does not move goes to another one of the topic, or is dropped
and counted; so is what nobody listens to.

A server whose inbox is full reads nothing until its application has made some room. Meanwhile it says at cast.ctl that
it does move: CREDIT (listener) word n, n messages were taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Final

import zmq

from broker.errors import ConfigError
from broker.identity import Credentials
from broker.oslo.frames import HEAD_BYTES, Envelope, Kind, Malformed, dated, decode
from broker.oslo.names import Pipeline, Reason, cast_file
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.brake import FULL, PAUSE_MAX_S, Brake
from broker.oslo.proxy.desk import CannotOpen, Desk, Link
from broker.oslo.proxy.doorman import Doorman
from broker.oslo.proxy.entry import Entry, told_of
from broker.oslo.proxy.figures import Figures
from broker.oslo.proxy.local import Local
from broker.oslo.proxy.noting import Noting, noting_of
from broker.oslo.proxy.recording import Recording
from broker.oslo.proxy.roll import Roll
from broker.oslo.proxy.ways import BEGIN, TRIES_MAX, Way, Ways, stamped_for
from broker.oslo.reactor import Pipe, Reactor
from broker.oslo.reactor.binding import bind_local, guard
from broker.oslo.reactor.pipe import Frames, Outcome
from broker.oslo.reactor.tuning import tune_local
from broker.oslo.records import Opened, Opening
from broker.transport.zeromq.address import remove_socket
from broker.transport.zeromq.origin import credentials

_CAST: Final = int(Kind.CAST)
_TTL: Final = slice(8, 12)
_NO_TTL: Final = bytes(4)


class Limited(list[bytes]):
    """Frames of a message that is worth nothing after ``due_s``, by the reactor's clock."""

    __slots__ = ("due_s",)

    def __init__(self, frames: list[bytes], due_s: float) -> None:
        super().__init__(frames)
        self.due_s = due_s


class Exit:
    """The way to one server process: a PUSH that only this process may connect to (``zap.Judge``).

    Attributes:
        endpoint: where.
        denied: connections refused.
        moved_s: see ``brake.Queue``.
        shut: never.
    """

    def __init__(self, reactor: Reactor, config: NodeConfig, number: int, link: Link) -> None:
        if reactor.context is None:
            raise RuntimeError("an exit is opened before its reactor was")
        self.endpoint = config.path(cast_file(number))
        self.shut = False
        self.denied = 0
        self.moved_s = reactor.now()
        self._owner = (link.credentials.userid, link.pid)
        self._release: Callable[[], None] | None = None
        sock = reactor.context.socket(zmq.PUSH)
        try:
            tune_local(sock, config.message_bytes_max, send_msgs=config.send_msgs)
            self._release = guard(reactor, sock, self)
            self._path = bind_local(sock, self.endpoint, config.ipc_group)
        except BaseException:
            sock.close(0)
            if self._release is not None:
                self._release()
            raise
        self.pipe = Pipe(reactor, sock, outbox_msgs=config.queue_msgs, outbox_bytes=config.queue_bytes)

    @property
    def filled(self) -> float:
        """See ``brake.Queue``."""
        return self.pipe.filled

    def judge(self, address: str, key: str) -> str | None:
        """Only the process that registered; of one whose pid the kernel does not tell, only its user."""
        uid, _gid, pid = credentials(address)
        if (uid, pid) != self._owner:
            self.denied += 1
            return None
        return "server"

    def hold(self, key: str, resume: Callable[[], None]) -> bool:
        """Judge at once."""
        return False

    def close(self, linger_ms: int = 0) -> None:
        """Close and delete the file. Harmless twice."""
        self.pipe.close(linger_ms)
        if self._release is not None:
            self._release()
        remove_socket(self._path)


class CastRoom:
    """One node's pipeline of casts; arguments and attributes as ``CallRoom``'s."""

    def __init__(self, reactor: Reactor, config: NodeConfig, doorman: Doorman) -> None:
        self.figures = Figures(reactor, "cast")
        self._reactor = reactor
        self._config = config
        self._doorman = doorman
        self._exits: dict[Link, Exit] = {}
        self._numbers = 0
        self.recording: Recording | None = None
        self._noting: Noting | None = None
        self._held: list[tuple[float, Local[Exit], Way[Exit], list[bytes]]] = []
        """Too large for what is left in the queue of its server, since when: tried before anything else is read."""

    def open(self) -> None:
        """Bind everything and announce.

        Raises:
            ConfigError: a port or a file is in use, or see ``Entry``.
        """
        reactor, config, doorman = self._reactor, self._config, self._doorman
        noting = self._noting = noting_of(self.recording, Pipeline.CAST, config, self.figures)
        came = self._came
        if noting is not None:
            came = noting.entry(0, came)
        self._entry = Entry(reactor, config, Pipeline.CAST, zmq.PULL, doorman, came, figures=self.figures)
        try:
            self._desk = Desk(
                reactor,
                config,
                Pipeline.CAST,
                doorman,
                self.figures,
                opened=self._opened,
                closed=self._closed,
                other=self._said,
                gone=self._gone,
                told=self.told,
            )
        except BaseException:
            self._entry.close()
            raise
        self._desk.noting = self._noting
        self._roll: Roll[Exit] = Roll(reactor, config, Pipeline.CAST, self._entry.endpoint, self._entry.key)
        self._ways: Ways[Exit] = Ways(doorman, self._roll.locals)
        self._known = self._ways.known
        self._brake = Brake(reactor, self._entry.pipes, self.figures, self._send_held)

    # ------------------------------------------------------------ messages

    def _came(self, frames: list[bytes], who: Credentials, _index: int) -> None:
        if len(frames) != 2:
            self._bad("malformed", who, f"saw {len(frames)} frames, expected envelope and body")
            return
        head, body = frames
        way = self._known.get((who, head[HEAD_BYTES:]))
        if way is None or head[:4] != BEGIN:
            way = self._meet(head, who)
            if way is None:
                return
        if head[4] != _CAST:
            self._bad("unexpected", who, f"saw a message of kind {head[4]}, expected CAST")
            return
        if not way.allowed:
            self.figures.dropped(
                "denied", "uid %d may not send to %.64s/%.64s", who.userid, way.exchange, way.topic
            )
            return
        local = way.local
        if local is None or not local.alive:
            local = self._ways.choose(way)
        if local is None:
            self.figures.dropped("no_route", "nobody listens at %.64s/%.64s", way.exchange, way.topic)
            return
        message = [stamped_for(head, way, local), body]
        if head[_TTL] != _NO_TTL:
            now_s = self._reactor.now()
            due_s = now_s + int.from_bytes(head[_TTL]) / 1000
            message[0] = dated(message[0], due_s, now_s)
            message = Limited(message, due_s)
        outcome = local.exit.pipe.send(message)
        if outcome is not Outcome.SENT:
            self._waits(outcome, self._reactor.now(), local, way, message)

    def _waits(
        self, outcome: Outcome, since_s: float, local: Local[Exit], way: Way[Exit], message: list[bytes]
    ) -> None:
        """It was not sent at once: slow the senders down before its queue is full."""
        exit_, now_s = local.exit, self._reactor.now()
        if outcome is Outcome.QUEUED:
            if exit_.pipe.waiting == 1:
                exit_.moved_s = now_s
            if exit_.filled >= FULL:
                self._brake.press(exit_)
        elif local.alive and now_s - since_s <= PAUSE_MAX_S and self._brake.press(exit_):
            self._held.append((since_s, local, way, message))
        else:
            self._elsewhere(local, way.exchange, way.topic, way.server, message)

    def _send_held(self) -> None:
        held, self._held = self._held, []
        for since_s, local, way, message in held:
            if not self._stale(message):
                outcome = local.exit.pipe.send(message) if local.alive else Outcome.FULL
                if outcome is not Outcome.SENT:
                    self._waits(outcome, since_s, local, way, message)

    def _meet(self, head: bytes, who: Credentials) -> Way[Exit] | None:
        try:
            return self._ways.meet(who, head)
        except Malformed as error:
            self._bad("unknown_version" if error.unknown_version else "malformed", who, str(error))
            return None

    def _bad(self, name: str, who: Credentials, text: str) -> None:
        self.figures.dropped(name, "dropped a message of uid %d: %s", who.userid, text)

    def _elsewhere(
        self, tried: Local[Exit] | None, exchange: str, topic: str, server: str, message: list[bytes]
    ) -> None:
        """Another listener of the address may have what its own has no room for, or is no more there to take."""
        here = tried is not None
        for local in self._roll.locals.others(exchange, topic, server, TRIES_MAX):
            if local is tried:
                continue
            here = True
            message[0] = message[0][:HEAD_BYTES] + local.tail_for(server)
            if local.exit.pipe.send(message) > Outcome.FULL:
                self.figures.count("chosen_again")
                return
        if here:
            self.figures.dropped("full", "the queues of the servers at %.64s/%.64s are full", exchange, topic)
        else:
            self.figures.dropped("no_route", "nobody listens at %.64s/%.64s any more", exchange, topic)

    def _stale(self, frames: Frames) -> bool:
        if not isinstance(frames, Limited) or frames.due_s >= self._reactor.now():
            return False
        self.figures.count("expired")
        return True

    # ------------------------------------------------------------ registrations

    def _opened(self, link: Link, opening: Opening) -> Opened:
        exit_ = self._exits.get(link)
        if exit_ is None:
            exit_ = self._exits[link] = self._new_exit(link)
        self._roll.enter(opening, exit_)
        return Opened(
            self._config.node,
            self._roll.incarnation,
            exit_.endpoint,
            message_bytes_max=self._config.message_bytes_max,
        )

    def _new_exit(self, link: Link) -> Exit:
        self._numbers += 1
        try:
            exit_ = Exit(self._reactor, self._config, self._numbers, link)
        except (ConfigError, zmq.ZMQError) as error:  # no descriptor left, or the file is somebody's
            raise CannotOpen(Reason.BUSY, f"no way to this process can be opened: {error}") from error
        if self._noting is not None:
            self._noting.watch(exit_.pipe)
        exit_.pipe.stale = self._stale
        exit_.pipe.flushed = lambda _frames: self._moved(exit_)
        return exit_

    def _moved(self, exit_: Exit) -> None:
        exit_.moved_s = self._reactor.now()
        self._brake.ease(exit_)

    def _closed(self, link: Link, listener: str) -> None:
        self._roll.remove(listener)
        end = b"\0" + listener.encode()
        for frames in self._exits[link].pipe.sift_all(lambda frames: frames[0].endswith(end)):
            if not self._stale(frames):
                envelope = decode(frames[0])
                message = frames if isinstance(frames, list) else list(frames)
                self._elsewhere(None, envelope.exchange, envelope.topic, envelope.server, message)

    def _gone(self, link: Link) -> None:
        exit_ = self._exits.pop(link, None)
        if exit_ is not None:
            exit_.close()
            self._brake.forget(exit_)

    def _said(self, link: Link, envelope: Envelope, rest: list[bytes]) -> None:
        exit_ = self._exits.get(link)
        if envelope.kind == Kind.CREDIT and exit_ is not None:
            self.figures.count("credits")
            self._moved(exit_)
            return
        text = "dropped a message of %s: saw kind %d with %d frames"
        self.figures.dropped("unexpected", text, link, envelope.kind, len(rest))

    # ------------------------------------------------------------ state and end

    def told(self) -> dict[str, Any]:
        """What STATUS answers."""
        topics = Counter(f"{record.exchange}/{record.topic}" for record in self._roll.locals.records())
        return {
            "pipeline": "cast",
            "node": self._config.node,
            "incarnation": self._roll.incarnation,
            "endpoint": self._entry.endpoint,
            "entries": self._entry.told(),
            "exits": [told_of("PUSH", exit_.endpoint, exit_.pipe) for exit_ in self._exits.values()],
            **self._desk.told(),
            "topics": dict(topics),
            "back_pressure": self._brake.told(),
            "counts": self.figures.told(),
        }

    @property
    def busy(self) -> bool:
        """Whether something waits to be sent."""
        waiting = any(exit_.pipe.waiting for exit_ in self._exits.values())
        return waiting or bool(self._held) or self._desk.pipe.waiting > 0

    def stop(self, reason: str) -> None:
        """Say that we leave: to the directory and to the servers; what is here is still sent."""
        self._desk.farewell(reason)
        self._roll.leave()

    def close(self, linger_ms: int = 0) -> None:
        """Close everything. Harmless twice."""
        self._roll.close()
        self._brake.close()
        self._entry.close(linger_ms)
        self._desk.close(linger_ms)
        for exit_ in self._exits.values():
            exit_.close(linger_ms)
