"""``--set section.key=value``: settings from the command line, on top of a configuration file."""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from broker.errors import ConfigError
from broker.secret import convert_secret, masked_in, revealed
from broker.settings import NfpSection, OsloSection, Settings, check, load, loads

_TABLES = ("broker", "tree", "access", "limits", "journal", "nfp", "oslo")
"""Sections that hold single values; hosts, listeners, clients, keys and rules are lists and belong into a file."""
_FILES = {
    ("tree", "curve_cert"),
    ("journal", "directory"),
    *(("nfp", name) for name in ("base_dir", "key_secret", "inventory", "files")),
    *(("oslo", name) for name in ("ipc_dir", "curve_cert", "redis_password_file")),
}
"""Settings that are paths: on the command line they start from where it was typed."""


def read(config: str | None, assignments: Sequence[str]) -> Settings:
    """The settings of a file (None: the defaults) with each ``section.key=value`` applied, in order.

    Raises:
        ConfigError: the file or an assignment is wrong.
    """
    settings = load(config) if config is not None else Settings.defaults()
    return apply(settings, assignments) if assignments else settings


def apply(settings: Settings, assignments: Sequence[str]) -> Settings:
    """``settings`` with each ``section.key=value`` applied.

    Raises:
        ConfigError: an unknown key, a value of the wrong type, or one that contradicts another setting.
    """
    tables: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=revealed)
    for name, section_type in (("nfp", NfpSection), ("oslo", OsloSection)):
        if tables[name] is None and any(each.lstrip().startswith(f"{name}.") for each in assignments):
            tables[name] = msgspec.to_builtins(section_type(), enc_hook=revealed)
    for assignment in assignments:
        path, mark, text = assignment.partition("=")
        section, dot, key = path.strip().partition(".")
        if not mark or not dot:
            raise ConfigError(f"--set: saw {masked_in(assignment)!r}, expected section.key=value")
        shown = masked_in(assignment)
        _assign(tables, section, key, _value(text.strip()), shown)
        _typed(tables, shown, section, key)
    return check(msgspec.convert(tables, Settings, dec_hook=convert_secret))


def _assign(tables: dict[str, Any], section: str, key: str, value: Any, assignment: str) -> None:
    if section not in _TABLES:
        raise ConfigError(f"--set {assignment}: no section {section!r}, expected one of {', '.join(_TABLES)}")
    table = tables[section]
    if section == "broker" and key.startswith("attrs."):
        table["attrs"] = {**table["attrs"], key.removeprefix("attrs."): str(value)}
        return
    if key not in table:
        near = difflib.get_close_matches(key, table, 1)
        hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(table))}"
        raise ConfigError(f"--set {assignment}: no key {key!r} in [{section}]; {hint}")
    if (section, key) in _FILES and value:
        value = str(Path(str(value)).absolute())
    table[key] = value


def _value(text: str) -> Any:
    """A TOML value; what is none is a text, so that a shell needs no second quotes.

    >>> _value("2.5"), _value("true"), _value("kary:2"), _value('["a"]')
    (2.5, True, 'kary:2', ['a'])
    """
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _typed(tables: dict[str, Any], assignment: str, section: str, key: str) -> None:
    """Check names and types.

    Raises:
        ConfigError: in the words that a file with this one setting would get.
    """
    try:
        msgspec.convert(tables, Settings, dec_hook=convert_secret)
    except msgspec.ValidationError as error:
        said = str(error)
        try:
            loads(f"[{section}]\n{key} = {json.dumps(tables[section][key])}\n")
        except ConfigError as worded:
            said = str(worded).partition(f"{section}.{key}: ")[2] or said
        raise ConfigError(f"--set {assignment}: {said}") from error
