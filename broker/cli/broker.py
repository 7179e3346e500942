"""``headgate broker``: run one rank. This process becomes the broker, so nothing is loaded that it does not need."""

from __future__ import annotations

import argparse
import gc
import signal
from functools import partial

import msgspec

from broker.cli import wings
from broker.cli.parsing import Parser
from broker.settings import Settings, read

_EPILOG = """\
examples:
  headgate broker                                         a tree of one with the default settings
  headgate broker --config /etc/headgate/broker.toml      this machine's rank, found by its host name
  headgate broker --config broker.toml --rank 3 --set broker.log_level=debug

SIGTERM and SIGINT drain and leave; a second one leaves at once. SIGHUP reads the settings again: keys of [[hosts]] and
[[clients]], the certificate, [access] and broker.log_level may have changed; links that are still allowed stay.
Exit codes: 0 told to leave, 1 failed, 2 wrong options, 75 what it needs is not there yet, or in use,
78 wrong configuration
"""


def arguments() -> Parser:
    """The options of the verb."""
    parser = Parser(
        "broker",
        "Run one broker until it is told to leave.",
        _EPILOG,
    )
    parser.add_argument(
        "-c", "--config", metavar="FILE", help="TOML; `headgate config show` has every setting."
    )
    parser.add_argument("-r", "--rank", type=int, metavar="N", help="Which rank (default: this machine's).")
    parser.add_set("SECTION.KEY=VALUE", "A setting that goes before the file's")
    parser.add_argument(
        "--journal",
        metavar="DIR",
        help="Record what passes, into this folder, with [journal] of the settings.",
    )
    return parser


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    gc.disable()  # loading makes no garbage, and looking for it is a tenth of the start; the broker turns it on again
    given = arguments().parse_args(argv)
    if given.config is not None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is somebody to read the settings again
    settings = settings_of(given)

    from broker.node import bootstrap

    beside = wings.Beside if wings.wings_of(settings) else None
    reread = partial(settings_of, given) if given.config is not None else None
    return bootstrap.run(settings, beside=beside, reread=reread)


def settings_of(given: argparse.Namespace) -> Settings:
    """What the options and their file say now.

    Raises:
        ConfigError: the file cannot be read, or one of them is wrong.
    """
    settings = read(given.config, given.set).at_rank(given.rank)
    if given.journal:
        settings = msgspec.structs.replace(settings, journal=settings.journal.at(given.journal))
    return settings
