"""``headgate tls``: certificates for the gateway's listeners."""

from __future__ import annotations

import socket
import time
from typing import Annotated

import typer

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen

EXAMPLES = (
    "headgate tls self-signed /etc/headgate/tls --host gate.example.org --host 192.0.2.7",
    "headgate tls self-signed tls --days 30 --force --json",
)

app = options.application("tls")


@app.callback()
def tls() -> None:
    """Make certificates for the gateway's listeners."""


@app.command("self-signed")
def self_signed(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Where cert.pem and key.pem (0600) go.")],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME", help="A name or address of the gateway; repeatable. Default: this host."
        ),
    ] = None,
    days: Annotated[int, typer.Option("--days", min=1, max=3650, help="How long it lasts.")] = 365,
    force: Annotated[
        bool, typer.Option("--force", help="Replace existing files: their key is lost.")
    ] = False,
    as_json: options.AsJson = False,
) -> int:
    """Make a self-signed certificate (EC P-256) and print what belongs into the configuration.

    localhost, 127.0.0.1 and ::1 are always among its names. Clients have to be given cert.pem, and to be told to
    trust it. A running gateway takes a replaced one up on SIGHUP.
    """
    from gateway import selfsigned  # cryptography: 60 ms

    made = selfsigned.make(host or [socket.gethostname()], days=days, now=time.time())
    certificate, key = selfsigned.save(made, directory, replace=force)
    value = {
        "cert": str(certificate),
        "key": str(key),
        "sha256": made.fingerprint,
        "expires": made.expires,
    }
    Screen(as_json).record(
        value, [f'cert = "{certificate}"', f'key = "{key}"', f"# SHA256:{made.fingerprint}"]
    )
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run_app("tls", app, EXAMPLES, argv)
