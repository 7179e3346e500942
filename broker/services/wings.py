"""Statistics of NFP's services and oslo's topics, asked of these wings for ``broker.calls``.

A wing is a client that provides the service of its name, in this process or another. The broker that it is attached to
asks it, so that its calls are counted once in a tree. One that does not answer within ``ANSWER_S`` is named as silent.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Final

import msgspec

from broker.call_report import Count, LastError
from broker.errors import ProtocolError
from broker.figures import BOUNDS_NS, ERRNOS_MAX, NAMES_MAX, OTHER, readable
from broker.services.context import Call, Context
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
    """What a wing answers."""

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
    """The latest figures of each wing, and who waits for the next.

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
        asked again: all who wait get the same answer.
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
