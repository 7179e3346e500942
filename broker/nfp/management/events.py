"""``events.service.broker``: subscribe to what happens to jobs, and read what has happened (NFP, "NFP/Broker-PUB").

Tasks, all by keyword, every field may be left out:

``subscribe``    uuid, service, kinds, since, epoch -> {"subscription", "since", "epoch", "sequence", "gap"}
``unsubscribe``  subscription ("" all of the caller's) -> {"ended": n}
``show``         -> [{"subscription", "peer", "uuid", "service", "kinds", "next", "dropped"}], an owner sees everybody's
``read``         uuid, service, kinds, since (0), epoch, limit (100) -> {"events", "next", "epoch", "sequence", "gap"}

A worker's EVENT on a topic that is no job (kind ``published``) goes to who asks for it by its topic, as ``uuid``, and
may call the worker's service.

``gap`` is null or {"reason", "first", "last"}: numbers that cannot be brought back (0: of another epoch). ``read`` is
for peers that only get what they ask for, among them a strict REQ client of the text's dialect.
"""

from __future__ import annotations

from typing import Any, Final

from broker.nfp.contract import Call, EventFilter
from broker.nfp.management.event_bus import EventBus, Gap, told
from broker.nfp.management.internal_service import InternalService, Refused, number, text, words
from broker.nfp.names import EVENTS, Dialect
from broker.nfp.principal import Standing

READ_MAX: Final = 1000
"""Events in one answer."""
LOOKED_AT_MAX: Final = 20_000
"""Events one ``read`` looks at: all that are held by default."""
SEQUENCE_MAX: Final = 2**63 - 1
KINDS: Final = frozenset(
    {
        "submitted",
        "queued",
        "dispatched",
        "accepted",
        "progress",
        "input_request",
        "input_response",
        "result_ready",
        "stream",
        "returned",
        "finished",
        "closed",
        "expired",
        "cancelled",
        "published",
    }
)
"""As in ``contract.JobEvent``."""


class EventService(InternalService):
    """The service; ``bus`` does the work."""

    def __init__(self, bus: EventBus) -> None:
        self._bus = bus
        super().__init__(
            EVENTS,
            {
                "subscribe": (Standing.GUEST, self._subscribe),
                "unsubscribe": (Standing.GUEST, self._unsubscribe),
                "show": (Standing.GUEST, self._show),
                "read": (Standing.GUEST, self._read),
            },
        )

    def _subscribe(self, call: Call) -> dict[str, Any]:
        if call.peer.dialect is Dialect.SEED and "push" not in call.peer.features:
            raise Refused("this peer gets one answer for each command: use read, or OPEN with push")
        try:
            begun = self._bus.subscribe(
                call.peer, _event_filter(call), call.uuid, since=_since(call), epoch=text(call, "epoch")
            )
        except ValueError as error:
            raise Refused(str(error)) from error
        return {
            "subscription": begun.ident,
            "since": begun.since,
            "epoch": self._bus.epoch,
            "sequence": self._bus.buffer.last,
            "gap": _gap(begun.gap),
        }

    def _unsubscribe(self, call: Call) -> dict[str, Any]:
        return {"ended": self._bus.unsubscribe(call.peer, text(call, "subscription"))}

    def _show(self, call: Call) -> list[dict[str, Any]]:
        peer = None if call.peer.principal.owner else call.peer
        return [
            {
                "subscription": one.ident,
                "peer": one.peer.name,
                **one.event_filter.asked(),
                "next": self._bus.reached(one),
                "dropped": one.dropped,
            }
            for one in self._bus.subscriptions(peer)
        ]

    def _read(self, call: Call) -> dict[str, Any]:
        bus, event_filter = self._bus, _event_filter(call)
        limit = number(call, "limit", 100, 1, READ_MAX)
        since = _since(call)
        try:
            at, gap = bus.begin(0 if since is None else since, text(call, "epoch"))
        except ValueError as error:
            raise Refused(str(error)) from error
        if since is None:
            gap = None  # nothing in particular was asked for
        events: list[dict[str, Any]] = []
        end = min(bus.buffer.last, at + LOOKED_AT_MAX - 1)
        while at <= end and len(events) < limit:
            entry = bus.buffer[at]
            if bus.may_follow(call.peer, event_filter, entry.event):
                events.append(told(entry, bus.epoch))
            at += 1
        return {
            "events": events,
            "next": at - 1,
            "epoch": bus.epoch,
            "sequence": bus.buffer.last,
            "gap": _gap(gap),
        }


def _event_filter(call: Call) -> EventFilter:
    kinds = frozenset(words(call, "kinds"))
    if not kinds <= KINDS:
        unknown = sorted(kinds - KINDS)[0]
        raise Refused(f"kind {unknown[:64]!r} is none of {', '.join(sorted(KINDS))}")
    return EventFilter(text(call, "uuid"), text(call, "service"), kinds)


def _since(call: Call) -> int | None:
    if call.kwargs.get("since") is None:
        return None
    return number(call, "since", 0, 0, SEQUENCE_MAX)


def _gap(gap: Gap | None) -> dict[str, Any] | None:
    return None if gap is None else gap._asdict()
