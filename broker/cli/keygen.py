"""``headgate keygen``: make a CURVE certificate."""

from __future__ import annotations

import socket
from datetime import UTC, datetime
from typing import Annotated

import typer

from broker import __version__
from broker.cli import options
from broker.cli.exits import OK
from broker.cli.screen import Screen
from broker.errors import ConfigError

EXAMPLES = (
    "headgate keygen broker.cert",
    "headgate keygen node3.cert --name node3",
    "headgate keygen dashboard.cert --json | jq -r .public_key",
)


def keygen(
    file: Annotated[
        str, typer.Argument(metavar="FILE", help="Where the certificate goes; its mode will be 0600.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", metavar="NAME", help="Whose it is. Default: this host.")
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace an existing file: its key is lost.")
    ] = False,
    as_json: options.AsJson = False,
) -> int:
    """Make a CURVE certificate for a broker or a client and print its public key.

    The file is in the ZPL format of CZMQ and of flux keygen. Keep it secret: who has it is that broker. Put the
    public key into the configuration: into the table of hosts (a broker) or of clients (a client).
    """
    import errno

    from broker.transport import curve

    now = datetime.now(UTC).isoformat(timespec="seconds")
    metadata = {
        "name": name or socket.gethostname(),
        "keygen.headgate-version": __version__,
        "keygen.hostname": socket.gethostname(),
        "keygen.time": now,
    }
    certificate = curve.generate(metadata)
    try:
        curve.save(certificate, file, replace=force)
    except ConfigError as error:
        hint = "; --force replaces it, and its key is lost" if error.errno == errno.EEXIST else ""
        raise type(error)(f"{error}{hint}", error.errno) from error
    value = {"file": file, "name": metadata["name"], "public_key": certificate.public_key}
    screen = Screen(as_json)
    screen.record(value, f'public_key = "{certificate.public_key}"')
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run("keygen", keygen, EXAMPLES, argv)
