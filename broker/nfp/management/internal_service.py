"""What the broker's own services share: tasks by name, who may ask for them, arguments of the right type.

Answers are JSON. A refusal is 400 with ``{"error", "errors"}``; deployed NorFab's clients, which know no status of a
management call but 200, are told an unknown task as its broker does: the text alone, with 200.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, NamedTuple

from broker.nfp.bodies import write
from broker.nfp.contract import Answer, Call, Later
from broker.nfp.names import Code, Dialect
from broker.nfp.principal import Standing
from broker.safe_text import about

log = logging.getLogger("headgate")
Task = Callable[[Call], Any]
"""Returns what becomes JSON, or a ``Deferred``. Raises ``Refused``."""

_RANK: Final = {Standing.GUEST: 0, Standing.USER: 1, Standing.OWNER: 2}


class Refused(Exception):
    """The request cannot be granted; the text says why, ``status`` is one of the text's codes."""

    def __init__(self, text: str, status: int = Code.UNKNOWN) -> None:
        self.status = status
        super().__init__(text)


class Deferred(NamedTuple):
    """What a task returns that cannot answer at once."""

    begin: Callable[[Callable[[Any], None]], None]
    """Calls the function it is given with some outcome, now or later."""
    finish: Callable[[Any], Any]
    """Makes of the outcome what becomes JSON. Raises ``Refused``."""


class InternalService:
    """A service that the broker answers itself, made of tasks.

    Args:
        name: the service.
        tasks: name -> (the lowest standing that may ask, function).
    """

    def __init__(self, name: str, tasks: Mapping[str, tuple[Standing, Task]]) -> None:
        self.name = name
        self._tasks = dict(tasks)

    @property
    def tasks(self) -> list[str]:
        """The names of its tasks."""
        return sorted(self._tasks)

    def call(self, call: Call) -> Answer | Later:
        """Answer ``call``; whatever a task raises besides ``Refused`` is the caller's to answer with 500."""
        found = self._tasks.get(call.task)
        if found is None:
            return self._unknown(call)
        least, task = found
        if _RANK[call.peer.principal.standing] < _RANK[least]:
            return refusal(f"not allowed: {self.name} {call.task} needs the {least.value} role")
        try:
            said = task(call)
            if isinstance(said, Deferred):
                return partial(self._defer, call, said)
            return Answer(Code.OK, write(said))
        except Refused as error:
            return refusal(str(error), error.status)

    def _defer(self, call: Call, said: Deferred, answer: Callable[[Answer], None]) -> None:
        said.begin(lambda outcome: answer(self._finished(call, said, outcome)))

    def _finished(self, call: Call, said: Deferred, outcome: Any) -> Answer:
        try:
            return Answer(Code.OK, write(said.finish(outcome)))
        except Refused as error:
            return refusal(str(error), error.status)
        except Exception as error:
            log.exception("%s: %s %s failed", call.peer.name, self.name, call.task)
            return refusal(about(error), Code.ERROR)

    def _unknown(self, call: Call) -> Answer:
        shown = call.task[:64]
        if deployed(call):
            return Answer(Code.OK, write(f"Unsupported task '{shown}'"))
        return refusal(f"{self.name} has no task {shown!r}, expected one of {', '.join(self.tasks)}")


def deployed(call: Call) -> bool:
    """True for peers that write as deployed NorFab and did not introduce themselves."""
    return call.peer.dialect is Dialect.NORFAB and not call.peer.features


def refusal(text: str, status: int = Code.UNKNOWN) -> Answer:
    """An answer with an error; ``errors`` is where deployed NorFab's clients look."""
    return Answer(status, write({"error": text, "errors": [text], "status": "FAILED"}))


def text(call: Call, name: str, default: str = "") -> str:
    """The keyword ``name`` as text; null counts as absent.

    Raises:
        Refused: it is something else.
    """
    value = call.kwargs.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise Refused(f"{name} is {_kind(value)}, expected a text")
    return value


def number(call: Call, name: str, default: int, low: int, high: int) -> int:
    """The keyword ``name`` as a whole number from ``low`` to ``high``.

    Raises:
        Refused: it is something else.
    """
    value = call.kwargs.get(name)
    if value is None:
        return default
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        shown = repr(value)[:64] if isinstance(value, int) else _kind(value)
        raise Refused(f"{name} is {shown}, expected {low} to {high}")
    return value


def words(call: Call, name: str) -> tuple[str, ...]:
    """The keyword ``name`` as texts: a list, or one text with commas; () when absent.

    Raises:
        Refused: it is something else.
    """
    value = call.kwargs.get(name)
    if value is None:
        return ()
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        return tuple(value)
    raise Refused(f"{name} is {_kind(value)}, expected a text or a list of texts")


def _kind(value: Any) -> str:
    return f"of type {type(value).__name__}"
