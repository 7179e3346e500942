"""Input models of tasks: msgspec Structs, dataclasses, and pydantic's models, dataclasses and root models.

What a model takes, and under which names, is its own library's to say; the function gets its fields as arguments of
their names. One thing is added: a name that nothing reads is refused, so that a misspelt one is not lost. Where the
model itself sees all that came before its fields do (validators of the kind *before* or *wrap*), or says what is to be
done with further names (``extra``), that is left to the model. pydantic is used where a model is one of its own, and
not needed otherwise.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import msgspec

from broker.errors import HeadgateError
from broker.safe_text import about, text

JOB: Final = "job"
"""A parameter of this name gets the JobContext."""
ROOT: Final = "root"
"""What a root model is given as, where it is no object by itself."""
Parameters = Mapping[str, inspect.Parameter]


class InvalidInput(HeadgateError):
    """The input of a job is none that its task takes; the text names each field and what was expected."""

    fault = "caller"


def is_model(model: Any) -> bool:
    """Whether ``model`` can be the input of a task."""
    if not isinstance(model, type):
        return False
    return issubclass(model, msgspec.Struct) or dataclasses.is_dataclass(model) or _is_pydantic(model)


def checked(
    function: Callable[..., Any], model: type, args: list[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """The arguments for ``function``, each a field that ``model`` accepts, converted as it says.

    A field that was not given has the model's default where the function names it, else it is left out.

    Raises:
        InvalidInput: it does not accept them.
    """
    parameters = inspect.signature(function).parameters
    given = _named(parameters, args, kwargs)
    if getattr(model, "__pydantic_root_model__", False):
        return _root(model, parameters, given)
    rest = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    fields = _fields(model)
    known = {name for names in fields.values() for name in names} | fields.keys() | _tag(model)
    unknown = [name for name in given if name not in known]
    if unknown and not rest and not _sees_all(model):
        expected = ", ".join(next(iter(names), name) for name, names in fields.items()) or "none"
        raise InvalidInput(f"{', '.join(map(text, unknown))}: no such field, expected {expected}")
    valid = _validated(model, given)
    said = getattr(valid, "model_fields_set", None)
    if said is None:
        said = {
            name for name, names in fields.items() if name in given or any(each in given for each in names)
        }
    passed = _further(model, valid, given, unknown) if rest else {}
    passed |= {name: getattr(valid, name) for name in fields if name in said or name in parameters}
    return passed


def schema(model: Any) -> dict[str, Any]:
    """The JSON schema of what may be sent, its properties at the top as pydantic writes them.

    Of a model with a type that JSON schema has not there are the names.
    """
    try:
        return _schema(model)
    except Exception:  # each library has errors of its own for that, and a model may be what it likes
        names = (next(iter(spelt), name) for name, spelt in _fields(model).items())
        return {"type": "object", "properties": {name: {"title": name} for name in names}}


def _schema(model: Any) -> dict[str, Any]:
    if _is_pydantic(model):
        found: dict[str, Any] = _adapter(model).json_schema()
        if not getattr(model, "__pydantic_root_model__", False) or found.get("type") == "object":
            return found
        parts = {"$defs": found.pop("$defs")} if "$defs" in found else {}
        return {"type": "object", "properties": {ROOT: found}, "required": [ROOT], **parts}
    (top,), parts = msgspec.json.schema_components([model])
    whole: dict[str, Any] = parts.pop(top["$ref"].rpartition("/")[2])
    return {**whole, "$defs": parts} if parts else whole


def _named(parameters: Parameters, args: list[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    names = list(_positional(parameters))
    if len(args) > len(names):
        raise InvalidInput(f"{len(args)} positional arguments, expected at most {len(names)}")
    twice = [name for name in names[: len(args)] if name in kwargs]
    if twice:
        raise InvalidInput(f"{', '.join(twice)}: given twice, expected once")
    return {**dict(zip(names, args, strict=False)), **kwargs}


def _positional(parameters: Parameters) -> Iterator[str]:
    for each in parameters.values():
        if each.name != JOB and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD):
            yield each.name


# -- what a library says of its models --------------------------------------------------------------


def _is_pydantic(model: type) -> bool:
    return hasattr(model, "__pydantic_validator__")


@cache
def _adapter(model: type) -> Any:
    from pydantic import TypeAdapter  # whose model it is

    return TypeAdapter(model)


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


def _tag(model: Any) -> set[str]:
    """What a tagged Struct is told from others by."""
    said = getattr(getattr(model, "__struct_config__", None), "tag_field", None)
    return {said} if said else set()


def _sees_all(model: Any) -> bool:
    """Whether the model itself decides about names that none of its fields reads."""
    if not _is_pydantic(model):
        return False
    config = getattr(model, "model_config", None) or getattr(model, "__pydantic_config__", None) or {}
    return "extra" in config or _looks_before(model)


def _looks_before(model: Any) -> bool:
    decorators = getattr(model, "__pydantic_decorators__", None)
    validators = getattr(decorators, "model_validators", {}).values()
    return any(each.info.mode in ("before", "wrap") for each in validators)


def _further(model: Any, valid: Any, given: dict[str, Any], unknown: list[str]) -> dict[str, Any]:
    """What a function that takes everything gets beside the fields: what the model kept, or has not looked at."""
    kept = getattr(valid, "model_extra", None)
    if kept is not None:
        return dict(kept)
    return {} if _is_pydantic(model) and _looks_before(model) else {name: given[name] for name in unknown}


def _root(model: Any, parameters: Parameters, given: dict[str, Any]) -> dict[str, Any]:
    """A root model has one value, without a name of its own: the sole argument, or all of them as an object."""
    names = [ROOT, *_positional(parameters)]
    if len(given) == 1 and next(iter(given)) in names:
        try:
            root = _validated(model, next(iter(given.values()))).root
        except InvalidInput as error:  # an object may have a member of this name
            try:
                root = _validated(model, given).root
            except InvalidInput:
                raise error from None
    else:
        root = _validated(model, given).root
    rest = any(each.kind is each.VAR_KEYWORD for each in parameters.values())
    if ROOT not in parameters and isinstance(root, dict) and (rest or root.keys() <= parameters.keys()):
        return root
    return {ROOT if ROOT in parameters else next(_positional(parameters), ROOT): root}


# -- asking it --------------------------------------------------------------------------------------


def _validated(model: Any, given: Any) -> Any:
    if not _is_pydantic(model):
        return _converted(model, given)
    try:
        return _asked(model, given)
    except Exception as error:
        found = _told(error)
        if found is None:  # a validator of the model that fails in a way of its own
            found = f"{_field_of(model, given)}{about(error)}"
        raise InvalidInput(found) from error


def _converted(model: Any, given: dict[str, Any]) -> Any:
    names = {name: spelt for name, (spelt, *_) in _fields(model).items()}
    try:
        return msgspec.convert({names.get(name, name): value for name, value in given.items()}, model)
    except msgspec.ValidationError as error:
        raise InvalidInput(text(error).replace("`$.", "`")) from error
    except Exception as error:  # of its __post_init__
        raise InvalidInput(about(error)) from error


def _asked(model: Any, given: Any) -> Any:
    """``given`` as ``model`` takes it; a field is found under the name of its attribute, too."""
    adapter = _adapter(model)
    if "by_name" in inspect.signature(adapter.validate_python).parameters:
        return adapter.validate_python(given, by_name=True)
    if isinstance(given, dict):  # pydantic before 2.11
        names = {name: next(iter(spelt), name) for name, spelt in _fields(model).items()}
        given = {names.get(name, name): value for name, value in given.items()}
    return adapter.validate_python(given)


def _told(error: Exception) -> str | None:
    """What pydantic says of each field; None: it is none of its errors."""
    errors = getattr(error, "errors", None)
    if not callable(errors):
        return text(error) if type(error) is ValueError else None
    places = ((".".join(map(str, found["loc"])), found["msg"]) for found in errors())
    return "; ".join(text(f"{place}: {said}" if place else said) for place, said in places)


def _field_of(model: Any, given: Any) -> str:
    """The name of the one argument that fails so when it comes alone, as it is written in front of a text."""
    found = []
    for name, value in given.items() if isinstance(given, dict) else ():
        try:
            _asked(model, {name: value})
        except Exception as error:
            if _told(error) is None:
                found.append(name)
    return f"{text(found[0])}: " if len(found) == 1 else ""
