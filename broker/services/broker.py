"""The broker itself as a service (``broker.stats-get``, ``calls``, ``drain``, ``disconnect-client``, ``getenv``), and
its clients in the words of the deployed connector (``connector-local.stats-get``).

``broker.calls`` asks the wings NFP and oslo, too. A wing is a client that provides the service of its name, in this
process or another. The broker that it is attached to asks it, so that its calls are counted once in a tree. A wing that
does not answer within ``ANSWER_S`` is named as silent.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from broker.call_report import Count, LastError
from broker.errors import ProtocolError, RpcError
from broker.identity import Role
from broker.name_stats import BOUNDS_NS, ERRNOS_MAX, NAMES_MAX, OTHER, readable
from broker.services.context import Call, Context
from broker.services.service import Service, Services, method
from broker.serving.request import LATER, Later, Request
from broker.wire.message import Message
from broker.wire.payload import decode_json

WINGS: Final = {"nfp": "nfp.calls", "oslo": "oslo.calls"}
"""Service, the name of its kind, too -> what answers ``{"figures": {NAME: as of a method}, "silent": [PART]}``."""
ANSWER_S: Final = 0.5
ERRNO_DIGITS: Final = 10
SILENT_MAX: Final = 8
"""Parts of a wing that it may say are silent."""

Figures = dict[str, dict[str, Any]]
OnFigures = Callable[[dict[str, Figures], list[str]], None]


class WingStats(msgspec.Struct):
    """The statistics of one name."""

    calls: Count
    open: Count
    errors: dict[str, Count]
    total_ns: Count
    buckets: list[Count]
    last_error: LastError | None = None


class _Answer(msgspec.Struct):
    """The answer of a wing."""

    figures: dict[str, WingStats]
    silent: list[str] = []


def bounded(payload: bytes | None) -> tuple[Figures, list[str]]:
    """The figures in the answer of a wing, and the parts of the wing that are silent.

    What is beyond the bounds of our own figures is left out: names, errnos, buckets, the length of texts.

    Raises:
        ProtocolError: the payload is no such answer.
    """
    try:
        answer = msgspec.convert(decode_json(payload), _Answer)
    except msgspec.ValidationError as error:
        raise ProtocolError(str(error)) from error
    found: Figures = {}
    for name, stats in answer.figures.items():
        if readable(name) != name or len(found) >= NAMES_MAX + (OTHER in found):
            continue
        stats.errors = {
            number: count
            for number, count in list(stats.errors.items())[: ERRNOS_MAX + 1]
            if number.isascii() and number.isdecimal() and len(number) <= ERRNO_DIGITS
        }
        if len(stats.buckets) != len(BOUNDS_NS) + 1:
            stats.buckets = []
        found[name] = msgspec.to_builtins(stats)
    return found, [part for part in answer.silent[:SILENT_MAX] if readable(part) == part]


class Wings:
    """The latest figures of each wing, and the callers that wait for the next.

    Args:
        context: the broker.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._latest: dict[str, Figures] = {}
        self._calls: dict[str, Call] = {}
        self._inquiries: list[_Inquiry] = []

    def ask(self, kinds: Iterable[str], on_figures: OnFigures) -> None:
        """Ask the wings of these kinds; ``on_figures`` gets the figures by kind, and the names of silent wings.

        A wing is silent when it does not answer in time, or not with what can be read. Its latest figures stand in for
        it, so that the next answer does not look like the work of one second. A wing that has not answered yet is not
        asked again: all callers that wait get the same answer.
        """
        asked = set(kinds)
        for gone in self._latest.keys() - asked:
            del self._latest[gone]
        for gone in self._calls.keys() - asked:
            self._calls.pop(gone).cancel()
        inquiry = _Inquiry(asked, on_figures)
        inquiry.timer = asyncio.get_running_loop().call_later(ANSWER_S, self._end, inquiry)
        self._inquiries.append(inquiry)
        for kind in WINGS:
            if kind in asked and kind not in self._calls:
                answered = partial(self._answered, kind)
                self._calls[kind] = self._context.call(WINGS[kind], None, answered, nodeid=self._context.rank)

    def _answered(self, kind: str, message: Message) -> None:
        if self._calls.pop(kind, None) is None:
            return
        found, silent = _figures_in(kind, message)
        for inquiry in [each for each in self._inquiries if kind in each.waits]:
            inquiry.waits.discard(kind)
            inquiry.found |= found
            inquiry.silent += silent
            if not inquiry.waits:
                self._end(inquiry)

    def _end(self, inquiry: _Inquiry) -> None:
        """Those that have not answered by now are silent."""
        self._inquiries.remove(inquiry)
        if inquiry.timer is not None:
            inquiry.timer.cancel()
        found, silent = inquiry.found, [*inquiry.silent, *sorted(inquiry.waits)]
        for kind in {part.partition(" ")[0] for part in silent}:
            known = {**self._latest.get(kind, {}), **found.get(kind, {})}
            if known:
                found[kind] = dict(list(known.items())[: NAMES_MAX + 1])
        self._latest |= found
        inquiry.on_figures(found, silent)


class _Inquiry:
    """Somebody waits for the figures of some wings."""

    def __init__(self, waits: set[str], on_figures: OnFigures) -> None:
        self.waits = set(waits)
        self.on_figures = on_figures
        self.timer: asyncio.TimerHandle | None = None
        self.found: dict[str, Figures] = {}
        self.silent: list[str] = []


def _figures_in(kind: str, message: Message) -> tuple[dict[str, Figures], list[str]]:
    """The figures in an answer, by kind, and the names of what is silent."""
    if message.errnum == errno.ENOSYS:  # an older one, which counts nothing
        return {}, []
    try:
        if message.errnum == 0:
            figures, silent = bounded(message.payload)
            return {kind: figures}, [f"{kind} {part}" for part in silent]
    except ProtocolError:
        pass
    return {}, [kind]


class BrokerSelf(Service):
    """Figures and environment of this process."""

    name = "broker"

    def __init__(self, context: Context, services: Services) -> None:
        super().__init__(context, services)
        self._wings = Wings(context)

    @method("stats-get", allow=Role.USER)
    def figures(self, request: Request) -> Mapping[str, Any]:
        """-> ``{"tx", "rx"}``: messages by type, as deployed.

        ``{"detail": true}`` -> all figures and, to the owner, every link. ``{"format": "prometheus"}`` -> ``{"text"}``.
        """
        asked = request.json() if request.message.payload_part else {}
        if asked.get("format") == "prometheus":
            return {"text": self.context.figures.text()}
        traffic = self.context.figures.traffic()
        if asked.get("detail") is not True:
            return {"tx": traffic["tx"], "rx": traffic["rx"]}
        if not request.owner:
            return traffic
        return {**traffic, "peers": list(self.context.figures.links())}

    @method("users", allow=Role.ADMIN)
    def users(self, _request: Request) -> Mapping[str, Any]:
        """-> ``{"users": [{"userid", "owner", "links", "pending", "services", "subscriptions", "outbox_bytes",
        "received"}], "limits": {...}}``: what the clients of this broker hold, by user, the busiest first.
        """
        return self.context.figures.users()

    @method("calls", allow=Role.USER)
    def calls(self, request: Request) -> Mapping[str, Any] | Later:
        """-> ``{"bounds_ns", "methods": {METHOD: {"calls", "open", "errors": {ERRNO: N}, "total_ns", "buckets"}},
        "others": {KIND: {NAME: as of a method}}, "silent": [WING], "services": {NAME: {"provider", "builtin"}}}``:
        rate, errors and duration of the calls that clients made at this broker.

        To owner and admin with ``"last_error": {"errnum", "text", "userid", "time"}`` where there was one, and with the
        other kinds: ``event``, the topics of the events that this broker numbered; ``nfp``, jobs by service and task;
        ``oslo``, messages by pipeline, exchange and topic. A wing that is attached to this broker is asked; one that
        does not answer is silent.
        """
        trusted = bool(request.message.rolemask & (Role.OWNER | Role.ADMIN))
        told = {**self.context.figures.calls(trusted), "silent": []}
        asked = [
            kind for kind in WINGS if trusted and not told["services"].get(kind, {}).get("builtin", True)
        ]
        if not asked:
            return told

        def answer(found: dict[str, Figures], silent: list[str]) -> None:
            request.respond({**told, "others": {**told["others"], **found}, "silent": silent})

        self._wings.ask(asked, answer)
        return LATER

    def clear_stats(self) -> None:
        """Start the counts again."""
        self.context.figures.clear()

    @method("drain")
    def drain(self, request: Request) -> Mapping[str, Any]:
        """``{"rank"}`` -> ``{}``, then this broker leaves as at SIGTERM: it accepts no more, open calls end, the
        brokers below leave first. ``rank`` is its own, so that a call that went elsewhere ends nothing; 0 ends the
        instance.
        """
        if request.field("rank", int) != self.context.rank:
            raise RpcError(errno.EINVAL, f"this is rank {self.context.rank}")
        errnum = self.context.leave(f"drained by userid {request.message.userid}")
        if errnum:
            raise RpcError(errnum, "this broker is ended by the program that runs it")
        return {}

    @method("disconnect-client")
    def disconnect_client(self, request: Request) -> Mapping[str, Any]:
        """``{"uuid"}`` -> ``{}``: the link of that client is closed (``peers`` of ``stats-get`` has them); its open
        calls end, and it may connect anew.
        """
        uuid = request.field("uuid", str)
        errnum = self.context.disconnect_client(uuid, f"ended by userid {request.message.userid}")
        if errnum:
            raise RpcError(errnum, f"no client {uuid[:36]} at this broker")
        return {}

    @method("getenv")
    def getenv(self, request: Request) -> Mapping[str, Any]:
        """``{"names"}`` -> ``{"env"}``: those that are set."""
        names = request.field("names", list)
        return {
            "env": {name: os.environ[name] for name in names if isinstance(name, str) and name in os.environ}
        }

    @method("conf-builtin", allow=Role.ALL)
    def conf_builtin(self, request: Request) -> Mapping[str, Any]:
        """``{"keys"}`` -> ``{"values"}``: nothing is compiled in here, so every key is EINVAL."""
        for key in request.field("keys", list):
            raise RpcError(errno.EINVAL, f"{str(key)[:64]}: invalid key")
        return {"values": {}}


class ConnectorLocal(Service):
    """Figures of the clients' links."""

    name = "connector-local"

    @method("stats-get")
    def figures(self, request: Request) -> Mapping[str, Any]:
        """-> ``{"server": {"clients", "connects"}, "allow_guest_user", "allow_root_owner"}``.

        Counts are the client's: ``txcount`` messages it was sent, ``rxcount`` messages it sent us; ``connects`` are
        all clients so far.
        """
        clients = [_client(link) for link in self.context.figures.links() if link.get("kind") == "client"]
        access = self.context.config.get("access", {})
        return {
            "server": {"clients": clients, "connects": self.context.figures.traffic()["connects"]},
            "allow_guest_user": bool(access.get("allow-guest-user", False)),
            "allow_root_owner": bool(access.get("allow-root-owner", False)),
        }


def _client(link: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "uuid": link["uuid"],
        "userid": link["userid"],
        "pid": link.get("pid", -1),
        "txcount": link.get("sent", 0),
        "rxcount": link.get("received", 0),
        "rxbacklog": link.get("queued", 0),
    }
