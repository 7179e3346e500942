"""What the verbs that become a process of the wing have in common: options, settings, signals."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import msgspec

from broker import supervision
from broker.cli.parsing import Parser
from broker.errors import ConfigError
from broker.secret import convert_secret
from broker.settings import JournalSection, OsloSection, Settings, apply, check, load_journal, load_oslo


def common(parser: Parser) -> None:
    """Options of every verb that becomes a process of the wing."""
    add = parser.add_argument
    add("-c", "--config", metavar="FILE", help="TOML with a section [oslo]; options go before it.")
    parser.add_set("oslo.KEY=VALUE", "A setting that goes before all others")
    add("-q", "--quiet", action="store_true", help="Say nothing at the start, log warnings only.")


def section_from(given: argparse.Namespace, named: Mapping[str, Any]) -> OsloSection:
    """The settings of the file with ``named`` on top, then ``--set``.

    Raises:
        ConfigError: they cannot be, or contradict each other.
    """
    for name, value in named.items():
        try:
            msgspec.convert({name: value}, OsloSection, dec_hook=convert_secret)
        except msgspec.ValidationError as error:
            option = f"--{name.replace('_', '-')} {value!r:.64}"
            raise ConfigError(f"{option}: {str(error).partition(' - at')[0]}") from None
    section = load_oslo(given.config) if given.config is not None else OsloSection()
    settings = Settings(oslo=msgspec.structs.replace(section, **named))
    if not given.set:
        return check(settings).oslo or section
    assignments = [each if each.startswith("oslo.") else f"oslo.{each}" for each in given.set]
    return apply(settings, assignments).oslo or section


def journal_from(given: argparse.Namespace) -> JournalSection:
    """What is recorded: ``[journal]`` of the file, turned on by ``--journal``.

    Raises:
        ConfigError: the file is wrong.
    """
    section = load_journal(given.config) if given.config is not None else JournalSection()
    return section.at(given.journal) if given.journal is not None else section


class Leave(asyncio.Event):
    """Set when this process is to end.

    Attributes:
        number: by which signal; SIGTERM as long as none came.
    """

    number = signal.SIGTERM


@contextlib.contextmanager
def signals(hangup: Callable[[], None] | None = None) -> Iterator[Leave]:
    """An event that SIGTERM and SIGINT set; a second one ends this process at once. SIGHUP calls ``hangup``; None
    leaves that signal alone.
    """
    loop = asyncio.get_running_loop()
    leave = Leave()

    def told(name: str) -> None:
        leave.number = signal.Signals[name]
        leave.set()

    with supervision.signals(loop, told, lambda: os._exit(128 + signal.Signals[names[-1]])) as names:
        if hangup is not None:
            loop.add_signal_handler(signal.SIGHUP, hangup)
        try:
            yield leave
        finally:
            if hangup is not None:
                signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what there was to be told leaves
