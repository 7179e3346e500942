"""The pipeline of casts: PULL from clients, a PUSH for each server process (seed 003, "PUSH/PULL for direct CAST").

::

    client PUSH    [envelope][body]     entry PULL     who: stamped; where: the client's choice, or whose turn it is
    proxy          [envelope][body]     cast-N.out     bound here, one for each process that registered at cast.ctl

Nobody is answered. While the queue of a server is nearly full and moves, nothing more is read, so that senders wait
(``back_pressure``). What does not fit into the queue of one that does not move goes to another one of the topic, or is
dropped and counted; so is what nobody listens to.

A server whose inbox is full reads nothing until its application has made some room. Meanwhile it says at cast.ctl that
it does move: CREDIT (listener) word n, n messages were taken.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any, Final

import zmq

from broker.errors import ConfigError
from broker.identity import Credentials
from broker.oslo.frames import HEAD_BYTES, Envelope, Flag, Kind, Malformed, dated, decode, overdue
from broker.oslo.names import Pipeline, Reason, cast_file
from broker.oslo.node import NodeConfig
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.back_pressure import FULL, BackPressure
from broker.oslo.proxy.direct import DirectRoom
from broker.oslo.proxy.frontend import status_of
from broker.oslo.proxy.local_listeners import LocalListener
from broker.oslo.proxy.registration import CannotOpen, RegistrationSocket, ServerLink
from broker.oslo.proxy.route_cache import BEGIN, TRIES_MAX, CachedRoute, stamped_for
from broker.oslo.reactor import Pipe, Reactor
from broker.oslo.reactor.binding import bind_local, guard
from broker.oslo.reactor.pipe import Frames, Outcome
from broker.oslo.reactor.tuning import tune_local
from broker.oslo.records import Opened, Opening
from broker.transport.zeromq.address import remove_socket
from broker.transport.zeromq.origin import credentials

NUMBERS_MAX: Final = 1 << 32
"""Of the files that lead to servers (``names.cast_file``)."""
_CAST: Final = int(Kind.CAST)
_REPEATED: Final = int(Flag.REPEATED)
_FLAGS_AT: Final = 5
_TTL_AT: Final = 8
_TTL_END: Final = 12
_NO_TTL: Final = bytes(4)


class ServerPush:
    """The way to one server process: a PUSH that only this process may connect to (``zap.Judge``).

    Attributes:
        endpoint: where.
        denied: connections refused.
        moved_s: see ``back_pressure.Queue``.
        shut: never.
    """

    def __init__(self, reactor: Reactor, config: NodeConfig, number: int, link: ServerLink) -> None:
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
        """See ``back_pressure.Queue``."""
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


class CastProxy(DirectRoom[ServerPush]):
    """One node's pipeline of casts; arguments and attributes as ``PipelineRoom``'s."""

    def __init__(self, reactor: Reactor, config: NodeConfig, acl: AccessControl) -> None:
        super().__init__(reactor, config, acl, Pipeline.CAST, zmq.PULL)
        self._targets: dict[ServerLink, ServerPush] = {}
        self._sent_before = 0
        self._numbers = random.randrange(NUMBERS_MAX)  # servers of an earlier proxy still look for its files

    def _open(self, undo: contextlib.ExitStack) -> RegistrationSocket:
        self._back_pressure = BackPressure(self._reactor, self._frontend, self.counters)
        undo.callback(self._back_pressure.close)
        return RegistrationSocket(
            self._reactor,
            self._config,
            Pipeline.CAST,
            self._acl,
            self.counters,
            opened=self._opened,
            closed=self._closed,
            other=self._said,
            gone=self._gone,
            status=self.status,
            journal=self._journal,
        )

    # ------------------------------------------------------------ messages

    def came(self, frames: list[bytes], who: Credentials, index: int) -> None:
        """A cast: give it to a server."""
        if len(frames) != 2:
            self._bad("malformed", who, f"saw {len(frames)} frames, expected envelope and body")
            return
        head, body = frames
        route_to = self._known.get((who, head[HEAD_BYTES:]))
        if route_to is None or head[:4] != BEGIN:
            route_to = self._meet(head, who)
            if route_to is None:
                return
        if head[4] != _CAST:
            self._bad("unexpected", who, f"saw a message of kind {head[4]}, expected CAST")
            return
        if not route_to.allowed:
            self.counters.dropped(
                "denied", "uid %d may not send to %.64s/%.64s", who.userid, route_to.exchange, route_to.topic
            )
            return
        local = route_to.local
        if local is None or not local.alive:
            local = self._routes.choose(route_to)
        if head[_FLAGS_AT] & _REPEATED and (local is None or local.record.listener != route_to.chosen):
            text = "the server at %.64s/%.64s that may have had a cast is gone"
            self.counters.dropped("repeat_lost", text, route_to.exchange, route_to.topic)
            return
        if local is None:
            self.counters.dropped(
                "no_route", "nobody listens at %.64s/%.64s", route_to.exchange, route_to.topic
            )
            return
        message = [stamped_for(head, route_to, local), body]
        if head[_TTL_AT:_TTL_END] != _NO_TTL:
            now_s = self._reactor.now()
            message[0] = dated(message[0], now_s + int.from_bytes(head[_TTL_AT:_TTL_END]) / 1000, now_s)
        outcome = local.target.pipe.send(message)
        if outcome is Outcome.QUEUED:
            self._waits(local.target)
        elif outcome is not Outcome.SENT:
            self._elsewhere(local, route_to.exchange, route_to.topic, route_to.server, message)

    def _waits(self, target: ServerPush) -> None:
        """Something was not sent at once: slow the senders down before its queue is full."""
        if target.pipe.waiting == 1:
            target.moved_s = self._reactor.now()
        if target.filled >= FULL:
            self._back_pressure.press(target)

    def _meet(self, head: bytes, who: Credentials) -> CachedRoute[ServerPush] | None:
        try:
            return self._routes.meet(who, head)
        except Malformed as error:
            self._malformed(error, who)
            return None

    def _elsewhere(
        self,
        tried: LocalListener[ServerPush] | None,
        exchange: str,
        topic: str,
        server: str,
        message: list[bytes],
    ) -> None:
        """Another listener of the address may have what its own has no room for, or is no more there to take."""
        here = tried is not None
        if message[0][_FLAGS_AT] & _REPEATED:
            text = "no room at %.64s/%.64s for a cast that was sent again"
            self.counters.dropped("repeat_lost", text, exchange, topic)
            return
        for local in self.locals.others(exchange, topic, server, TRIES_MAX):
            if local is tried:
                continue
            here = True
            message[0] = message[0][:HEAD_BYTES] + local.tail_for(server)
            if local.target.pipe.send(message) > Outcome.FULL:
                self.counters.count("chosen_again")
                return
        if here:
            self.counters.dropped(
                "full", "the queues of the servers at %.64s/%.64s are full", exchange, topic
            )
        else:
            self.counters.dropped("no_route", "nobody listens at %.64s/%.64s any more", exchange, topic)

    def _stale(self, frames: Frames) -> bool:
        if not overdue(frames[0], self._reactor.now()):
            return False
        self.counters.count("expired")
        return True

    # ------------------------------------------------------------ registrations

    def _opened(self, link: ServerLink, opening: Opening) -> Opened:
        target = self._targets.get(link)
        if target is None:
            target = self._targets[link] = self._new_exit(link)
        self._enter(opening, target)
        return self._confirmation(target.endpoint)

    def _new_exit(self, link: ServerLink) -> ServerPush:
        self._numbers = (self._numbers + 1) % NUMBERS_MAX
        try:
            target = ServerPush(self._reactor, self._config, self._numbers, link)
        except (ConfigError, zmq.ZMQError) as error:  # no descriptor left, or the file is somebody's
            raise CannotOpen(Reason.BUSY, f"no way to this process can be opened: {error}") from error
        if self._journal is not None:
            self._journal.watch(target.pipe)
        target.pipe.stale = self._stale
        target.pipe.flushed = lambda _frames: self._moved(target)
        return target

    def _moved(self, target: ServerPush) -> None:
        target.moved_s = self._reactor.now()
        self._back_pressure.ease(target)

    def _closed(self, link: ServerLink, listener: str) -> None:
        self._leave(listener)
        end = b"\0" + listener.encode()
        for frames in self._targets[link].pipe.sift_all(lambda frames: frames[0].endswith(end)):
            if not self._stale(frames):
                envelope = decode(frames[0])
                self._elsewhere(None, envelope.exchange, envelope.topic, envelope.server, list(frames))

    def _gone(self, link: ServerLink) -> None:
        target = self._targets.pop(link, None)
        if target is not None:
            self._sent_before += target.pipe.sent
            target.close()
            self._back_pressure.forget(target)

    def _said(self, link: ServerLink, envelope: Envelope, rest: list[bytes]) -> None:
        target = self._targets.get(link)
        if envelope.kind == Kind.CREDIT and target is not None:
            self.counters.count("credits")
            self._moved(target)
        else:
            self._unexpected(link, envelope, rest)

    # ------------------------------------------------------------ state and end

    def _told(self) -> dict[str, Any]:
        exits = [status_of("PUSH", target.endpoint, target.pipe) for target in self._targets.values()]
        return {**super()._told(), "exits": exits, "back_pressure": self._back_pressure.status()}

    def _counted(self) -> dict[str, int]:
        return {**self.counters.status(), "delivered": self._delivered()}

    def _delivered(self) -> int:
        """Casts that were given to a server's process, whether it still runs or not."""
        return self._sent_before + sum(target.pipe.sent for target in self._targets.values())

    @property
    def waiting(self) -> int:
        """Messages that wait to be sent."""
        queued = sum(target.pipe.waiting for target in self._targets.values())
        return queued + self._registration.pipe.waiting

    def close(self, linger_ms: int = 0) -> None:
        """See ``PipelineRoom.close``."""
        self._back_pressure.close()
        super().close(linger_ms)
        for target in self._targets.values():
            target.close(linger_ms)
