"""The functions a worker offers, and what ``list_tasks`` says of them."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Final, NamedTuple

import msgspec

from broker.errors import ConfigError
from broker.nfp.names import NAME_BYTES_MAX

Function = Callable[..., Any] | Callable[..., Awaitable[Any]]
JOB: Final = "job"
"""A parameter of this name gets the JobContext."""


class Task(NamedTuple):
    """One of them.

    Attributes:
        idempotent: it may be run a second time when nobody knows whether the first was completed (NFP,
            "Architecture", assumes so of every task). nf_text: names of arguments that take what a file says, where
            an ``nf://`` URL is given, instead of the file's path.
    """

    name: str
    function: Function
    idempotent: bool
    asynchronous: bool
    job: str
    """How it takes its JobContext: "first", "keyword" or ""."""
    description: str
    nf_text: tuple[str, ...] = ()

    def call(self, context: object, args: list[Any], kwargs: dict[str, Any]) -> Any:
        """What the function returns: the result, or an awaitable of it."""
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
            "inputSchema": _input(self.function),
            "outputSchema": {"type": "object"},
            "fastapi": {},
            "mcp": {},
            "agent": {},
            "idempotent": self.idempotent,
        }


def make(
    function: Function,
    name: str | None,
    *,
    idempotent: bool,
    nf_text: tuple[str, ...],
    description: str | None,
) -> Task:
    """The task that ``function`` is.

    Raises:
        ConfigError: not callable, or a name that a frame cannot carry.
    """
    if not callable(function):
        raise ConfigError(f"a task is a function, saw {type(function).__name__}")
    name = name or str(getattr(function, "__name__", ""))
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX or not name.isprintable():
        raise ConfigError(f"task {name[:64]!r}: expected a printable name of 1 to {NAME_BYTES_MAX} bytes")
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
    text = description if description is not None else inspect.getdoc(function) or ""
    return Task(name, function, idempotent, asynchronous, job, text, tuple(nf_text))


class Tasks:
    """A worker's tasks by name."""

    def __init__(self) -> None:
        self._tasks: dict[str, Task] = {}

    def __iter__(self) -> Iterator[Task]:
        return iter(self._tasks.values())

    def __len__(self) -> int:
        return len(self._tasks)

    def get(self, name: str) -> Task | None:
        """The task ``name``; None when there is none."""
        return self._tasks.get(name)

    def add(self, task: Task, *, replace: bool = False) -> None:
        """Offer ``task``.

        Raises:
            ConfigError: there is one of its name, and not ``replace``.
        """
        if task.name in self._tasks and not replace:
            raise ConfigError(f"task {task.name!r} is there twice")
        self._tasks[task.name] = task

    @property
    def names(self) -> list[str]:
        """Sorted."""
        return sorted(self._tasks)


# -- schemas --------------------------------------------------------------------------------------


def _input(function: Function) -> dict[str, Any]:
    """The JSON schema of the function's arguments, as far as its annotations say."""
    hints = _hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name == JOB or parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        properties[parameter.name] = about = {"title": parameter.name, **_type(hints.get(parameter.name))}
        if parameter.default is parameter.empty:
            required.append(parameter.name)
        elif _plain(parameter.default):
            about["default"] = parameter.default
    schema: dict[str, Any] = {"type": "object", "properties": properties}
    return {**schema, "required": required} if required else schema


def _hints(function: Function) -> dict[str, Any]:
    try:
        return typing.get_type_hints(function)
    except Exception:  # an annotation may be anything
        return {}


def _type(hint: Any) -> dict[str, Any]:
    if hint is None or hint is Any or isinstance(hint, types.FunctionType):
        return {}
    try:
        found = msgspec.json.schema(hint)
    except Exception:  # a type that JSON cannot carry is not described
        return {}
    return {} if "$defs" in found else found


def _plain(value: Any) -> bool:
    return value is None or isinstance(value, (bool, int, float, str))
