"""``headgate gateway``: web clients in front of a broker, ours or a flux-core's; this process, or N workers of it."""

from __future__ import annotations

import argparse
import contextlib
import json
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from broker.cli import settings_text
from broker.cli.address import choose
from broker.cli.parsing import Parser
from gateway import delta, process
from gateway.cli.login import make
from gateway.identity.login import link_facts
from gateway.identity.store import Store
from gateway.settings import GatewaySettings, ListenEntry, apply, check, load

if TYPE_CHECKING:
    from gateway.serve import Reread

_EPILOG = """\
examples:
  headgate gateway --upstream local:///run/headgate/local-0        on http://127.0.0.1:8280
  headgate gateway --config /etc/headgate/gateway.toml --workers 2
  flux start headgate gateway --login-link                          in front of a real flux-core instance
  headgate gateway --history /var/lib/headgate/warehouse           with what headgate pipeline made
  headgate gateway --listen http://127.0.0.1:0 --set limits.ping_s=10

The broker is --upstream, else gateway.upstream, $HEADGATE_URI, $FLUX_URI, or the local socket of this user.
SIGTERM and SIGINT drain and leave, a second one leaves at once; SIGHUP reads users, rules,
certificates, tokens and keys again.
Exit codes: 0 told to leave, 1 failed, 2 wrong options, 75 what it needs is not there yet, or in use,
78 wrong configuration
"""


def arguments() -> Parser:
    """The options of the verb."""
    parser = Parser(
        "gateway",
        "Serve web clients in front of a broker until told to leave; prints the URLs.",
        _EPILOG,
    )
    add = parser.add_argument
    add("-c", "--config", metavar="FILE", help="TOML; --show has every setting.")
    add("-u", "--upstream", metavar="URI", help="The broker; the gateway has to be its owner.")
    add(
        "-l",
        "--listen",
        action="append",
        metavar="URL",
        help="Instead of the configured listeners, http://HOST:PORT or unix:///PATH; may be given again.",
    )
    add("-w", "--workers", type=int, metavar="N", help="Processes that share the listeners.")
    add(
        "--history",
        metavar="DIR",
        help="The warehouse of headgate pipeline, or its URL, shown in the dashboard.",
    )
    add(
        "--show", action="store_true", help="Print every setting that is in force, with its meaning, and end."
    )
    add(
        "--login-link", action="store_true", help="Print a one-time login link, too; as the owner unless set."
    )
    parser.add_set("SECTION.KEY=VALUE", "A setting that goes before the file's")
    return parser


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    given = arguments().parse_args(argv)
    settings = settings_for(given)
    if given.show:
        print("\n".join(settings_text.lines(settings, explain=True)))
        return 0
    reread = partial(settings_for, given)
    upstream = given.upstream or settings.gateway.upstream or choose(None)
    if settings.gateway.workers > 1:
        return _supervised(settings, upstream, reread, link=given.login_link)

    from gateway.serve import Gateway

    def ready(gateway: Gateway) -> None:
        _say(gateway.urls, gateway.login_link() if given.login_link else None)

    return process.run(settings, upstream=upstream, ready=ready, reread=reread)


def settings_for(given: argparse.Namespace) -> GatewaySettings:
    """What the options ask for.

    Raises:
        ConfigError: the file or an option is wrong.
    """
    settings = load(given.config) if given.config else GatewaySettings.defaults()
    assignments = list(given.set)
    if given.workers is not None:
        assignments.append(f"gateway.workers={given.workers}")
    if given.history is not None:
        assignments.insert(0, f"history.warehouse={json.dumps(delta.place_of(given.history))}")
    if given.login_link and settings.access.login_links == "off":
        assignments.insert(0, "access.login_links=owner")
    if given.listen:
        listen = tuple(ListenEntry(url=url) for url in given.listen)
        settings = check(msgspec.structs.replace(settings, listen=listen))
    return apply(settings, assignments) if assignments else settings


def _supervised(settings: GatewaySettings, upstream: str, reread: Reread, *, link: bool) -> int:
    from gateway.workers import Supervisor

    supervisor = Supervisor(settings, upstream, reread)
    return supervisor.run(lambda: _say(supervisor.urls, _link(settings, supervisor.urls) if link else None))


def _link(settings: GatewaySettings, urls: list[str]) -> str:
    """A login link made beside the workers; the store is closed before another of them is forked."""
    with contextlib.closing(Store(settings.gateway.statedir)) as store:
        return make(store, link_facts(settings, urls))[0]


def _say(urls: list[str], link: str | None) -> None:
    print("\n".join([*urls, *([link] if link else [])]), flush=True)
