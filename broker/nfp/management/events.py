"""``events.service.broker``: subscribe to what happens to jobs, and read what has happened (NFP, "NFP/Broker-PUB").

Tasks, all by keyword, every field may be left out:

``subscribe``    uuid, service, kinds, since, epoch -> {"subscription", "since", "epoch", "sequence", "gap"}
``unsubscribe``  subscription ("" all of the caller's) -> {"ended": n}
``show``         -> [{"subscription", "peer", "uuid", "service", "kinds", "dropped"}], an owner sees everybody's
``read``         uuid, service, kinds, since (0), epoch, limit (100) -> {"events", "next", "epoch", "sequence", "gap"}

A worker's EVENT on a topic that is no job (kind ``published``) goes to who asks for it by its topic, as ``uuid``, and
may call the worker's service.

A subscription brings what happens from now on; what has happened is read, page by page. ``gap`` is null or {"reason",
"first", "last"}: numbers behind ``since`` that a subscription does not bring, or that are no longer held (0: of another
epoch). ``read`` alone is for peers that only get what they ask for, among them a strict REQ client of the text's
dialect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec

from broker.nfp.contract import Call, EventFilter
from broker.nfp.management.event_bus import EventBus, Gap
from broker.nfp.management.questions import Refused, Table, Word, arguments, split
from broker.nfp.names import Dialect
from broker.nfp.principal import Standing

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker

READ_MAX: Final = 1000
"""Events in one answer."""
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


class _Wanted(msgspec.Struct):
    uuid: Word = ""
    service: Word = ""
    kinds: str | list[str] = ""
    since: Annotated[int, msgspec.Meta(ge=0)] | None = None
    epoch: str = ""

    def filter(self) -> EventFilter:
        kinds = frozenset(split(self.kinds))
        if not kinds <= KINDS:
            unknown = sorted(kinds - KINDS)[0]
            raise Refused(f"kind {unknown[:64]!r} is none of {', '.join(sorted(KINDS))}")
        return EventFilter(self.uuid, self.service, kinds)


class _Page(_Wanted):
    limit: Annotated[int, msgspec.Meta(ge=1, le=READ_MAX)] = 100


class _Ended(msgspec.Struct):
    subscription: str = ""


def _subscribe(broker: NfpBroker, call: Call) -> dict[str, Any]:
    if call.peer.dialect is Dialect.SEED and "push" not in call.peer.features:
        raise Refused("this peer gets one answer for each command: use read, or OPEN with push")
    wanted, bus = arguments(call, _Wanted), broker.event_bus
    try:
        since = bus.last if wanted.since is None else wanted.since
        behind, gap = bus.missing(since, wanted.epoch)
        bus.subscribe(call.peer, wanted.filter(), call.uuid)
    except ValueError as error:
        raise Refused(str(error)) from error
    if gap is None and behind < bus.last:
        gap = Gap("read them: a subscription brings what comes", behind + 1, bus.last)
    return {"subscription": call.uuid, "since": bus.last, **_numbers(bus, gap)}


def _unsubscribe(broker: NfpBroker, call: Call) -> dict[str, Any]:
    return {"ended": broker.event_bus.unsubscribe(call.peer, arguments(call, _Ended).subscription)}


def _show(broker: NfpBroker, call: Call) -> list[dict[str, Any]]:
    peer = None if call.peer.principal.owner else call.peer
    return [
        {
            "subscription": one.ident,
            "peer": one.peer.name,
            **one.event_filter.asked(),
            "dropped": one.dropped,
        }
        for one in broker.event_bus.subscriptions(peer)
    ]


def _read(broker: NfpBroker, call: Call) -> dict[str, Any]:
    page, bus = arguments(call, _Page), broker.event_bus
    try:
        events, at, gap = bus.read(call.peer, page.filter(), page.limit, since=page.since, epoch=page.epoch)
    except ValueError as error:
        raise Refused(str(error)) from error
    return {"events": events, "next": at, **_numbers(bus, gap)}


def _numbers(bus: EventBus, gap: Gap | None) -> dict[str, Any]:
    return {"epoch": bus.epoch, "sequence": bus.last, "gap": None if gap is None else gap._asdict()}


TASKS: Final[Table] = {
    "subscribe": (Standing.GUEST, _subscribe),
    "unsubscribe": (Standing.GUEST, _unsubscribe),
    "show": (Standing.GUEST, _show),
    "read": (Standing.GUEST, _read),
}
