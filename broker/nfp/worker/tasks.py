"""The functions a worker offers as tasks: how they are called, what input they take, how ``list_tasks`` shows them.

A task with an input model, a msgspec ``Struct``, a dataclass or a pydantic model, is entered only with input that the
model accepts (``models``).
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, NamedTuple, TypedDict, TypeVar, Unpack

import msgspec

from broker.errors import ConfigError
from broker.nfp.names import NAME_BYTES_MAX
from broker.nfp.worker.models import JOB, InvalidInput, checked, is_model
from broker.nfp.worker.models import schema as model_schema
from broker.safe_text import text

Function = Callable[..., Any] | Callable[..., Awaitable[Any]]
__all__ = ["InvalidInput", "Task", "TaskOptions", "make", "marked", "task"]
F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS: Final = "_headgate_task"


class TaskOptions(TypedDict, total=False):
    """What ``@worker.task(...)`` and ``@task(...)`` take.

    Attributes:
        name: of the task; default: the function's.
        input: the model of its arguments, see the module; default: none, whatever comes is passed on.
        idempotent: False: never run twice for one job; a worker lost after it began ends the job with an error.
        nf_text: names of arguments whose ``nf://`` URL is replaced by what the file says, not by its path.
        description: default: the docstring.
    """

    name: str | None
    input: type | None
    idempotent: bool
    nf_text: Sequence[str]
    description: str | None


def task(**options: Unpack[TaskOptions]) -> Callable[[F], F]:
    """Mark a method of a ``Worker`` class: each worker of the class offers it as a task; see ``Worker.task``."""

    def mark(function: F) -> F:
        setattr(function, _OPTIONS, options)
        return function

    return mark


def marked(worker: object) -> list[tuple[Function, TaskOptions]]:
    """The methods of ``worker`` that its class marks as tasks, by name."""
    members = inspect.getmembers(type(worker), lambda member: hasattr(member, _OPTIONS))
    return [(getattr(worker, name), getattr(member, _OPTIONS)) for name, member in members]


class Task(NamedTuple):
    """One task.

    Attributes:
        idempotent: it may be run a second time when nobody knows whether the first was completed (NFP,
            "Architecture", assumes so of every task). nf_text, input: see ``TaskOptions``.
    """

    name: str
    function: Function
    idempotent: bool
    asynchronous: bool
    job: str
    """How it takes its JobContext: "first", "keyword" or ""."""
    description: str
    nf_text: tuple[str, ...] = ()
    input: type | None = None

    def call(self, context: object, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What the function returns: the result, or an awaitable of it.

        Raises:
            InvalidInput: its model does not accept the arguments.
        """
        if self.input is not None:
            args, kwargs = [], checked(self.function, self.input, args, kwargs)
        if self.job == "first":
            return self.function(context, *args, **kwargs)
        if self.job:
            return self.function(*args, job=context, **kwargs)
        return self.function(*args, **kwargs)

    def schema(self) -> dict[str, Any]:
        """As deployed NorFab's ``list_tasks`` describes a task; ``idempotent`` is ours."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": _arguments(self.function) if self.input is None else model_schema(self.input),
            "outputSchema": {"type": "object"},
            "fastapi": {},
            "mcp": {},
            "agent": {},
            "idempotent": self.idempotent,
        }


def make(function: Function, **options: Unpack[TaskOptions]) -> Task:
    """The task that ``function`` is.

    Raises:
        ConfigError: not callable, a name that a frame cannot carry, or an input that is no model.
    """
    if not callable(function):
        raise ConfigError(f"a task is a function, saw {type(function).__name__}")
    name = options.get("name") or str(getattr(function, "__name__", ""))
    if not name.isprintable() or not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        raise ConfigError(f"task {name[:64]!r}: expected a printable name of 1 to {NAME_BYTES_MAX} bytes")
    model = options.get("input")
    if model is not None and not is_model(model):
        raise ConfigError(
            f"task {name!r}: input {model!r}, expected a Struct, a dataclass or a pydantic model"
        )
    parameters = list(inspect.signature(function).parameters.values())
    first = parameters[0] if parameters else None
    job = ""
    if first is not None and first.name == JOB and first.kind is not first.KEYWORD_ONLY:
        job = "first"
    elif any(each.name == JOB and each.kind is not each.POSITIONAL_ONLY for each in parameters):
        job = "keyword"
    asynchronous = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
        getattr(function, "__call__", None)  # noqa: B004 (its kind is asked, not whether it is there)
    )
    said = options.get("description")
    described = text(said if said is not None else inspect.getdoc(function) or "")
    nf_text = tuple(options.get("nf_text", ()))
    return Task(name, function, options.get("idempotent", True), asynchronous, job, described, nf_text, model)


# -- schemas --------------------------------------------------------------------------------------


def _arguments(function: Function) -> dict[str, Any]:
    """The JSON schema of the function's arguments, as far as its annotations say."""
    hints = _hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == JOB or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        properties[parameter.name] = about = {
            "title": parameter.name,
            **_type(hints.get(parameter.name, Any)),
        }
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif parameter.default is None or isinstance(parameter.default, (bool, int, float, str)):
            about["default"] = (
                text(parameter.default) if isinstance(parameter.default, str) else parameter.default
            )
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": required} if required else schema


def _hints(function: Function) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # an annotation may be anything
        return {}


def _type(hint: Any) -> dict[str, Any]:
    try:
        found = msgspec.json.schema(hint)
    except Exception:  # a type that JSON cannot carry is not described
        return {}
    return {} if "$defs" in found else found
