"""Statistics of NFP's services and oslo's topics, asked of these wings for ``broker.calls``.

A wing is a client that provides the service of its name, in this process or another; the broker that it is attached to
asks it, so that what it counts is counted once in a tree. It has a moment for that: one that is silent is named.
"""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterable
from functools import partial
from typing import Annotated, Any, Final

import msgspec

from broker.errors import ProtocolError
from broker.figures import BOUNDS_NS, ERRNOS_MAX, NAMES_MAX, OTHER, TEXT_MAX, readable
from broker.services.context import Call, Context
from broker.wire.message import Message
from broker.wire.payload import decode_json

WINGS: Final = {"nfp": "nfp.calls", "oslo": "oslo.calls"}
"""Service, the name of its kind, too -> what answers ``{"figures": {NAME: as of a method}, "silent": [PART]}``."""
ANSWER_S: Final = 0.5
ERRNO_DIGITS: Final = 10
SILENT_MAX: Final = 8
"""Parts of a wing that it may say are silent."""

Count = Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)]
Figures = dict[str, dict[str, Any]]
Done = Callable[[dict[str, Figures], list[str]], None]


class LastError(msgspec.Struct):
    """The newest error of a name."""

    errnum: Count
    text: str
    userid: Count
    time: float


class WingStats(msgspec.Struct):
    """One name, as a wing tells it."""

    calls: Count
    open: Count
    errors: dict[str, Count]
    total_ns: Count
    buckets: list[Count]
    last_error: LastError | None = None


class _Told(msgspec.Struct):
    figures: dict[str, WingStats]
    silent: list[str] = []


def bounded(payload: bytes | None) -> tuple[Figures, list[str]]:
    """The figures in the answer of a wing, no more names, errnos and buckets than ours have, no text that is longer;
    and the parts of the wing that are silent.

    Raises:
        ProtocolError: it is none.
    """
    try:
        told = msgspec.convert(decode_json(payload), _Told)
    except msgspec.ValidationError as error:
        raise ProtocolError(str(error)) from error
    found: Figures = {}
    for name, stats in told.figures.items():
        if readable(name) != name or len(found) >= NAMES_MAX + (OTHER in found):
            continue
        stats.errors = {
            number: count
            for number, count in list(stats.errors.items())[: ERRNOS_MAX + 1]
            if number.isascii() and number.isdecimal() and len(number) <= ERRNO_DIGITS
        }
        if len(stats.buckets) != len(BOUNDS_NS) + 1:
            stats.buckets = []
        if stats.last_error is not None:
            stats.last_error.text = stats.last_error.text[:TEXT_MAX]
        found[name] = msgspec.to_builtins(stats)
    return found, [part for part in told.silent[:SILENT_MAX] if readable(part) == part]


class Wings:
    """What the wings told last, and who waits for what they tell now.

    Args:
        context: the broker.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self._latest: dict[str, Figures] = {}
        self._owed: dict[str, Call] = {}
        self._questions: list[_Question] = []

    def ask(self, kinds: Iterable[str], done: Done) -> None:
        """Ask those of ``WINGS``; ``done`` is told the figures by kind, and what said nothing in time, or nothing that
        can be read. Of that stands what it told last: nobody takes the next answer for a second's work. A wing that
        owes an answer is not asked again: all who wait get that one.
        """
        asked = set(kinds)
        for gone in self._latest.keys() - asked:
            del self._latest[gone]
        for gone in self._owed.keys() - asked:
            self._owed.pop(gone).cancel()
        question = _Question(asked, done)
        question.timer = self._context.after(ANSWER_S, partial(self._end, question))
        self._questions.append(question)
        for kind in WINGS:
            if kind in asked and kind not in self._owed:
                answered = partial(self._answered, kind)
                self._owed[kind] = self._context.call(WINGS[kind], None, answered, nodeid=self._context.rank)

    def _answered(self, kind: str, message: Message) -> None:
        if self._owed.pop(kind, None) is None:
            return
        found, silent = _told(kind, message)
        for question in [each for each in self._questions if kind in each.waits]:
            question.waits.discard(kind)
            question.found |= found
            question.silent += silent
            if not question.waits:
                self._end(question)

    def _end(self, question: _Question) -> None:
        """Whoever has not answered by now is silent."""
        self._questions.remove(question)
        if question.timer is not None:
            question.timer.cancel()
        found, silent = question.found, [*question.silent, *sorted(question.waits)]
        for kind in {part.partition(" ")[0] for part in silent}:
            known = {**self._latest.get(kind, {}), **found.get(kind, {})}
            if known:
                found[kind] = dict(list(known.items())[: NAMES_MAX + 1])
        self._latest |= found
        question.done(found, silent)


class _Question:
    """Somebody who waits for some wings."""

    def __init__(self, waits: set[str], done: Done) -> None:
        self.waits = set(waits)
        self.done = done
        self.timer: asyncio.TimerHandle | None = None
        self.found: dict[str, Figures] = {}
        self.silent: list[str] = []


def _told(kind: str, message: Message) -> tuple[dict[str, Figures], list[str]]:
    """The figures in an answer, by kind, and what is silent."""
    if message.errnum == errno.ENOSYS:  # an older one, which counts nothing
        return {}, []
    try:
        if message.errnum == 0:
            figures, silent = bounded(message.payload)
            return {kind: figures}, [f"{kind} {part}" for part in silent]
    except ProtocolError:
        pass
    return {}, [kind]
