"""Local servers, in the thread of the sockets: registered with the node's proxy, and what comes for them (seed 003).

One process has one control link for each of CALL, CAST and NOTIFY, one PULL for its casts, one SUB for fan-outs and
one for notifications. All of them are IPC: servers listen on no network (seed 003, "ZMQ Proxy").
What comes for them is ``delivery``'s.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.oslo.contract import Settings
from broker.oslo.frames import Envelope, Kind, encode, fanout_filter, listener_filter
from broker.oslo.names import Pipeline, Reason, control_file, exit_file
from broker.oslo.reactor import Reactor, Timer
from broker.oslo.reactor.pipe import Frames
from broker.oslo.records import Opened, Opening, Record
from broker.oslo.station.control import Control
from broker.oslo.station.delivery import Delivery
from broker.oslo.station.figures import Figures
from broker.oslo.station.folder import Folder
from broker.oslo.station.intake import CREDIT, Post, StationIntake, StationItem
from broker.oslo.station.subscriptions import Subscriptions

SETTLE_S: Final = 0.03
"""After the last CLOSED nothing more is expected when for so long nothing came: what libzmq had under way."""
SETTLE_LOOK_S: Final = 0.01
CREDIT_LOOK_S: Final = 0.2
"""Between two looks for credit that is still to be given back: a proxy takes a listener for frozen that gives none for
half a second (``proxy.brake``)."""
LISTED_LOOK_S: Final = 0.004
"""Between two looks whether the directory lists a listener: what this process sends next shall find it."""


class Registrations:
    """The listeners of one station.

    Args:
        home_is: is told the name of our node.
        is_listed: whether the directory says where a listener listens, by the pipelines that have confirmed it.
    """

    def __init__(
        self,
        reactor: Reactor,
        settings: Settings,
        folder: Folder,
        figures: Figures,
        post: Post,
        home_is: Callable[[str], None],
        is_listed: Callable[[str, Sequence[Record], set[Pipeline], Opened | None], bool],
    ) -> None:
        self._reactor = reactor
        self._settings = settings
        self._figures = figures
        self._post = post
        self._home_is = home_is
        self._is_listed = is_listed
        self._ending: dict[str, set[Pipeline]] = {}
        self._controls = {
            pipeline: Control(reactor, settings, folder, pipeline, self)
            for pipeline in (Pipeline.CALL, Pipeline.CAST, Pipeline.NOTIFY)
        }
        delivery = self._delivery = Delivery(reactor, settings, figures, self._send)
        self._intakes = delivery.intakes
        self._fanouts = Subscriptions(reactor, settings, folder, Pipeline.FANOUT, delivery.fanout)
        self._notices = Subscriptions(reactor, settings, folder, Pipeline.NOTIFY, delivery.notice)
        self._closed = False
        self._credit_timer: Timer | None = None

    # ------------------------------------------------------------ begin

    def begin(self, intake: StationIntake) -> None:
        """Register it; ``intake.ready`` is set when all pipelines that are there have confirmed."""
        if self._closed or intake.stopping:  # its port was closed meanwhile
            intake.cut_off()
            return
        intake.begun_s = self._reactor.now()
        self._delivery.enter(intake)
        opening = Opening(intake.listener, intake.records, intake.pool)
        if intake.rpc:
            record = intake.records[0]
            key = (record.exchange, record.topic)
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
        self._delivery.counts_from(opened.incarnation)
        intake.fanouts_by = opened
        self._confirmed(intake, Pipeline.FANOUT)

    def _hears_notices(self, intake: StationIntake, opening: Opening) -> None:
        if self._intakes.get(intake.listener) is intake and intake.listener not in self._ending:
            self._controls[Pipeline.NOTIFY].open(opening)

    def _confirmed(self, intake: StationIntake, pipeline: Pipeline) -> None:
        intake.missing.discard(pipeline)
        intake.confirmed.add(pipeline)
        if not intake.missing:
            self._await_listed(intake)

    def _await_listed(self, intake: StationIntake) -> None:
        """Registered everywhere; the directory tells us so, too, within milliseconds when it is there."""
        if self._is_listed(intake.listener, intake.records, intake.confirmed, intake.fanouts_by):
            intake.ready.set()
        elif self._reactor.now() < intake.begun_s + self._settings.ready_s:  # its caller waits no longer
            self._reactor.call_later(LISTED_LOOK_S, self._await_listed, intake)

    # ------------------------------------------------------------ what control links tell (``control.Hooks``)

    def opened(self, pipeline: Pipeline, listener: str, opened: Opened) -> None:
        """See ``Hooks``."""
        self._home_is(opened.node)
        intake = self._intakes.get(listener)
        if pipeline is Pipeline.CAST and opened.endpoint:
            error = self._delivery.casts.pull_from(opened.endpoint)
            if error:
                self.malformed(Pipeline.CAST, error)
        if intake is not None:
            if opened.message_bytes_max:
                intake.body_max = min(opened.message_bytes_max, self._settings.message_bytes_max)
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
        """See ``Hooks``."""
        self._delivery.message(pipeline, envelope, frames)

    # ------------------------------------------------------------ what items ask for

    def _send(self, pipeline: Pipeline, frames: Frames) -> bool:
        return self._controls[pipeline].send(frames)

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

    def too_large(self, what: str, size: int, limit: int) -> None:
        """Log and count what was not sent."""
        self._figures.count("too_large")
        self._figures.say(
            "%s of %d bytes was not sent, expected %d at most", what, size, limit, about=(what,)
        )

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
                self._delivery.forget_number(data)

    def _settle(self, intake: StationIntake, closed_s: float) -> None:
        now = self._reactor.now()
        if now - max(closed_s, intake.put_s) >= SETTLE_S:
            intake.ended.set()
        else:
            self._reactor.call_later(SETTLE_LOOK_S, self._settle, intake, closed_s)

    def forget(self, intake: StationIntake) -> None:
        """It is closed."""
        if not self._delivery.leave(intake):
            return
        self._ending.pop(intake.listener, None)
        if not intake.rpc:
            self._notices.unsubscribe(listener_filter(intake.listener))

    def relieved(self, intake: StationIntake) -> None:
        """It has room again."""
        self._delivery.relieved(intake)

    @property
    def waiting(self) -> int:
        """Replies and control messages that may still leave."""
        return sum(each.pipe.waiting for each in self._controls.values() if each.pipe is not None)

    def close(self, linger_ms: int) -> None:
        """Close all sockets; who listens still is told."""
        self._closed = True
        if self._credit_timer is not None:
            self._credit_timer.cancel()
        for control in self._controls.values():
            self._figures.count("unflushed", control.shut(linger_ms))
        self._fanouts.close()
        self._notices.close()
        self._delivery.close()

    def told(self) -> dict[str, Any]:
        """For status."""
        return {"listeners": len(self._intakes), "numbers": self._delivery.numbers}
