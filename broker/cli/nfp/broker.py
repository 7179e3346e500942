"""``headgate nfp broker``: a broker of NFP, alone or with a service on a Flux broker, of this machine or another.

This process becomes the broker, so nothing is loaded that it does not need.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import os
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any

from broker import memory
from broker.cli import address
from broker.cli.nfp.embedded import WRITER, where
from broker.cli.parsing import Parser
from broker.journal.options import JournalOptions
from broker.settings import NfpSection, load_journal, wing_settings

if TYPE_CHECKING:
    from broker.nfp.server.broker import NfpBroker

_EPILOG = f"""\
examples:
  headgate nfp broker                        on tcp://127.0.0.1:5555, state in ~/.local/state/headgate/nfp
  headgate nfp broker --endpoint 'tcp://*:5555' --inventory inventory.yaml
  headgate nfp broker --config nfp.toml --set nfp.credits=4
  headgate nfp broker --uri local:///run/headgate/local-0
  headgate nfp broker --uri tcp://node0:8051
  headgate nfp broker --journal journal      record what passes; headgate journal tail --follow journal

`headgate config show` has every setting, section [nfp].
With $FLUX_URI or $HEADGATE_URI set, or --uri, its services and jobs are reachable on that broker (nfp.SERVICE.TASK).
{address.KEYS_HELP}
SIGTERM and SIGINT tell the workers and leave; a second one leaves at once.
Exit codes: 0 told to leave, 1 failed, 2 wrong options, 75 what it needs is not there yet, or in use,
78 wrong configuration
"""


def arguments() -> Parser:
    """The options of the verb."""
    parser = Parser(
        "nfp broker",
        "Run one broker of the NORFAB protocol until it is told to leave.",
        _EPILOG,
    )
    add = parser.add_argument
    add("-e", "--endpoint", metavar="E", help="Where peers connect (default tcp://127.0.0.1:5555).")
    add(
        "--worker-endpoint",
        metavar="E",
        help="A second address, for workers; --endpoint is for requests then.",
    )
    add("--key-secret", metavar="FILE", help="CURVE certificate (default: made in the base directory).")
    add("--inventory", metavar="FILE", help="YAML with what each worker is given.")
    add("--base-dir", metavar="DIR", help="Keys, state and files (default: ~/.local/state/headgate/nfp).")
    add("--files", metavar="DIR", help="Folder served as nf:// (default: files in the base directory).")
    add("--no-store", action="store_true", help="Keep nothing: jobs end with the broker.")
    add("--no-curve", action="store_true", help="Speak plaintext (on this machine only, unless --insecure).")
    add("--insecure", action="store_true", help="Allow plaintext off loopback.")
    add("-c", "--config", metavar="FILE", help="TOML with a section [nfp]; options go before it.")
    parser.add_set("nfp.KEY=VALUE", "A setting that goes before all others")
    add("--journal", metavar="DIR", help="Record what passes in this folder; more in [journal] of the file.")
    add("-u", "--uri", metavar="URI", help="The Flux broker to be reachable on, as its owner.")
    add("--no-flux", action="store_true", help="None, whatever the environment says.")
    add("-q", "--quiet", action="store_true", help="Say nothing at the start, log warnings only.")
    return parser


def section_of(given: argparse.Namespace) -> NfpSection:
    """The settings that the options and the file ask for.

    Raises:
        ConfigError: they cannot be, or contradict each other.
    """
    named: dict[str, Any] = {
        name: getattr(given, name)
        for name in ("endpoint", "worker_endpoint", "key_secret", "inventory", "base_dir", "files")
        if getattr(given, name) is not None
    }
    for name in ("key_secret", "inventory", "base_dir", "files"):
        if named.get(name):  # "" is refused, or none of ``files``
            named[name] = os.path.abspath(named[name])
    named.update({"store": False} if given.no_store else {})
    named.update({"curve": False} if given.no_curve else {})
    named.update({"insecure": True} if given.insecure else {})
    return wing_settings(NfpSection, given.config, named, given.set)


def journal_of(given: argparse.Namespace) -> JournalOptions | None:
    """What is recorded, as the options and the file ask for; None nothing.

    Raises:
        ConfigError: as of ``section_of``.
    """
    section = load_journal(given.config, given.journal)
    return JournalOptions(writer=WRITER, **section.options()) if section.enabled else None


def flux_uri(given: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> str:
    """The Flux broker to be reachable on; "" for none."""
    return "" if given.no_flux else address.named(given.uri, environ)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    gc.disable()  # loading makes no garbage; ``ready`` turns it on again
    parser = arguments()
    given = parser.parse_args(argv)
    if given.uri and given.no_flux:
        parser.error("--uri and --no-flux: expected one of them")
    section = section_of(given)
    journal = journal_of(given)
    uri = flux_uri(given)
    options = address.link_options(uri) if uri else None

    from broker.nfp.server import process

    @contextlib.asynccontextmanager
    async def flux_service(broker: NfpBroker) -> AsyncIterator[None]:
        from broker.nfp.service import FluxService

        assert options is not None
        made = FluxService(broker, uri, announce=section.announce, options=options)
        with address.keys_explained(uri, options):
            await made.start()
        try:
            yield
        finally:
            await made.stop()

    def ready(broker: NfpBroker) -> None:
        memory.freeze()
        if not given.quiet:
            print("\n".join(_said(section, broker, uri)), flush=True)

    level = "warning" if given.quiet else "info"
    return process.run(
        section, log_level=level, ready=ready, beside=flux_service if uri else None, journal=journal
    )


def _said(section: NfpSection, broker: NfpBroker, uri: str) -> list[str]:
    lines = where(section, broker.endpoints, broker.server_key)
    lines.append(f"state in {section.base_dir}" if section.store else "nothing is stored")
    if uri:
        lines.append(f"reachable as nfp.SERVICE.TASK on {uri}")
    lines.append("Ctrl-C ends it")
    return lines
