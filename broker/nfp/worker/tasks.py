"""The functions a worker offers as tasks: how they are called, what input they take, how ``list_tasks`` shows them.

A task with an input model, a msgspec ``Struct``, a dataclass or a pydantic model, is entered only with input that the
model accepts; the function gets the model's fields as arguments of these names. pydantic is used where a model is one
of its own, and not needed otherwise.
"""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypedDict, TypeVar, Unpack

import msgspec

from broker.errors import ConfigError, HeadgateError
from broker.nfp.names import NAME_BYTES_MAX

Function = Callable[..., Any] | Callable[..., Awaitable[Any]]
F = TypeVar("F", bound=Callable[..., Any])
JOB: Final = "job"
"""A parameter of this name gets the JobContext."""
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


class InvalidInput(HeadgateError):
    """The input of a job is none that its task takes; the text names each field and what was expected."""

    fault = "caller"


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
            args, kwargs = [], _checked(self.function, self.input, args, kwargs)
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
            "inputSchema": _arguments(self.function) if self.input is None else _model_schema(self.input),
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
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX or not name.isprintable():
        raise ConfigError(f"task {name[:64]!r}: expected a printable name of 1 to {NAME_BYTES_MAX} bytes")
    model = options.get("input")
    if model is not None and not _is_model(model):
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
    text = said if said is not None else inspect.getdoc(function) or ""
    nf_text = tuple(options.get("nf_text", ()))
    return Task(name, function, options.get("idempotent", True), asynchronous, job, text, nf_text, model)


# -- input models ---------------------------------------------------------------------------------


def _is_model(model: Any) -> bool:
    if not isinstance(model, type):
        return False
    return issubclass(model, msgspec.Struct) or dataclasses.is_dataclass(model) or _is_pydantic(model)


def _is_pydantic(model: type) -> bool:
    return hasattr(model, "model_validate")


def _checked(function: Function, model: type, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments for ``function``, each a field that ``model`` accepts, converted as it says.

    A field that was not given has the model's default where the function names it, else it is left out.
    """
    parameters = inspect.signature(function).parameters
    given = _named(parameters, args, kwargs)
    rest = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    fields = _fields(model)
    unknown = [name for name in given if name not in fields and name not in fields.values()]
    if unknown and not rest:
        raise InvalidInput(f"{', '.join(unknown)}: no such field, expected {', '.join(fields) or 'none'}")
    valid = _validated(model, {fields.get(name, name): value for name, value in given.items()})
    passed = {name: given[name] for name in unknown}
    for name, alias in fields.items():
        if name in given or alias in given or name in parameters:
            passed[name] = getattr(valid, name)
    return passed


def _named(
    parameters: Mapping[str, inspect.Parameter], args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    names = [
        each.name
        for each in parameters.values()
        if each.name != JOB and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if len(args) > len(names):
        raise InvalidInput(f"{len(args)} positional arguments, expected at most {len(names)}")
    twice = [name for name in names[: len(args)] if name in kwargs]
    if twice:
        raise InvalidInput(f"{', '.join(twice)}: given twice, expected once")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _fields(model: Any) -> dict[str, str]:
    """The fields of ``model``: by the name of the attribute, what the input calls it."""
    if _is_pydantic(model):
        return {name: field.alias or name for name, field in model.model_fields.items()}
    if issubclass(model, msgspec.Struct):
        return {field.name: field.encode_name for field in msgspec.structs.fields(model)}
    return {field.name: field.name for field in dataclasses.fields(model)}


def _validated(model: Any, given: dict[str, Any]) -> Any:
    if not _is_pydantic(model):
        try:
            return msgspec.convert(given, model)
        except msgspec.ValidationError as error:
            raise InvalidInput(str(error).replace("`$.", "`")) from error
    try:
        return model.model_validate(given)
    except ValueError as error:
        errors = getattr(error, "errors", None)
        if errors is None:
            raise InvalidInput(str(error)) from error
        each = (f"{'.'.join(map(str, found['loc']))}: {found['msg']}" for found in errors())
        raise InvalidInput("; ".join(each)) from error


# -- schemas --------------------------------------------------------------------------------------


def _model_schema(model: Any) -> dict[str, Any]:
    """The JSON schema of ``model``, its properties at the top as pydantic writes them."""
    if _is_pydantic(model):
        found: dict[str, Any] = model.model_json_schema()
        return found
    (top,), parts = msgspec.json.schema_components([model])
    schema: dict[str, Any] = parts.pop(top["$ref"].rpartition("/")[2])
    return {**schema, "$defs": parts} if parts else schema


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
            about["default"] = parameter.default
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
