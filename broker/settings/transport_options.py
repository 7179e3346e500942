"""The `options` tables: settings of one transport, of the type that it declares (`Capabilities.options`)."""

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, get_args

import msgspec
from msgspec import Struct

from broker.errors import ConfigError
from broker.schemes import Capabilities, FilePath, capabilities_of
from broker.settings.lines import KeyPath
from broker.settings.shape import shape_problems
from broker.settings.values import Problem


def typed(table: Mapping[str, Any], capabilities: Capabilities, *, strict: bool = True) -> Any:
    """``table`` as the struct of its transport, numbers as texts too unless ``strict``; None where it takes no options.

    Raises:
        ConfigError: it is not of that type.
    """
    struct = capabilities.options
    if struct is None:
        return None
    try:
        return msgspec.convert(dict(table), struct, strict=strict)
    except msgspec.ValidationError as error:
        raise ConfigError(f"options: {error}") from error


def from_words(text: str, uri: str) -> Any:
    """``KEY=VALUE KEY=VALUE ...``, as an environment variable holds it, as the struct of the transport of ``uri``.

    Raises:
        ConfigError: a word is no such pair, or it is not what the transport takes.
    """
    table = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise ConfigError(f"options: saw {text!r}: {error}") from error
    for word in words:
        name, mark, value = word.partition("=")
        if not mark:
            raise ConfigError(f"options: saw {word!r}, expected KEY=VALUE")
        table[name] = value
    return typed(table, capabilities_of(uri), strict=False)


def option_problems(path: KeyPath, table: Mapping[str, Any], capabilities: Capabilities) -> Iterator[Problem]:
    """Yield what is wrong with the options at ``path``."""
    struct = capabilities.options
    if struct is None:
        if table:
            yield Problem(path, "saw options, expected none: this transport takes none")
    elif issubclass(struct, Struct):
        wrong = list(shape_problems(struct, table, path))
        yield from wrong
        if not wrong:
            try:
                typed(table, capabilities)  # what its own __post_init__ says
            except ConfigError as error:
                yield Problem(path, str(error).removeprefix("options: "))


def rooted_options(table: Mapping[str, Any], uris: Iterable[str], folder: str) -> dict[str, Any]:
    """``table`` with the files that it names taken from ``folder`` where they are relative."""
    found = dict(table)
    for uri in uris if table else ():
        try:
            struct = capabilities_of(uri).options
        except ConfigError:  # whoever checks the settings says so
            continue
        for field in msgspec.structs.fields(struct) if struct is not None else ():
            value = found.get(field.encode_name)
            if isinstance(value, str) and (FilePath is field.type or FilePath in get_args(field.type)):
                found[field.encode_name] = os.path.join(folder, value)
    return found
