"""From a TOML file to `Settings`, or to one `ConfigError` that lists every problem, a line each:

    FILE:LINE: section.key: what was seen, what was expected

Problems of one stage are reported together: the syntax, then names and types, then the rules between fields.
"""

from __future__ import annotations

import contextlib
import os
import re
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec
from msgspec import Struct, structs

from broker.errors import ConfigError
from broker.secret import convert_secret, masked_in, revealed
from broker.settings.journal import JournalSection
from broker.settings.lines import KeyPath, key_lines
from broker.settings.nfp import NfpSection
from broker.settings.oslo import OsloSection
from broker.settings.rules import Problem, problems
from broker.settings.schema import Settings
from broker.settings.shape import shape_problems, table_struct
from broker.settings.transport_options import rooted_options

S = TypeVar("S", bound=Struct)
W = TypeVar("W", NfpSection, OsloSection)
_NAMES: Mapping[type, str] = {NfpSection: "nfp", OsloSection: "oslo"}
Rules = Callable[[S], Iterable[Problem]]
"""What types cannot say: yields a `Problem` per fault of settings whose types are right."""


def load(path: str | os.PathLike[str]) -> Settings:
    """Read a configuration file. A relative `tree.curve_cert`, and the files and folders that `[nfp]`, `[oslo]` and
    `[journal]` name, are taken from the directory of the file.

    Raises:
        ConfigError: the file cannot be read, or says what it must not.
    """
    return _rooted(loads(text_of(path), str(Path(path))), str(Path(path).absolute().parent))


def read(path: str | os.PathLike[str] | None, assignments: Sequence[str]) -> Settings:
    """The settings of a file (None: the defaults) with each ``section.key=value`` of a command line on top.

    Raises:
        ConfigError: the file or an assignment is wrong.
    """
    settings = load(path) if path is not None else Settings.defaults()
    return apply(settings, assignments) if assignments else settings


def apply(settings: Settings, assignments: Sequence[str]) -> Settings:
    """``settings`` with each ``section.key=value`` applied: see ``assign``.

    Raises:
        ConfigError: an assignment is wrong, or contradicts another setting.
    """
    return check(assign(settings, assignments, _rooted))


def _rooted(settings: Settings, folder: str) -> Settings:
    replace = msgspec.structs.replace
    tree = with_paths(settings.tree, folder, "curve_cert")
    rooted: dict[str, Any] = {
        "tree": replace(tree, options=rooted_options(tree.options, settings.tree_uris(), folder)),
        "listen": tuple(
            replace(entry, options=rooted_options(entry.options, [entry.uri], folder))
            for entry in settings.listen
        ),
        "journal": with_paths(settings.journal, folder, "directory"),
    }
    if settings.nfp is not None:
        rooted["nfp"] = with_paths(settings.nfp, folder, "base_dir", "key_secret", "inventory", "files")
    if settings.oslo is not None:
        oslo = with_paths(settings.oslo, folder, "ipc_dir", "curve_cert", "redis_password_file")
        backlog = oslo.backlog and with_paths(oslo.backlog, folder, "path")
        rooted["oslo"] = replace(oslo, backlog=backlog)
    return replace(settings, **rooted)


def load_wing(kind: type[W], path: str | os.PathLike[str] | None) -> W:
    """The `[nfp]` or `[oslo]` of a configuration file, which need not say anything else.

    Args:
        kind: `NfpSection` or `OsloSection`.
        path: the file; None, or a file without the section: its defaults.

    Raises:
        ConfigError: as of ``load``.
    """
    settings = load(path) if path is not None else Settings()
    return getattr(settings, _NAMES[kind]) or kind()


def wing_settings(
    kind: type[W],
    path: str | os.PathLike[str] | None,
    options: Mapping[str, Any],
    assignments: Sequence[str],
) -> W:
    """The section of a wing that runs by itself: that of a file, with options on top, then each ``--set``.

    Args:
        kind: `NfpSection` or `OsloSection`.
        path: the file; None: the defaults.
        options: field -> what the option of its name says; only those that were given.
        assignments: ``KEY=VALUE``, with or without ``nfp.`` or ``oslo.`` in front.

    Raises:
        ConfigError: one of them cannot be, or all of them contradict each other.
    """
    for name, value in options.items():
        try:
            msgspec.convert({name: value}, kind, dec_hook=convert_secret)
        except msgspec.ValidationError as error:
            option = f"--{name.replace('_', '-')} {value!r:.64}"
            raise ConfigError(f"{option}: {str(error).partition(' - at')[0]}") from None
    section, prefix = load_wing(kind, path), f"{_NAMES[kind]}."
    replace = msgspec.structs.replace
    settings = replace(Settings(), **{_NAMES[kind]: replace(section, **options)})
    # checked once, behind all of them: an assignment may take back what an option contradicts
    settings = apply(settings, [prefix + each.removeprefix(prefix) for each in assignments])
    return getattr(settings, _NAMES[kind]) or section


def load_journal(path: str | os.PathLike[str] | None, directory: str | None = None) -> JournalSection:
    """The `[journal]` of a configuration file (None: the defaults), turned on by a ``directory`` (``--journal DIR``).

    Raises:
        ConfigError: as of ``load``.
    """
    section = load(path).journal if path is not None else JournalSection()
    return section if directory is None else section.at(directory)


def loads(text: str, name: str = "<text>") -> Settings:
    """Read a configuration from a text; `name` stands for the file in errors.

    Raises:
        ConfigError: the text is not TOML, or says what it must not.
    """
    return loads_as(Settings, problems, text, name)


def check(settings: Settings) -> Settings:
    """Apply the rules between fields to settings that a program has put together, and return them.

    Raises:
        ConfigError: a line for each rule that is broken, without a file and line number.
    """
    return check_by(problems, settings)


# ---------------------------------------------------------------- for configurations of other programs, too


def text_of(path: str | os.PathLike[str]) -> str:
    """The text of a configuration file.

    Raises:
        ConfigError: it cannot be read, or is not UTF-8.
    """
    file = Path(path)
    try:
        return file.read_text(encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}, expected a readable TOML file") from error
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{file}: saw a byte that is not UTF-8 at offset {error.start}, expected TOML"
        ) from error


def with_paths(section: S, folder: str, *names: str) -> S:
    """``section`` with the files and folders of these fields taken from ``folder`` where they are relative."""
    paths = {name: getattr(section, name) for name in names}
    # None is a default of its own, and "" turns something off (nfp.files)
    return msgspec.structs.replace(
        section, **{name: os.path.join(folder, path) for name, path in paths.items() if path}
    )


def loads_as(struct: type[S], rules: Rules[S], text: str, name: str) -> S:
    """Read a configuration that ``struct`` describes and whose fields obey ``rules``.

    Raises:
        ConfigError: the text is not TOML, or says what it must not; a line for each problem.
    """
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(_syntax_error(text, name, str(error))) from None
    if wrong := list(shape_problems(struct, tables, ())):
        _refuse(text, name, wrong)
    settings = msgspec.convert(tables, struct, dec_hook=convert_secret)
    if wrong := list(rules(settings)):
        _refuse(text, name, wrong)
    return settings


def check_by(rules: Rules[S], settings: S) -> S:
    """Hold settings that a program has put together against ``rules``, and return them.

    Raises:
        ConfigError: a line for each rule that is broken, without a file and line number.
    """
    if wrong := list(rules(settings)):
        raise ConfigError("\n".join(f"{_dotted(path)}: {said}" for path, said in wrong))
    return settings


# ---------------------------------------------------------------- messages


def _refuse(text: str, name: str, wrong: list[Problem]) -> NoReturn:
    lines = key_lines(text)
    placed = sorted((_line_of(path, lines), f"{_dotted(path)}: {said}") for path, said in wrong)
    raise ConfigError("\n".join(f"{name}:{line}: {said}" for line, said in placed))


def _line_of(path: KeyPath, lines: Mapping[KeyPath, int]) -> int:
    """Find the line of a key, or of the nearest table around it when the key itself is missing."""
    for end in range(len(path), 0, -1):
        if path[:end] in lines:
            return lines[path[:end]]
    return 1


def _dotted(path: KeyPath) -> str:
    """Write a path as people do: `hosts[2].address`."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def _syntax_error(text: str, name: str, said: str) -> str:
    place = re.search(r"\s*\(at (?:line (\d+), column \d+|end of document)\)$", said)
    if place is None:
        return f"{name}:1: not TOML: {said}"
    line = place[1] or str(len(text.splitlines()) or 1)
    return f"{name}:{line}: not TOML: {said[: place.start()]}"


def assign(settings: S, assignments: Sequence[str], rooted: Callable[[S, str], S]) -> S:
    """``settings`` with each ``section.key=value`` applied, in order; of a key that is a table itself, such as
    ``broker.attrs``, ``section.key.name=value`` sets one entry.

    A section holds single values: listeners, keys and rules are lists and belong into a file. A section that is not
    there, as ``nfp`` may be, begins with its defaults. Relative paths are ``rooted`` in the present folder.

    Raises:
        ConfigError: an unknown key or a value of the wrong type; what keys say together is for the caller to check.
    """
    kinds = {each.encode_name: table_struct(each.type) for each in structs.fields(settings)}
    sections = {name: kind for name, kind in kinds.items() if kind}
    tables: dict[str, Any] = msgspec.to_builtins(settings, enc_hook=revealed)
    for assignment in assignments:
        shown = masked_in(assignment)
        path, mark, text = assignment.partition("=")
        section, dot, key = path.strip().partition(".")
        if not mark or not dot:
            raise ConfigError(f"--set: saw {shown!r}, expected section.key=value")
        if section not in sections:
            raise ConfigError(f"--set {shown}: no section {section!r}, expected one of {', '.join(sections)}")
        if tables[section] is None:
            tables[section] = msgspec.to_builtins(sections[section](), enc_hook=revealed)
        try:
            given = _checked(sections[section], key, text.strip())
        except ValueError as error:
            raise ConfigError(f"--set {shown}: {error}") from None
        for name, value in given.items():
            before = tables[section][name] if "." in key else None
            tables[section][name] = {**before, **value} if before else value
    return rooted(msgspec.convert(tables, type(settings), dec_hook=convert_secret), os.getcwd())


def _checked(section: type[Struct], key: str, text: str) -> Mapping[str, Any]:
    """The table of a file that would say so. A TOML value; what is none, or none of its type but a text that fits, is a
    text, so that a shell needs no second quotes.

    Raises:
        ValueError: what is wrong with it.
    """
    name, dot, entry = key.partition(".")
    problems: list[str] = []
    for value in (*_values(text), text):
        given = {name: {entry: value} if dot else value}
        wrong = next((each.text for each in shape_problems(section, given, ()) if each.path[0] == name), None)
        if wrong is None:
            return given
        problems.append(wrong)
    raise ValueError(problems[0])


def _values(text: str) -> Iterator[Any]:
    with contextlib.suppress(tomllib.TOMLDecodeError):
        yield tomllib.loads(f"value = {text}")["value"]
