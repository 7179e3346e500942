"""What the verbs that become a process of the wing have in common: options, signals."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Callable, Iterator

from broker import supervision
from broker.cli.parsing import Parser


def common(parser: Parser) -> None:
    """Options of every verb that becomes a process of the wing."""
    add = parser.add_argument
    add("-c", "--config", metavar="FILE", help="TOML with a section [oslo]; options go before it.")
    parser.add_set("oslo.KEY=VALUE", "A setting that goes before all others")
    add("-q", "--quiet", action="store_true", help="Say nothing at the start, log warnings only.")


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

    names = supervision.on_signals(loop, told, lambda: os._exit(128 + signal.Signals[names[-1]]))
    if hangup is not None:
        loop.add_signal_handler(signal.SIGHUP, hangup)
    try:
        yield leave
    finally:
        if hangup is not None:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # what there was to be told leaves
