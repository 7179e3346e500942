"""``headgate health``: whether one process lives, or is ready, for probes of containers and people in a hurry."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
from typing import Final

from broker.cli import address, probing
from broker.cli.exits import UsageError
from broker.cli.parsing import Parser
from broker.cli.probing import Question, Verdict
from broker.errors import print_error

TIMEOUT_S: Final = 2.0

_EPILOG: Final = """\
Examples:
  headgate health                                      has the broker of this machine joined its tree?
  headgate health --live --uri local:///run/headgate/local-0
  headgate health --url http://127.0.0.1:8280          a gateway, by its /readyz
  headgate health --url unix:///run/headgate/metrics --json
  headgate health --nfp nfp.toml                       a broker of NFP, found by its configuration
  headgate health --oslo                               the oslo proxy of this node

Live: it answers, whatever its peers do. Ready: a broker's state is run, a gateway has its broker; a broker of NFP and
the rooms of an oslo proxy answer, which is the same for both questions.
Exit codes: 0 healthy, 1 not (stderr says why), 2 wrong options, 3 nobody is there, 78 a key or file is wrong;
over ZeroMQ (tcp:, ipc:, --nfp) a place where nobody is gives 1: it is tried until the time is over
"""


def arguments() -> Parser:
    """The options of the verb."""
    parser = Parser(
        "health",
        "Ask one process whether it is well.",
        _EPILOG,
    )
    question = parser.add_mutually_exclusive_group()
    question.add_argument("--live", action="store_true", help="Whether it answers at all.")
    question.add_argument(
        "--ready", action="store_true", help="Whether it has joined what it belongs to (default)."
    )
    who = parser.add_mutually_exclusive_group()
    who.add_argument(
        "-u",
        "--uri",
        metavar="URI",
        help="A broker (default: $HEADGATE_URI, $FLUX_URI, or the local socket).",
    )
    who.add_argument(
        "--url",
        metavar="URL",
        help="A gateway, or a broker's metrics_listen: http://HOST:PORT, unix:///PATH.",
    )
    who.add_argument(
        "--nfp", nargs="?", const="", metavar="FILE", help="A broker of NFP, with [nfp] of FILE or defaults."
    )
    who.add_argument(
        "--oslo", nargs="?", const="", metavar="FILE", help="An oslo proxy, with [oslo] of FILE or defaults."
    )
    parser.add_argument("--json", action="store_true", help="Print the verdict as one JSON object.")
    parser.add_argument(
        "--timeout",
        type=float,
        default=TIMEOUT_S,
        metavar="SECONDS",
        help=f"Patience (default {TIMEOUT_S:g}).",
    )
    return parser


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    given = arguments().parse_args(argv)
    if not 0 < given.timeout <= 3600:
        raise UsageError(f"--timeout {given.timeout:g}: expected more than 0, at most 3600")
    logging.getLogger("headgate").addHandler(logging.NullHandler())  # what it would say is in the verdict
    question: Question = "live" if given.live else "ready"
    verdict = _ask(given, question)
    _tell(verdict, question, as_json=given.json)
    return verdict.code


def _ask(given: argparse.Namespace, question: Question) -> Verdict:
    if given.url is not None:
        return probing.ask_url(given.url, question, given.timeout)
    if given.nfp is not None:
        from broker.settings import NfpSection, load_nfp

        section = load_nfp(given.nfp) if given.nfp else NfpSection()
        return asyncio.run(probing.ask_nfp(section, question, given.timeout))
    if given.oslo is not None:
        return probing.ask_oslo(_ipc_dir(given.oslo), given.timeout)
    return asyncio.run(probing.ask_broker(address.choose(given.uri), question, given.timeout))


def _ipc_dir(file: str) -> str:
    """The folder of a node's sockets, by the settings in ``file``."""
    from broker.oslo.node import client_ipc_dir

    if not file:
        return client_ipc_dir()
    from broker.settings import load_oslo

    folder = load_oslo(file).ipc_dir
    return os.path.abspath(folder) if folder else client_ipc_dir()


def _tell(verdict: Verdict, question: Question, *, as_json: bool) -> None:
    if as_json:
        told = {"probe": question, "healthy": verdict.healthy, "at": verdict.place, "text": verdict.text}
        print(json.dumps(told))
    elif verdict.healthy:
        print(f"{question}: {verdict.text} ({verdict.place})")
    else:
        print_error(f"headgate health: not {question}: {verdict.text} ({verdict.place})")
