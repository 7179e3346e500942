"""What is asked of the broker itself: its services' tasks by name, who may ask for them, their arguments.

Answers are JSON. A refusal is 400 with ``{"error", "errors"}``; deployed NorFab's clients, which know no status of a
management call but 200, are told an unknown task as its broker does: the text alone, with 200.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from errno import EINVAL
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeVar

import msgspec

from broker.errors import HeadgateError
from broker.nfp.bodies import write
from broker.nfp.contract import Answer, Call, NotStored, Peer
from broker.nfp.names import NAME_BYTES_MAX, Code, Dialect
from broker.nfp.principal import Standing
from broker.safe_text import about
from broker.tasks import Tasks

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker

log = logging.getLogger("headgate")
T = TypeVar("T")
Task = Callable[["NfpBroker", Call], Any]
"""Returns what becomes JSON, or a coroutine of it. Raises ``Refused``."""
Table = Mapping[str, tuple[Standing, Task]]
"""A service: by a task's name the lowest standing that may ask, and the function."""
Word = Annotated[str, msgspec.Meta(max_length=NAME_BYTES_MAX)]
"""What is compared with names, and kept for it: no longer than a name may be."""

UNDER_WAY_MAX: Final = 16
"""Questions of one peer that wait for their answers; beyond it the peer is told to wait for them."""
SHOWN_CHARS: Final = 200
"""Of what is wrong with arguments: it may quote them."""
_RANK: Final = {Standing.GUEST: 0, Standing.USER: 1, Standing.OWNER: 2}


class Refused(HeadgateError):
    """The request cannot be granted; the text says why."""

    errno = EINVAL
    fault = "caller"


class Questions:
    """Answers what the broker is asked.

    Args:
        broker: what is told about, and told what to do. services: by name.
    """

    def __init__(self, broker: NfpBroker, services: Mapping[str, Table]) -> None:
        self._broker = broker
        self._services = services
        self._tasks = Tasks()
        self._waiting: dict[int, set[asyncio.Task[None]]] = {}
        """By peer, which a question keeps alive."""

    async def stop(self) -> None:
        """End the tasks under way: nobody is answered any more. Harmless twice."""
        await self._tasks.stop()

    def leave(self, peer: Peer) -> None:
        """``peer`` is gone: nobody waits for what it has asked."""
        for question in self._waiting.pop(id(peer), ()):
            question.cancel()

    def ask(self, call: Call, answer: Callable[[Answer], None]) -> None:
        """Give ``answer`` what ``call`` is answered: at once, or later where the task has to wait; never raises."""
        service = self._services.get(call.service)
        if service is None:
            answer(refusal(f"this broker has no service {call.service}"))
            return
        found = service.get(call.task)
        if found is None:
            answer(_unknown(call, service))
            return
        least, task = found
        if _RANK[call.peer.principal.standing] < _RANK[least]:
            answer(refusal(f"not allowed: {call.service} {call.task} needs the {least.value} role"))
            return
        if iscoroutinefunction(task):
            self._wait(call, task, answer)
            return
        try:
            said = Answer(Code.OK, write(task(self._broker, call)))
        except Exception as error:
            said = _failed(call, error)
        answer(said)

    def _wait(self, call: Call, task: Task, answer: Callable[[Answer], None]) -> None:
        peer = id(call.peer)
        waiting = self._waiting.setdefault(peer, set())
        if len(waiting) >= UNDER_WAY_MAX:
            text = f"{UNDER_WAY_MAX} questions wait for their answers: too many at a time"
            answer(refusal(text, Code.ERROR))
            return

        async def finish() -> None:
            try:
                said = Answer(Code.OK, write(await task(self._broker, call)))
            except Exception as error:
                said = _failed(call, error)
            answer(said)

        def over(question: asyncio.Task[None]) -> None:
            waiting.discard(question)
            if not waiting and self._waiting.get(peer) is waiting:
                del self._waiting[peer]

        question = self._tasks.spawn(f"nfp {call.service} {call.task}", finish())
        waiting.add(question)
        question.add_done_callback(over)


def _failed(call: Call, error: Exception) -> Answer:
    if isinstance(error, Refused):
        return refusal(str(error))
    if isinstance(error, NotStored):
        return refusal(str(error), Code.ERROR)
    log.error("%s: %s %s failed", call.peer.name, call.service, call.task, exc_info=error)
    return refusal(about(error), Code.ERROR)


def _unknown(call: Call, service: Table) -> Answer:
    shown = call.task[:64]
    if deployed(call):
        return Answer(Code.OK, write(f"Unsupported task '{shown}'"))
    return refusal(f"{call.service} has no task {shown!r}, expected one of {', '.join(sorted(service))}")


def deployed(call: Call) -> bool:
    """True for peers that write as deployed NorFab and did not introduce themselves."""
    return call.peer.dialect is Dialect.NORFAB and not call.peer.features


def refusal(text: str, status: int = Code.UNKNOWN) -> Answer:
    """An answer with an error; ``errors`` is where deployed NorFab's clients look."""
    return Answer(status, write({"error": text, "errors": [text], "status": "FAILED"}))


def arguments(call: Call, shape: type[T]) -> T:
    """The keywords of ``call`` as ``shape``, a Struct whose fields may all be left out; null counts as absent.

    Raises:
        Refused: one is something else; the text says which.
    """
    try:
        return msgspec.convert({name: said for name, said in call.kwargs.items() if said is not None}, shape)
    except msgspec.ValidationError as error:
        raise Refused(f"{call.task}: {str(error)[:SHOWN_CHARS]}") from None


def split(said: str | list[str]) -> tuple[str, ...]:
    """The words of a list, or of one text with commas."""
    if isinstance(said, str):
        return tuple(word.strip() for word in said.split(",") if word.strip())
    return tuple(said)
