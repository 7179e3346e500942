"""How a job ends, and what a client has got of one so far; pure, no input or output.

``part_state`` and ``job_state`` are the one definition of a job that failed: lists, figures, events and the
journal of the broker all say what these say.

The set of workers a job waits for is named by 202. An empty set there ("any": nobody was chosen yet) is no answer to
that question, and the first non-empty one settles it, until another broker takes the job over (``reopen``). One result
of each worker counts: a repeated one is a replay, and is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

from broker.nfp.bodies import says_failed
from broker.nfp.names import Code
from broker.nfp.opening import read_any, read_object
from broker.nfp.packet import Body
from broker.nfp.targets import Target, parse

_CANCELLED = "CANCELLED"

DONE: Final = "done"
FAILED: Final = "failed"
EXPIRED: Final = "expired"
CANCELLED: Final = "cancelled"
END_STATES: Final = (DONE, FAILED, EXPIRED, CANCELLED)
"""How a job, or one worker's part of it, can have ended; each has exactly one of them."""
STATUS_WORDS: Final = {DONE: "COMPLETED", FAILED: "FAILED", EXPIRED: "EXPIRED", CANCELLED: "CANCELLED"}
"""The same as the protocol's bodies and the journal say it."""


_TRACEBACK: Final = "Traceback (most recent call last)"


def part_state(status: int, body: Body) -> str:
    """Return how one worker's part of a job ended, by its recorded result.

    - done: 200, and the task does not say that it failed.
    - failed: 200 of a task that raised or says ``"failed": true``; an error; a worker that was lost with a job which
      must not be run again (408 of the broker, whose body says FAILED).
    - expired: its time was over, which the broker says (408) or the worker, whoever notices first (200 of a task that
      failed with the status "timeout").
    - cancelled: 417.
    """
    if status == Code.OK:
        if not says_failed(body):
            return DONE
        return EXPIRED if _of_one_worker(read_object(body)).get("status") == "timeout" else FAILED
    return _error_state(status, read_object(body))


def _error_state(status: int, said: dict[str, Any]) -> str:
    if status == Code.EXPECT_FAILED:
        return CANCELLED
    lost = said.get("status") == STATUS_WORDS[FAILED]
    return EXPIRED if status == Code.TIMEOUT and not lost else FAILED


def result_state(result: Any) -> str:
    """Return how a task ended by its result, as a client has read it: done, failed or expired, as of ``part_state``."""
    if not isinstance(result, dict) or result.get("failed") is not True:
        return DONE
    return EXPIRED if result.get("status") == "timeout" else FAILED


def job_state(parts: Iterable[str]) -> str:
    """Return how a job ended whose parts ended like this: failed, expired or cancelled when one of them is, in this
    order, so that nothing hides a task that failed; done when all are.
    """
    found = set(parts)
    return next((state for state in (FAILED, EXPIRED, CANCELLED) if state in found), DONE)


class Explained(NamedTuple):
    """A recorded result as people read it."""

    result: Any = None
    """What the task returned, or what a peer of the protocol's text sent."""
    error: str = ""
    """What went wrong, in short; "" for what is done."""
    traceback: str = ""
    """Of a task that raised; "" when there is none."""


def explain(status: int, body: Body) -> Explained:
    r"""Return what the recorded result of one worker's part says.

    >>> explain(200, b'{"w1": {"result": 7, "failed": false}}').result
    7
    >>> explain(200, b'{"w1": {"failed": true, "errors": ["Traceback (most recent call last):\\nOSError: no"]}}').error
    'OSError: no'
    >>> explain(408, b'{"error": "no result within 5 s"}').error
    'no result within 5 s'
    """
    value = read_any(body)
    said = value if isinstance(value, dict) else {}
    inner = _of_one_worker(said)
    if status == Code.OK and not says_failed(body):
        text = bytes(body or b"").decode("utf-8", "replace") if value is None else value
        return Explained(inner.get("result") if "failed" in inner else text)
    errors = inner.get("errors")
    texts = [_text(each) for each in errors if each] if isinstance(errors, list) else []
    traceback = next((text for text in texts if _TRACEBACK in text), "")
    if traceback:
        error = traceback.strip().rsplit("\n", 1)[-1]
    else:
        error = "\n".join(texts) or ("it does not say why" if inner else error_text(status, said))
    return Explained(inner.get("result"), error, traceback)


def _of_one_worker(said: dict[str, Any]) -> dict[str, Any]:
    """The result in ``{worker: result}``; {} when it is none."""
    inner = next(iter(said.values())) if len(said) == 1 else None
    return inner if isinstance(inner, dict) else {}


def last_line(errors: Any) -> str:
    r"""Return the last line of the first of a result's ``errors``, as a traceback ends; "" when there is none.

    >>> last_line(["Traceback (most recent call last):\nOSError: no", "more"]), last_line([]), last_line("no")
    ('OSError: no', '', 'no')
    """
    first = (errors[0] if errors else "") if isinstance(errors, list) else errors
    return "" if first is None else str(first).strip().rsplit("\n", 1)[-1]


class Failure(NamedTuple):
    """An error in place of a result."""

    status: int
    text: str
    state: str = FAILED
    """What it says of the job: failed, expired or cancelled, as of ``part_state``."""


class AnswerMeaning(NamedTuple):
    """What an answer meant: the ``kind`` of Event, "" when it says nothing new."""

    kind: str
    worker: str = ""
    message: str = ""


class Outcome:
    """The results of one job.

    Attributes:
        workers: who was named by 202; () while nobody was.
        acknowledged: the broker has said something about the job. begun: a worker has.
        inputs: worker -> the input_request that it waits for the answer of.
        results: worker -> result; "" for a result without a worker's name while none is known.
        failures: worker -> Failure. error: of the job as a whole.
        fresh: workers that the latest answer settled. duplicates: repeated results, dropped.
    """

    def __init__(self, service: str, target: Target) -> None:
        self.service = service
        self.target = target
        self.workers: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()
        self.acknowledged = False
        self.begun = False
        self.results: dict[str, Any] = {}
        self.failures: dict[str, Failure] = {}
        self.error: Failure | None = None
        self.inputs: dict[str, str] = {}
        self.fresh: list[str] = []
        self.duplicates = 0
        self._nameless: list[Any] = []

    # -- views ------------------------------------------------------------------------------------

    @property
    def status(self) -> str:
        """new, queued, dispatched, started, waiting (for input); Job adds how it ended."""
        if self.inputs:
            return "waiting"
        if self.begun:
            return "started"
        if self.workers:
            return "dispatched"
        return "queued" if self.acknowledged else "new"

    @property
    def complete(self) -> bool:
        """True when nothing more is awaited."""
        if self.error is not None:
            return True
        settled = self.results.keys() | self.failures.keys()
        if not settled:
            return False
        if self._anyone:
            return True
        expected = self.workers or self.target.names
        return bool(expected) and settled.issuperset(expected)

    @property
    def outstanding(self) -> tuple[str, ...]:
        """Workers whose results are awaited; () when nobody was named yet."""
        expected = self.workers or self.target.names
        return tuple(name for name in expected if name not in self.results and name not in self.failures)

    @property
    def _anyone(self) -> bool:
        """Whether one result is all; "any" of the service "all" means one worker of each service."""
        return self.target.kind == "any" and self.service != "all"

    # -- what comes -------------------------------------------------------------------------------

    def reopen(self) -> None:
        """A broker that may not know the job takes it over: who works on it is open again, results stay."""
        self.workers = ()
        self.acknowledged = False
        self._nameless.clear()

    def take_answer(self, status: int, body: Body) -> AnswerMeaning:
        """A RESPONSE with ``status``; see the codes in ``names``."""
        self.fresh.clear()
        value = read_any(body)
        said = value if isinstance(value, dict) else {}
        if status == Code.OK:
            self.acknowledged = True
            return self._take_result(value, body)
        if status == Code.ACCEPTED:
            return self._take_workers(said)
        if status >= Code.UNKNOWN:
            return self._take_failure(status, said)
        return self._take_progress(status, said)

    def _take_workers(self, said: dict[str, Any]) -> AnswerMeaning:
        if said.get("status") == _CANCELLED:
            self.error = Failure(Code.EXPECT_FAILED, "cancelled", CANCELLED)
            return AnswerMeaning("cancelled")
        self.acknowledged = True
        names = _names(said.get("workers"))
        self.missing = self.missing or _names(said.get("missing"))
        if not names or self.workers:
            return AnswerMeaning("")
        self.workers = names
        self._assign_nameless()
        return AnswerMeaning("dispatched", message=", ".join(names))

    def _take_progress(self, status: int, said: dict[str, Any]) -> AnswerMeaning:
        worker, before = _text(said.get("worker")), self.status
        self.acknowledged = True
        if status == Code.CREATED or said.get("status") == "STARTED":
            fresh, self.begun = not self.begun, True
            return AnswerMeaning("accepted" if status == Code.CREATED or fresh else "", worker)
        if status == Code.WAITING_INPUT:
            self.begun = True
            if worker:
                self.inputs.setdefault(worker, "")
            return AnswerMeaning("input_request", worker)
        if before == "new":
            self.missing = self.missing or _names(said.get("missing"))
            return AnswerMeaning("queued", worker)
        return AnswerMeaning("")

    def _take_result(self, value: Any, body: Body) -> AnswerMeaning:
        if not self._is_named(value):
            return self._keep_nameless(value if value is not None else bytes(body))
        for worker, result in value.items():
            if worker in self.results or worker in self.failures:
                self.duplicates += 1
                continue
            self.results[worker] = result
            self.inputs.pop(worker, None)
            self.fresh.append(worker)
        if not self.fresh:
            return AnswerMeaning("")
        if self._anyone and not self.workers:
            self.workers = tuple(self.fresh)  # our broker does not say so in front of a result that does
        told = AnswerMeaning("finished", self.fresh[-1])
        self._assign_nameless()
        self.begun = True
        return told

    def _is_named(self, value: Any) -> bool:
        """Whether a result has the form {worker: {...}} that NorFab's workers write."""
        if not isinstance(value, dict) or not value:
            return False
        if not all(isinstance(part, dict) for part in value.values()):
            return False
        known = self.workers or self.target.names
        return not known or any(name in known or "failed" in part for name, part in value.items())

    def _keep_nameless(self, value: Any) -> AnswerMeaning:
        """A body that names no worker: it is known whose it is once as many are awaited as came."""
        if self._anyone and (self.results or self._nameless):
            self.duplicates += 1
            return AnswerMeaning("")
        self._nameless.append(value)
        self._assign_nameless()
        return AnswerMeaning("finished")

    def _assign_nameless(self) -> None:
        if not self._nameless:
            return
        awaited = self.outstanding
        if not awaited and self._anyone:
            self.results[""] = self._nameless.pop()
            self.fresh.append("")
        elif len(awaited) == len(self._nameless):
            self.results.update(zip(awaited, self._nameless, strict=True))
            self.fresh.extend(awaited)
            self._nameless.clear()

    def _take_failure(self, status: int, said: dict[str, Any]) -> AnswerMeaning:
        failure = Failure(status, error_text(status, said), _error_state(status, said))
        worker = self._whose(said)
        if not worker:
            self.error = failure
            return AnswerMeaning("failed", message=failure.text)
        if worker in self.results or worker in self.failures:
            self.duplicates += 1
            return AnswerMeaning("")
        self.failures[worker] = failure
        self.inputs.pop(worker, None)
        self.fresh.append(worker)
        self._assign_nameless()
        return AnswerMeaning("failed", worker, failure.text)

    def _whose(self, said: dict[str, Any]) -> str:
        """The one worker an error is about; "" when it is about the job."""
        worker = _text(said.get("worker"))
        if not worker:
            target = parse(_text(said.get("target")))
            worker = target.names[0] if target is not None and len(target.names) == 1 else ""
        return worker if len(self.workers) > 1 and worker in self.workers else ""

    def take_event(self, said: dict[str, Any]) -> bool:
        """An EVENT of a worker; False for one that repeats an input_request known already."""
        kind, worker = said.get("event_type"), _text(said.get("worker"))
        extras = said.get("extras")
        extras = extras if isinstance(extras, dict) else {}
        self.acknowledged = self.begun = True
        if kind == "input_request":
            asked = extras.get("input_request")
            ident = _text(asked.get("id") if isinstance(asked, dict) else "")
            if ident and self.inputs.get(worker) == ident:
                return False
            self.inputs[worker] = ident
        elif kind == "input_response":
            self.inputs.pop(worker, None)
        return True


def worker_of(body: Body) -> str:
    """The worker that an answer or event names; "" when it names none."""
    return _text(read_object(body).get("worker"))


def error_text(status: int, said: Mapping[str, Any]) -> str:
    """What an error's body says: "error", else the first of "errors", else its status."""
    errors = said.get("errors")
    found = said.get("error") or (errors[0] if isinstance(errors, list) and errors else None)
    return _text(found) or _text(said.get("status")) or f"status {status}"


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, Iterable) or isinstance(value, (str, bytes)):
        return ()
    return tuple(dict.fromkeys(name for name in value if isinstance(name, str) and name))


def _text(value: Any) -> str:
    return value if isinstance(value, str) else "" if value is None else str(value)
