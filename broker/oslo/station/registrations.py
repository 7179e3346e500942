"""Local servers, in the thread of the sockets: registered with the node's proxy, and what comes for them (seed 003).

One process has one control link for each of CALL, CAST and NOTIFY, one PULL for its casts, one SUB for fan-outs and
one for notifications. All of them are IPC: servers listen on no network (seed 003, "ZMQ Proxy").
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

import zmq

from broker.oslo.contract import Settings
from broker.oslo.frames import Envelope, Kind, Malformed, decode, encode, fanout_filter, listener_filter
from broker.oslo.names import Pipeline, Reason, control_file, exit_file
from broker.oslo.reactor import Pipe, Reactor, Timer
from broker.oslo.reactor.tuning import tune_local
from broker.oslo.records import Opened, Opening, Record
from broker.oslo.station.control import Control
from broker.oslo.station.figures import Figures
from broker.oslo.station.intake import CREDIT, Post, StationIntake, StationItem
from broker.oslo.station.subscriptions import Subscriptions

SETTLE_S: Final = 0.03
"""After the last CLOSED nothing more is expected when for so long nothing came: what libzmq had under way."""
SETTLE_LOOK_S: Final = 0.01
CREDIT_LOOK_S: Final = 1.0
LISTED_S: Final = 0.25
"""How long a confirmed listener waits to be seen in the directory: what this process sends next then finds it."""
LISTED_LOOK_S: Final = 0.004
OLD_EXIT_S: Final = 1.0
"""How long the PULL stays connected to a proxy's former socket, to read what came from there."""


class Registrations:
    """The listeners of one station.

    Args:
        home_is: is told the name of our node.
        is_listed: whether the directory says that a listener is where it listens.
    """

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        figures: Figures,
        post: Post,
        home_is: Callable[[str], None],
        is_listed: Callable[[str, Sequence[Record], set[Pipeline]], bool],
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._figures = figures
        self._post = post
        self._home_is = home_is
        self._is_listed = is_listed
        self._intakes: dict[str, StationIntake] = {}
        self._servers: dict[tuple[str, str], list[StationIntake]] = {}
        self._ending: dict[str, set[Pipeline]] = {}
        self._numbers: dict[bytes, int] = {}
        self._controls = {
            pipeline: Control(reactor, settings, pipeline, self)
            for pipeline in (Pipeline.CALL, Pipeline.CAST, Pipeline.NOTIFY)
        }
        self._fanouts = Subscriptions(reactor, settings, Pipeline.FANOUT, self._fanout)
        self._notices = Subscriptions(reactor, settings, Pipeline.NOTIFY, self._notice)
        self._pull: Pipe | None = None
        self._pull_from = ""
        self._fanout_of = 0
        self._credit_timer: Timer | None = None

    # ------------------------------------------------------------ begin

    def begin(self, intake: StationIntake) -> None:
        """Register it; ``intake.ready`` is set when all pipelines that are there have confirmed."""
        self._intakes[intake.listener] = intake
        opening = Opening(intake.listener, intake.records, intake.pool)
        if intake.rpc:
            record = intake.records[0]
            key = (record.exchange, record.topic)
            self._servers.setdefault(key, []).append(intake)
            intake.missing = self._there({
                Pipeline.CALL: (control_file(Pipeline.CALL),),
                Pipeline.CAST: (control_file(Pipeline.CAST),),
                Pipeline.FANOUT: (exit_file(Pipeline.FANOUT),),
            }) or {Pipeline.CALL}  # fmt: skip
            self._controls[Pipeline.CALL].open(opening)
            self._controls[Pipeline.CAST].open(opening)
            self._fanouts.subscribe(fanout_filter(*key), lambda opened: self._hears_fanouts(intake, opened))
        else:
            intake.missing = {Pipeline.NOTIFY}
            opening = Opening(intake.listener, intake.records, intake.pool, CREDIT)
            data = listener_filter(intake.listener)
            self._notices.subscribe(data, lambda _opened: self._hears_notices(intake, opening))
            if self._credit_timer is None:
                self._credit_timer = self._reactor.call_later(CREDIT_LOOK_S, self._look_at_credit)

    def _there(self, files: dict[Pipeline, tuple[str, ...]]) -> set[Pipeline]:
        folder = self._settings.ipc_dir
        return {
            pipeline
            for pipeline, names in files.items()
            if all(os.path.exists(os.path.join(folder, name)) for name in names)
        }

    def _hears_fanouts(self, intake: StationIntake, opened: Opened) -> None:
        if opened.incarnation != self._fanout_of:
            self._fanout_of = opened.incarnation
            self._numbers.clear()  # another proxy counts anew
        self._confirmed(intake, Pipeline.FANOUT)

    def _hears_notices(self, intake: StationIntake, opening: Opening) -> None:
        if self._intakes.get(intake.listener) is intake and intake.listener not in self._ending:
            self._controls[Pipeline.NOTIFY].open(opening)

    def _confirmed(self, intake: StationIntake, pipeline: Pipeline) -> None:
        intake.missing.discard(pipeline)
        intake.confirmed.add(pipeline)
        if not intake.missing:
            self._await_listed(intake, self._reactor.now() + LISTED_S)

    def _await_listed(self, intake: StationIntake, until_s: float) -> None:
        """Registered everywhere; usually the directory tells us so, too, within milliseconds."""
        listed = self._is_listed(intake.listener, intake.records, intake.confirmed)
        if listed or self._reactor.now() >= until_s:
            intake.ready.set()
        else:
            self._reactor.call_later(LISTED_LOOK_S, self._await_listed, intake, until_s)

    # ------------------------------------------------------------ what control links tell (``control.Hooks``)

    def opened(self, pipeline: Pipeline, listener: str, opened: Opened) -> None:
        """See ``Hooks``."""
        self._home_is(opened.node)
        intake = self._intakes.get(listener)
        if pipeline is Pipeline.CAST and opened.endpoint:
            self._pull_casts(opened.endpoint)
        if intake is not None:
            self._confirmed(intake, pipeline)

    def refused(self, pipeline: Pipeline, listener: str, reason: int, text: str) -> None:
        """See ``Hooks``."""
        intake = self._intakes.get(listener)
        where = "" if intake is None else f"{intake.records[0].exchange}/{intake.records[0].topic}"
        self._figures.say(
            "the proxy of this node does not let us listen at %s (%s): %s",
            where,
            pipeline,
            text,
            about=(where, pipeline),
        )
        if intake is not None and reason == Reason.DENIED:
            intake.refusal = text
            intake.ready.set()

    def closed(self, pipeline: Pipeline, listener: str) -> None:
        """See ``Hooks``."""
        waited = self._ending.get(listener)
        intake = self._intakes.get(listener)
        if waited is not None and intake is not None:
            waited.discard(pipeline)
            if not waited:
                self._settle(intake, self._reactor.now())

    def again(self, pipeline: Pipeline) -> None:
        """See ``Hooks``."""
        self._figures.count("opened_again")
        self._reactor.say(
            logging.INFO, "the proxy of this node does not know us at %s: registered again", (pipeline,)
        )

    def malformed(self, pipeline: Pipeline, text: str) -> None:
        """See ``Hooks``."""
        self._figures.count("malformed")
        self._figures.say(
            "dropped a message of the proxy of this node (%s): %s", pipeline, text, about=(pipeline,)
        )

    def message(self, pipeline: Pipeline, envelope: Envelope, frames: list[bytes]) -> None:
        """See ``Hooks``: ``[envelope][route][body]`` of a call, or of a cast that came this way."""
        if pipeline is not Pipeline.CALL or len(frames) != 3 or envelope.kind not in (Kind.CALL, Kind.CAST):
            self._figures.count("malformed")
            return
        self._deliver(Pipeline.CALL, envelope, frames[0], frames[1], frames[2])

    # ------------------------------------------------------------ casts

    def _pull_casts(self, endpoint: str) -> None:
        if self._pull is None:
            assert self._reactor.context is not None
            sock: zmq.Socket[bytes] = self._reactor.context.socket(zmq.PULL)
            tune_local(sock)
            self._pull = Pipe(self._reactor, sock, self._cast)
        if endpoint == self._pull_from:
            return
        try:
            if not endpoint.startswith("ipc://"):
                raise ValueError("expected an ipc:// endpoint")
            self._pull.sock.connect(endpoint)
        except (ValueError, zmq.ZMQError) as error:
            self.malformed(Pipeline.CAST, f"saw the way out {endpoint[:64]!r} of casts: {error}")
            return
        self._reactor.touch(self._pull)
        if self._pull_from:
            self._reactor.call_later(OLD_EXIT_S, self._leave_exit, self._pull_from)
        self._pull_from = endpoint

    def _leave_exit(self, endpoint: str) -> None:
        if self._pull is not None and not self._pull.closed and endpoint != self._pull_from:
            self._pull.sock.disconnect(endpoint)
            self._reactor.touch(self._pull)

    def _cast(self, frames: list[bytes], _origin: str) -> None:
        try:
            envelope = decode(frames[0])
        except Malformed as error:
            self.malformed(Pipeline.CAST, str(error))
            return
        if len(frames) != 2 or envelope.kind != Kind.CAST:
            self._figures.count("malformed")
            return
        self._deliver(Pipeline.CAST, envelope, frames[0], b"", frames[1])

    # ------------------------------------------------------------ what was published

    def _fanout(self, frames: list[bytes]) -> None:
        envelope = self._published(frames, Kind.FANOUT)
        if envelope is None:
            return
        data = frames[0]
        if data != fanout_filter(envelope.exchange, envelope.topic):
            self._figures.count("malformed")
            return
        last = self._numbers.get(data)
        if last is not None and envelope.word > last + 1:
            self._figures.count("gaps", envelope.word - last - 1)
            self._figures.say("%.200r: fan-outs were lost on their way from the proxy of this node", data)
        self._numbers[data] = envelope.word
        now = self._reactor.now()
        for intake in self._servers.get((envelope.exchange, envelope.topic), ()):
            if intake.full:
                self._figures.count("dropped")
                self._figures.say("%s/%s: a fan-out found the inbox full", envelope.exchange, envelope.topic)
            elif intake.put(StationItem(intake, envelope, frames[0], b"", frames[2], now), now):
                self._figures.counts["received"] += 1

    def _notice(self, frames: list[bytes]) -> None:
        envelope = self._published(frames, Kind.NOTIFY)
        if envelope is None:
            return
        intake = self._intakes.get(frames[0][1:-1].decode(errors="replace"))
        if intake is None:
            self._figures.count("strays")
            return
        now = self._reactor.now()
        if intake.put(StationItem(intake, envelope, frames[1], b"", frames[2], now), now):
            self._figures.counts["received"] += 1

    def _published(self, frames: list[bytes], kind: Kind) -> Envelope | None:
        envelope = None
        if len(frames) == 3:
            try:
                envelope = decode(frames[1])
            except Malformed:
                pass
        if envelope is None or envelope.kind != kind:
            self._figures.count("malformed")
            return None
        return envelope

    # ------------------------------------------------------------ into inboxes

    def _deliver(
        self, pipeline: Pipeline, envelope: Envelope, head: bytes, route: bytes, body: bytes
    ) -> None:
        intake = self._intakes.get(envelope.listener) or self._stand_in(envelope)
        now = self._reactor.now()
        if intake is None or not intake.put(StationItem(intake, envelope, head, route, body, now), now):
            self._figures.count("strays")
            return
        self._figures.counts["received"] += 1
        if intake.full:
            self._hold(intake, pipeline)

    def _stand_in(self, envelope: Envelope) -> StationIntake | None:
        """Another listener of the same address in this process, where the meant one has just been closed."""
        for intake in self._servers.get((envelope.exchange, envelope.topic), ()):
            if not envelope.server or intake.records[0].server == envelope.server:
                return intake
        return None

    def _hold(self, intake: StationIntake, pipeline: Pipeline) -> None:
        """Read nothing more there until it has room: what comes waits at the proxy, in its bounded queue."""
        pipe = self._pipe(pipeline)
        if pipe is not None:
            intake.held.add(pipeline)
            pipe.paused = True
            if not intake.full:
                self.relieved(intake)  # all was taken in the meantime, by somebody who saw nothing held

    def _pipe(self, pipeline: Pipeline) -> Pipe | None:
        return self._pull if pipeline is Pipeline.CAST else self._controls[pipeline].pipe

    def relieved(self, intake: StationIntake) -> None:
        """It has room again."""
        for pipeline in list(intake.held):
            intake.held.discard(pipeline)
            pipe = self._pipe(pipeline)
            if pipe is not None and not any(pipeline in each.held for each in self._intakes.values()):
                pipe.paused = False

    # ------------------------------------------------------------ what items ask for

    def answer(self, kind: int, item: StationItem, body: bytes) -> None:
        """Send a reply or heartbeat."""
        frames = (encode(kind, id=item.envelope.id), item.route, body)
        if not self._controls[Pipeline.CALL].send(frames):
            self._figures.count("dropped")
            self._figures.say("a reply found no room: the proxy of this node takes nothing")

    def requeue(self, item: StationItem) -> None:
        """Give a notification back."""
        head = encode(Kind.REQUEUE, listeners=(item.intake.listener,))
        if not self._controls[Pipeline.NOTIFY].send((head, item.head, item.body)):
            self._figures.count("dropped")

    def credit(self, intake: StationIntake) -> None:
        """Give credit back for what was taken."""
        n = intake.credit()
        head = encode(Kind.CREDIT, listeners=(intake.listener,), word=n)
        if n and not self._controls[Pipeline.NOTIFY].send((head, b"")):
            intake.owe(n)  # no room: with the next pulse

    def _look_at_credit(self) -> None:
        self._credit_timer = self._reactor.call_later(CREDIT_LOOK_S, self._look_at_credit)
        for intake in self._intakes.values():
            if not intake.rpc and intake.listener not in self._ending:
                self.credit(intake)

    def drop(self, name: str, n: int) -> None:
        """Count what was lost in an inbox."""
        self._figures.count(name, n)

    # ------------------------------------------------------------ end

    def end(self, intake: StationIntake) -> None:
        """Take nothing more in; ``intake.ended`` is set when nothing more is to be expected."""
        listener = intake.listener
        if self._intakes.get(listener) is not intake or listener in self._ending:
            intake.ended.set()
            return
        self._unsubscribe(intake)
        if not intake.rpc:
            self.credit(intake)
        waited = self._ending[listener] = set()
        for pipeline, control in self._controls.items():
            if control.close(listener):
                waited.add(pipeline)
        if not waited:
            self._settle(intake, self._reactor.now())

    def _unsubscribe(self, intake: StationIntake) -> None:
        if intake.rpc:
            record = intake.records[0]
            data = fanout_filter(record.exchange, record.topic)
            if self._fanouts.unsubscribe(data):
                self._numbers.pop(data, None)

    def _settle(self, intake: StationIntake, closed_s: float) -> None:
        now = self._reactor.now()
        if now - max(closed_s, intake.put_s) >= SETTLE_S:
            intake.ended.set()
        else:
            self._reactor.call_later(SETTLE_LOOK_S, self._settle, intake, closed_s)

    def forget(self, intake: StationIntake) -> None:
        """It is closed."""
        if self._intakes.pop(intake.listener, None) is None:
            return
        self._ending.pop(intake.listener, None)
        if intake.rpc:
            record = intake.records[0]
            key = (record.exchange, record.topic)
            left = [each for each in self._servers.get(key, ()) if each is not intake]
            if left:
                self._servers[key] = left
            else:
                self._servers.pop(key, None)
        else:
            self._notices.unsubscribe(listener_filter(intake.listener))
        self.relieved(intake)

    @property
    def waiting(self) -> int:
        """Replies and control messages that may still leave."""
        return sum(each.pipe.waiting for each in self._controls.values() if each.pipe is not None)

    def close(self, linger_ms: int) -> None:
        """Close all sockets; who listens still is told."""
        if self._credit_timer is not None:
            self._credit_timer.cancel()
        for intake in list(self._intakes.values()):
            intake.cut_off()
        self._intakes.clear()
        self._servers.clear()
        for control in self._controls.values():
            self._figures.count("unflushed", control.shut(linger_ms))
        self._fanouts.close()
        self._notices.close()
        if self._pull is not None:
            self._pull.close()

    def told(self) -> dict[str, Any]:
        """For status."""
        return {"listeners": len(self._intakes), "numbers": len(self._numbers)}
