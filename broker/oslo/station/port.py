"""The face that callers see: ``contract.Port``, from any thread or greenlet."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from broker.oslo.contract import Address, Closed, OsloFailure, Port, Refused, Settings, TooLarge, Undelivered
from broker.oslo.frames import Kind, check_name, new_id
from broker.oslo.names import LISTENER_CHARS, Reason
from broker.oslo.records import Record
from broker.oslo.station import process
from broker.oslo.station.calls import Answer, Call
from broker.oslo.station.folder import objection
from broker.oslo.station.handover import hand_over
from broker.oslo.station.intake import StationIntake
from broker.oslo.station.link import Cast
from broker.oslo.station.publishing import Publication
from broker.oslo.station.sender import CONFIRM_S
from broker.oslo.station.station import Station
from broker.oslo.station.waiting import bounded, new_waiter

log = logging.getLogger("headgate.oslo")

CHECKED_MAX: Final = 4096
"""Addresses whose names were checked; beyond it all are checked again."""
STUCK_S: Final = 10.0
"""So long after its end a call is given up even if the thread of the sockets says nothing, which would be a bug."""


def open_port(settings: Settings) -> Port:
    """A port for ``settings``; nothing is opened before its first use."""
    return StationPort(settings)


class StationPort:
    """See ``contract.Port``. It goes on working in a forked child, with a station of the child's own."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._mine: process.State | None = None
        self._core: process.Core | None = None
        self._station: Station | None = None
        self._intakes: list[StationIntake] = []
        self._closed = False
        self._checked: set[Address] = set()

    # ------------------------------------------------------------ the station behind it

    def _use(self) -> Station:
        """The station, made when there is none in this process."""
        station = self._station
        if station is not None and self._mine is process.state and not (self._closed or station.failed):
            return station
        mine = process.state
        with mine.lock:
            if self._closed:
                raise Closed("the port is closed")
            if self._mine is not mine or self._station is None or self._station.failed:
                if not self._settings.directories:
                    self._check_folder()
                self._core, self._station = process.attach(mine, self._settings)
                self._intakes = []
                self._mine = mine
            return self._station

    def _check_folder(self) -> None:
        """Nothing may be sent to what somebody else has put there.

        Raises:
            Refused: it is none of ours.
        """
        text = objection(self._settings.ipc_dir)
        if text:
            raise Refused(f"the proxy of this node cannot be trusted: {text}", Reason.DENIED)

    def _check(self, address: Address) -> None:
        """Names are checked once.

        Raises:
            ValueError: one of them cannot be sent.
        """
        if address not in self._checked:
            for name, what in zip(address, ("exchange", "topic", "server"), strict=True):
                check_name(name, what)
            if not address.topic:
                raise ValueError(f"exchange {address.exchange!r}: saw no topic, expected one")
            if len(self._checked) >= CHECKED_MAX:
                self._checked.clear()
            self._checked.add(address)

    # ------------------------------------------------------------ calls

    def call(
        self,
        address: Address,
        body: bytes,
        *,
        timeout_s: float | None,
        monitor_s: float | None = None,
        mandatory: bool = False,
    ) -> bytes:
        """See ``contract.Port``."""
        waiter = new_waiter()
        call = self._new_call(address, body, _Done(waiter), timeout_s, monitor_s, mandatory)
        return self._await(call, waiter, call.timeout_s)

    def start_call(
        self,
        address: Address,
        body: bytes,
        done: Callable[[bytes | OsloFailure], None],
        *,
        timeout_s: float | None,
        monitor_s: float | None = None,
        mandatory: bool = False,
    ) -> None:
        """See ``contract.Port``."""
        self._start(self._new_call(address, body, done, timeout_s, monitor_s, mandatory))

    def _new_call(
        self,
        address: Address,
        body: bytes,
        done: Callable[[Answer], None],
        timeout_s: float | None,
        monitor_s: float | None,
        mandatory: bool,
    ) -> Call:
        self._check(address)
        seconds = bounded(timeout_s)
        return Call(
            address,
            body,
            new_id(),
            done,
            due_s=None if seconds is None else time.monotonic() + seconds,
            timeout_s=seconds,
            monitor_s=bounded(monitor_s),
            mandatory=mandatory,
            owner=self,
        )

    def _start(self, call: Call) -> Station:
        station = self._use()
        if call.size > station.routes.body_max:
            call.finish(_too_large(call.address, call.size, station))
        elif not station.post(station.sender.start, call):
            call.finish(Closed(f"{call.address}: the port is closed"))
        return station

    def _await(self, call: Call, waiter: Any, timeout_s: float | None) -> bytes:
        station = self._start(call)
        try:
            if station.is_ours() and not call.over:
                raise Undelivered(f"{call.address}: the thread of the sockets would wait for itself")
            waiter.wait(None if timeout_s is None else timeout_s + STUCK_S)
        finally:
            if not call.over:
                station.post(station.sender.abandon, call)
        answer = call.answer
        if isinstance(answer, bytes):
            return answer
        if answer is None:
            raise Closed(
                f"{call.address}: the thread of the sockets does not answer (a bug, or it is stopped)"
            )
        raise answer

    # ------------------------------------------------------------ casts, fan-outs, notifications

    def cast(
        self, address: Address, body: bytes, *, mandatory: bool = False, retry: int | None = None
    ) -> None:
        """See ``contract.Port``."""
        self._check(address)
        if mandatory:
            self._cast_confirmed(address, body, retry)
            return
        station = self._use()
        links = station.sender.cast_links
        self._fits(station, address, body)

        def full() -> bool:
            return bool(links.full) and links.full.issuperset(station.routes.nodes(address) or ("",))

        hand_over(station, station.sender.cast, Cast(address, body), address, retry, full)

    def _cast_confirmed(self, address: Address, body: bytes, retry: int | None) -> None:
        waiter = new_waiter()
        call = Call(
            address,
            body,
            new_id(),
            _Done(waiter),
            kind=Kind.CAST,
            due_s=time.monotonic() + CONFIRM_S,
            timeout_s=CONFIRM_S,
            mandatory=True,
            tries=None if retry is None or retry < 0 else retry,
            owner=self,
        )
        self._await(call, waiter, CONFIRM_S)

    def fanout(self, address: Address, body: bytes, *, retry: int | None = None) -> None:
        """See ``contract.Port``."""
        self._check(address)
        station = self._use()
        fanouts = station.fanouts
        self._fits(station, address, body)

        def full() -> bool:
            return fanouts.busy(address.exchange, address.topic)

        publication = Publication(address.exchange, address.topic, body)
        hand_over(station, fanouts.publish, publication, address, retry, full, patient=False)

    def notify(self, exchange: str, topic: str, body: bytes, *, retry: int | None = None) -> None:
        """See ``contract.Port``."""
        address = Address(exchange, topic)
        self._check(address)
        station = self._use()
        notifications = station.notifications
        self._fits(station, address, body)

        def full() -> bool:
            return notifications.busy(exchange, topic)

        publication = Publication(exchange, topic, body)
        hand_over(station, notifications.publish, publication, address, retry, full, patient=False)

    def _fits(self, station: Station, address: Address, body: bytes) -> None:
        if len(body) > station.routes.body_max:
            raise _too_large(address, len(body), station)

    # ------------------------------------------------------------ listeners

    def listen(self, address: Address) -> StationIntake:
        """See ``contract.Port``.

        Raises:
            Refused: this process may not listen there.
        """
        self._check(address)
        listener = os.urandom(LISTENER_CHARS // 2).hex()
        record = Record(address.exchange, address.topic, address.server, listener)
        return self._listen(listener, [record], None, rpc=True)

    def listen_notifications(self, topics: Sequence[tuple[str, str]], pool: str | None) -> StationIntake:
        """See ``contract.Port``.

        Raises:
            Refused: this process may not listen there.
        """
        listener = os.urandom(LISTENER_CHARS // 2).hex()
        for exchange, topic in topics:
            self._check(Address(exchange, topic))
        if not topics:
            raise ValueError("listener for notifications: saw no topic, expected one at least")
        check_name(pool or "", "pool")
        records = [Record(exchange, topic, "", listener, pool) for exchange, topic in dict.fromkeys(topics)]
        return self._listen(listener, records, pool, rpc=False)

    def _listen(
        self, listener: str, records: Sequence[Record], pool: str | None, *, rpc: bool
    ) -> StationIntake:
        self._check_folder()
        station = self._use()
        settings = self._settings
        desk = station.registrations
        limits = (settings.inbox_msgs, settings.inbox_bytes)
        body_max = station.routes.body_max
        intake = StationIntake(
            station.post, desk, listener, records, pool, limits, rpc=rpc, body_max=body_max
        )
        where = f"{records[0].exchange}/{records[0].topic}"
        with process.state.lock:
            if self._closed:
                raise Closed(f"{where}: the port is closed")
            self._intakes = [each for each in self._intakes if not each.closed] + [intake]
        if not station.post(desk.begin, intake):
            intake.cut_off()
        ready = intake.ready.wait(0.0 if station.is_ours() else settings.ready_s)
        if intake.stopping:
            intake.close()
            raise Closed(f"{where}: the port was closed")
        if intake.refusal:
            intake.close()
            raise Refused(f"{where}: {intake.refusal}", Reason.DENIED)
        if not ready:
            self._warn_late(intake, where)
        return intake

    def _warn_late(self, intake: StationIntake, where: str) -> None:
        settings = self._settings
        missing = ", ".join(sorted(map(str, intake.missing)))
        if intake.begun_s and not missing:
            text = "listening at %s: not listed within %g s by the directory of this node (%s: %s), still waiting"
            missing = "confirmed by its proxy"
        else:
            text = "listening at %s: not confirmed within %g s by the proxy of this node (%s: %s); going on trying"
        # who does not wait knows
        level = logging.WARNING if settings.ready_s > 0 else logging.DEBUG
        log.log(level, text, where, settings.ready_s, settings.ipc_dir, missing or "not asked yet")

    # ------------------------------------------------------------ status and end

    def told(self) -> dict[str, Any]:
        """What this process counts, its sockets, what it knows of the directory; {} when nothing is open."""
        station = self._station
        if station is None or self._mine is not process.state or station.over:
            return {}
        waiter = new_waiter()
        told: dict[str, Any] = {}

        def tell() -> None:
            told.update(station.told())
            waiter.set()

        if station.post(tell):
            waiter.wait(1.0)
        return told

    def close(self) -> None:
        """See ``contract.Port``."""
        mine = process.state
        with mine.lock:
            if self._closed:
                return
            self._closed = True
            intakes, self._intakes = self._intakes, []
            core, station = self._core, self._station
            here = self._mine is mine
        if core is None or station is None or not here:
            return
        for intake in intakes:
            intake.begin_stop()
        for intake in intakes:
            intake.close()
        left = new_waiter()
        if station.post(station.leave, self, left):
            left.wait(self._settings.linger_s)
        process.detach(mine, core, station)


def _too_large(address: Address, size: int, station: Station) -> TooLarge:
    return TooLarge(
        f"{address}: saw a body of {size} bytes, expected {station.routes.body_max} at most (message_bytes_max)"
    )


class _Done:
    """Wakes the caller of a call."""

    __slots__ = ("_waiter",)

    def __init__(self, waiter: Any) -> None:
        self._waiter = waiter

    def __call__(self, _answer: Answer) -> None:
        self._waiter.set()
