"""``headgate nfp keys``: show, make and pass on keys."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Final

import typer

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.nfp import session as shared
from broker.cli.nfp.session import OWNER_FILE, folder
from broker.cli.screen import Screen, compact
from broker.errors import ConfigError
from broker.nfp.peer.keys import found_broker_key, own_certificate, peer_file
from broker.transport.curve import load_public

EXAMPLES = (
    "headgate nfp keys                          every key in the base directory",
    "headgate nfp keys broker                   the broker's public key, for --server-key on other machines",
    "headgate nfp keys make w1 --service dummy  a pair for the worker w1, and the lines for the broker's list",
    "headgate nfp keys make c1 --standing guest",
)
STANDINGS: Final = ("owner", "user", "guest", "none")

app = options.application("nfp keys")


@app.callback()
def keys() -> None:
    """Show, make and pass on keys."""


@app.command("list")
def list_(base_dir: shared.BaseDir = None, as_json: options.AsJson = False) -> int:
    """List the keys in the base directory: the broker's, its owner's, those of peers."""
    base = folder(base_dir)
    ours, peers = _names(base), base / "peers"
    found = [
        (whose, base / name)
        for whose, name in (("broker", "broker.key"), ("owner", OWNER_FILE))
        if name in ours
    ]
    found += [("peer", peers / name) for name in _names(peers) if name.endswith(".key_secret")]
    rows = [(whose, load_public(path).public_key, str(path)) for whose, path in found]
    screen = Screen(as_json)
    if not rows and not as_json:
        screen.line(f"no keys in {base}")
    else:
        values = [{"file": file, "whose": whose, "key": key} for whose, key, file in rows]
        screen.records(("whose", "public key", "file"), values, rows)
    return OK


def _names(folder: Path) -> list[str]:
    """What is in ``folder``, none where there is none; ``Path.glob`` finds none in one that cannot be read, too."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []


@app.command("broker")
def broker(base_dir: shared.BaseDir = None, as_json: options.AsJson = False) -> int:
    """Print the public key of the broker that has its state in the base directory."""
    base = folder(base_dir)
    key = found_broker_key(base)
    if key is None:
        raise ConfigError(f"{base}: no broker.key: a broker makes it at its first start in this folder")
    Screen(as_json).record({"server_key": key, "file": str(base / "broker.key")}, key)
    return OK


@app.command("make")
def make(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the worker or client.")],
    standing: Annotated[
        str,
        typer.Option(
            "--standing", metavar="|".join(STANDINGS), help="What it may do, in the lines for the list."
        ),
    ] = "user",
    services: Annotated[
        list[str] | None,
        typer.Option(
            "--service", "-s", metavar="GLOB", help="A service it may offer as a worker; may be given again."
        ),
    ] = None,
    base_dir: shared.BaseDir = None,
    as_json: options.AsJson = False,
) -> int:
    """Make the key pair of a peer, unless it has one, and print the lines for the broker's list.

    The secret half stays in peers/NAME.key_secret of the base directory, where worker and client of that name find it.
    """
    if standing not in STANDINGS:
        raise ConfigError(f"--standing {standing!r}, expected one of {', '.join(STANDINGS)}")
    base = folder(base_dir)
    key, path = own_certificate(base, name).public_key, peer_file(base, name, ".key_secret")
    listed = {"key": key, "name": name, "standing": standing, **({"services": services} if services else {})}
    # a basic string of TOML is one of JSON
    lines = ["[[nfp.keys]]", *(f"{word} = {compact(value)}" for word, value in listed.items())]
    value = {"key": key, "name": name, "file": str(path), "entry": "\n".join(lines)}
    Screen(as_json).record(value, [f"# {path}", *lines])
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb; without a word it lists."""
    return options.run_app("nfp keys", app, EXAMPLES, argv, usual="list")
