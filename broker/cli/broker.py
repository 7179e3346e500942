"""``headgate broker``: run one rank. This process becomes the broker, so nothing is loaded that it does not need."""

from __future__ import annotations

import argparse
import gc

import msgspec

from broker.cli import overrides, wings

_EPILOG = """\
examples:
  headgate broker                                         a tree of one with the default settings
  headgate broker --config /etc/headgate/broker.toml      this machine's rank, found by its host name
  headgate broker --config broker.toml --rank 3 --set broker.log_level=debug

SIGTERM and SIGINT drain and leave; a second one leaves at once.
exit codes: 0 told to leave, 1 failed, 2 wrong options, 78 wrong configuration
"""


def arguments() -> argparse.ArgumentParser:
    """The options of the verb."""
    parser = argparse.ArgumentParser(
        prog="headgate broker",
        description="Run one broker until it is told to leave.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "-c", "--config", metavar="FILE", help="TOML; every setting stands in deploy/broker.toml"
    )
    parser.add_argument("-r", "--rank", type=int, metavar="N", help="which rank (default: this machine's)")
    parser.add_argument(
        "-s",
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        help="a setting that goes before the file's; may be given again",
    )
    parser.add_argument(
        "--journal",
        metavar="DIR",
        help="record what passes, into this folder, with [journal] of the settings",
    )
    return parser


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    gc.disable()  # loading makes no garbage, and looking for it is a tenth of the start; the broker turns it on again
    given = arguments().parse_args(argv)
    settings = overrides.read(given.config, given.set).at_rank(given.rank)
    if given.journal:
        settings = msgspec.structs.replace(settings, journal=settings.journal.at(given.journal))

    from broker.node import bootstrap

    if not wings.wanted(settings):
        return bootstrap.run(settings)
    return bootstrap.run(settings, beside=wings.beside)
