"""The functions a worker offers as tasks: how they are called, what input they take, how ``list_tasks`` shows them.

A task with an input model, a msgspec ``Struct``, a dataclass or a pydantic model, dataclass or root model, is entered
only with input that the model accepts. What a model takes, and under which names, is its own library's to say; the
function gets its fields as arguments of their names. One thing is added: a name that nothing reads is refused, so that
a misspelt one is not lost. Where the model itself sees all that came before its fields do (validators of the kind
*before* or *wrap*), or says what is to be done with further names (``extra``), that is left to the model. pydantic
(2.11 or newer) is used where a model is one of its own, and not needed otherwise.

Files that arguments name by ``nf://`` URLs are fetched before the task runs (NFP, "Broker File Sharing Service"):
``localise`` puts their paths in place of the URLs. There is one copy of a file, the newest that a job has asked for; it
is replaced as a whole.
"""

from __future__ import annotations

import asyncio
import dataclasses
import inspect
import os
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final, NamedTuple, TypedDict, TypeVar, Unpack

import msgspec

from broker.errors import ConfigError, HeadgateError
from broker.nfp.client.errors import FetchFailed
from broker.nfp.names import NAME_BYTES_MAX
from broker.nfp.urls import is_url
from broker.safe_text import about, kind, text

Function = Callable[..., Any] | Callable[..., Awaitable[Any]]
Parameters = Mapping[str, inspect.Parameter]
F = TypeVar("F", bound=Callable[..., Any])
_OPTIONS: Final = "_headgate_task"
JOB: Final = "job"
"""A parameter of this name gets the JobContext."""
ROOT: Final = "root"
"""What a root model is given as, where it is no object by itself."""
URLS_MAX: Final = 256
"""Different URLs in the arguments of one job."""
DEPTH_MAX: Final = 64
"""Lists and objects inside each other that are looked through."""
TEXT_MAX_BYTES: Final = 16 << 20
"""A file whose content becomes an argument."""

Fetch = Callable[[str], Awaitable[str | os.PathLike[str]]]
"""Brings a URL into the worker's folder, digest checked, and returns its path; raises when it cannot."""
Arguments = tuple[list[Any], dict[str, Any]]


class InvalidInput(HeadgateError):
    """The input of a job is none that its task takes; the text names each field and what was expected."""

    fault = "caller"


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
            "inputSchema": _arguments(self.function) if self.input is None else _schema(self.input),
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
    described = text(said if said is not None else inspect.getdoc(function) or "")
    nf_text = tuple(options.get("nf_text", ()))
    return Task(name, function, options.get("idempotent", True), asynchronous, job, described, nf_text, model)


# -- input models -----------------------------------------------------------------------------------


def _is_model(model: Any) -> bool:
    if not isinstance(model, type):
        return False
    return issubclass(model, msgspec.Struct) or dataclasses.is_dataclass(model) or _is_pydantic(model)


def _is_pydantic(model: type) -> bool:
    return hasattr(model, "__pydantic_validator__")


def _is_root(model: type) -> bool:
    return bool(getattr(model, "__pydantic_root_model__", False))


@cache
def _adapter(model: type) -> Any:
    from pydantic import TypeAdapter  # whose model it is

    return TypeAdapter(model)


def _checked(
    function: Callable[..., Any], model: type, args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments for ``function``, each a field that ``model`` accepts, converted as it says.

    A field that was not given has the model's default where the function names it, else it is left out.

    Raises:
        InvalidInput: it does not accept them.
    """
    parameters = inspect.signature(function).parameters
    rest = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    names = [
        each.name
        for each in parameters.values()
        if each.name != JOB and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if len(args) > len(names):
        raise InvalidInput(f"{len(args)} positional arguments, expected at most {len(names)}")
    if twice := [name for name in names[: len(args)] if name in kwargs]:
        raise InvalidInput(f"{', '.join(twice)}: given twice, expected once")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if _is_root(model):  # one value without a name of its own: the sole argument, or all of them as an object
        sole = len(given) == 1 and next(iter(given)) in (ROOT, *names)
        root = _validated(model, next(iter(given.values())) if sole else given).root
        if ROOT not in parameters and isinstance(root, dict) and (rest or root.keys() <= parameters.keys()):
            return root
        return {ROOT if ROOT in parameters or not names else names[0]: root}
    fields = _fields(model)
    tag = getattr(getattr(model, "__struct_config__", None), "tag_field", None)  # what a Struct is told by
    known = {tag, *fields, *(name for spelt in fields.values() for name in spelt)}
    unknown = [name for name in given if name not in known]
    if unknown and not rest and not _sees_all(model):
        expected = ", ".join(next(iter(spelt), name) for name, spelt in fields.items()) or "none"
        raise InvalidInput(f"{', '.join(map(text, unknown))}: no such field, expected {expected}")
    valid = _validated(model, given)
    said = getattr(valid, "model_fields_set", None)
    if said is None:
        said = {name for name, spelt in fields.items() if not given.keys().isdisjoint((name, *spelt))}
    passed: dict[str, Any] = {}
    if rest:  # what the model kept, or has not looked at
        kept = getattr(valid, "model_extra", None)
        looked = kept is not None or (_is_pydantic(model) and _looks_before(model))
        passed = dict(kept or ()) if looked else {name: given[name] for name in unknown}
    return passed | {name: getattr(valid, name) for name in fields if name in said or name in parameters}


def _fields(model: Any) -> dict[str, list[str]]:
    """The fields of ``model``: by the name of the attribute, what the input may call it, the announced name first."""
    if _is_pydantic(model):
        fields = getattr(model, "__pydantic_fields__", None) or getattr(model, "model_fields", {})
        return {name: _spellings(field) for name, field in fields.items()}
    if issubclass(model, msgspec.Struct):
        return {field.name: [field.encode_name] for field in msgspec.structs.fields(model)}
    return {field.name: [field.name] for field in dataclasses.fields(model)}


def _spellings(field: Any) -> list[str]:
    """What pydantic reads a field from: ``alias``, ``validation_alias``, each of its choices, the begin of a path."""
    alias = field.validation_alias or field.alias
    choices = getattr(alias, "choices", [alias])
    return [name for each in choices if isinstance(name := getattr(each, "path", [each])[0], str)]


def _sees_all(model: Any) -> bool:
    """Whether the model itself decides about names that none of its fields reads."""
    if not _is_pydantic(model):
        return False
    config = getattr(model, "model_config", None) or getattr(model, "__pydantic_config__", None) or {}
    return "extra" in config or _looks_before(model)


def _looks_before(model: Any) -> bool:
    validators = getattr(model.__pydantic_decorators__, "model_validators", {}).values()
    return any(each.info.mode in ("before", "wrap") for each in validators)


def _validated(model: Any, given: Any) -> Any:
    """``given`` as ``model`` takes it; a field is found under the name of its attribute, too."""
    try:
        return _converted(model, given)
    except Exception as error:
        said = _told(error)
        if said is None:  # code of the model fails in a way of its own
            blamed = (
                [name for name in given if _fails(model, {name: given[name]})]
                if isinstance(given, dict)
                else []
            )
            said = f"{text(blamed[0])}: {about(error)}" if len(blamed) == 1 else about(error)
        raise InvalidInput(said) from error


def _converted(model: Any, given: Any) -> Any:
    if _is_pydantic(model):
        return _adapter(model).validate_python(given, by_name=True)
    names = {name: spelt for name, (spelt, *_) in _fields(model).items()}
    return msgspec.convert({names.get(name, name): value for name, value in given.items()}, model)


def _told(error: Exception) -> str | None:
    """What a library says of each field; None: it is none of its errors."""
    if isinstance(error, msgspec.ValidationError):
        return text(error).replace("`$.", "`")
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return None
    places = ((".".join(map(str, found["loc"])), found["msg"]) for found in errors())
    return "; ".join(text(f"{place}: {said}" if place else said) for place, said in places)


def _fails(model: Any, given: dict[str, Any]) -> bool:
    try:
        _converted(model, given)
    except Exception as error:
        return _told(error) is None
    return False


# -- files that arguments name ----------------------------------------------------------------------


async def localise(arguments: Arguments, fetch: Fetch, *, as_text: Sequence[str] = ()) -> Arguments:
    """Arguments with each ``nf://`` URL replaced by the path of the fetched file.

    Args:
        arguments: (args, kwargs) of the job; left as they are.
        fetch: see ``Fetch``; asked once for each different URL, one after the other.
        as_text: names of keywords whose URLs are replaced by what the file says (UTF-8) instead.

    Returns: the very same object when it names no file.

    Raises:
        FetchFailed: a file could not be brought, or is no text or too long where text is wanted; more than
        ``URLS_MAX``, or nested deeper than ``DEPTH_MAX``.
    """
    args, kwargs = arguments
    urls = urls_in([args, kwargs])
    if not urls:
        return arguments
    paths = {url: await _fetched(url, fetch) for url in urls}
    texts = {
        url: await asyncio.to_thread(_read, url, paths[url])
        for url in urls_in([kwargs.get(name) for name in as_text])
    }
    return _replaced(args, paths.__getitem__), {
        name: _replaced(value, (texts if name in as_text else paths).__getitem__)
        for name, value in kwargs.items()
    }


def urls_in(value: Any) -> list[str]:
    """Every URL in ``value``, each once and in order.

    Raises:
        FetchFailed: see ``localise``.
    """
    found: dict[str, None] = {}
    _replaced(value, found.setdefault)
    if len(found) > URLS_MAX:
        raise FetchFailed(f"more than {URLS_MAX} files in the arguments of one job")
    return list(found)


def _replaced(value: Any, by: Callable[[str], Any], depth: int = 0) -> Any:
    """``value`` with ``by(url)`` for each URL in lists, tuples and values of objects."""
    if depth > DEPTH_MAX:
        raise FetchFailed(f"arguments nested deeper than {DEPTH_MAX}")
    if is_url(value):
        return by(value)
    if isinstance(value, dict):
        return dict(zip(value, _replaced(list(value.values()), by, depth), strict=True))
    if isinstance(value, list | tuple):
        return [_replaced(one, by, depth + 1) for one in value]
    return value


async def _fetched(url: str, fetch: Fetch) -> str:
    try:
        return os.fspath(await fetch(url))
    except Exception as error:
        said = text(error) or kind(error)
        if not said.startswith(url):
            said = f"fetching {url[:256]!r} failed: {said}"
        raise FetchFailed(said) from error


def _read(url: str, path: str) -> str:
    try:
        with open(path, "rb") as file:
            content = file.read(TEXT_MAX_BYTES + 1)
        if len(content) > TEXT_MAX_BYTES:
            said = f"{url[:256]!r} is longer than {TEXT_MAX_BYTES} bytes, too much for an argument"
            raise FetchFailed(said)
        return content.decode()
    except (OSError, UnicodeDecodeError) as error:
        raise FetchFailed(f"{url[:256]!r} cannot be read as text: {text(error)}") from error


# -- schemas --------------------------------------------------------------------------------------


def _schema(model: Any) -> dict[str, Any]:
    """The JSON schema of what may be sent, its properties at the top as pydantic writes them.

    Of a model with a type that JSON schema has not there are the names.
    """
    try:
        if not _is_pydantic(model):
            (top,), parts = msgspec.json.schema_components([model])
            whole: dict[str, Any] = parts.pop(top["$ref"].rpartition("/")[2])
            return {**whole, "$defs": parts} if parts else whole
        found: dict[str, Any] = _adapter(model).json_schema()
        if not _is_root(model) or found.get("type") == "object":
            return found
        parts = {"$defs": found.pop("$defs")} if "$defs" in found else {}
        return {"type": "object", "properties": {ROOT: found}, "required": [ROOT], **parts}
    except Exception:  # each library has errors of its own for that, and a model may be what it likes
        names = (next(iter(spelt), name) for name, spelt in _fields(model).items())
        return {"type": "object", "properties": {name: {"title": name} for name in names}}


def _arguments(function: Function) -> dict[str, Any]:
    """The JSON schema of the function's arguments, as far as its annotations say."""
    hints = _hints(function)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for each in inspect.signature(function).parameters.values():
        if each.name == JOB or each.kind in (each.VAR_POSITIONAL, each.VAR_KEYWORD):
            continue
        properties[each.name] = said = {"title": each.name, **_type(hints.get(each.name, Any))}
        if each.default is each.empty:
            required.append(each.name)
        elif isinstance(each.default, str):
            said["default"] = text(each.default)
        elif each.default is None or isinstance(each.default, (bool, int, float)):
            said["default"] = each.default
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
