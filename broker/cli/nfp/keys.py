"""``headgate nfp keys``: show, make and pass on keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final

import typer

from broker.cli import options
from broker.cli.exits import OK
from broker.cli.nfp import session as shared
from broker.cli.nfp.session import OWNER_FILE, folder
from broker.cli.screen import Screen
from broker.errors import ConfigError
from broker.nfp.peer.keys import found_broker_key, own_certificate, peer_file
from broker.transport.curve import check_key, load_public

EXAMPLES = (
    "headgate nfp keys                          every key in the base directory",
    "headgate nfp keys broker                   the broker's public key, for --server-key on other machines",
    "headgate nfp keys make w1 --service dummy  a pair for the worker w1, and the lines for the broker's list",
    "headgate nfp keys show w1.key --standing guest",
)
STANDINGS: Final = ("owner", "user", "guest", "none")

app = options.application("nfp keys")
Standing = Annotated[
    str,
    typer.Option(
        "--standing", metavar="|".join(STANDINGS), help="What it may do, in the lines for the list."
    ),
]
Services = Annotated[
    list[str] | None,
    typer.Option(
        "--service", "-s", metavar="GLOB", help="A service it may offer as a worker; may be given again."
    ),
]


@app.callback()
def keys() -> None:
    """Show, make and pass on keys."""


def entry(key: str, name: str, standing: str, services: list[str] | None) -> str:
    """The lines for the broker's configuration that list a key."""
    import msgspec

    if standing not in STANDINGS:
        raise ConfigError(f"--standing {standing!r}, expected one of {', '.join(STANDINGS)}")

    def text(value: Any) -> str:
        return msgspec.json.encode(value).decode()  # a basic string of TOML is one of JSON

    lines = ["[[nfp.keys]]", f"key = {text(key)}", f"name = {text(name)}", f"standing = {text(standing)}"]
    if services:
        lines.append(f"services = {text(services)}")
    return "\n".join(lines)


@app.command("list")
def list_(base_dir: shared.BaseDir = None, as_json: options.AsJson = False) -> int:
    """List the keys in the base directory: the broker's, its owner's, those of peers."""
    base = folder(base_dir)
    kinds = (("broker", "broker.key"), ("owner", OWNER_FILE), ("peer", "peers/*.key_secret"))
    found = [(whose, path) for whose, pattern in kinds for path in sorted(base.glob(pattern))]
    rows = [(whose, load_public(path).public_key, str(path)) for whose, path in found]
    screen = Screen(as_json)
    if not rows and not as_json:
        screen.line(f"no keys in {base}")
    else:
        values = [{"file": file, "whose": whose, "key": key} for whose, key, file in rows]
        screen.records(("whose", "public key", "file"), values, rows)
    return OK


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
    standing: Standing = "user",
    services: Services = None,
    base_dir: shared.BaseDir = None,
    as_json: options.AsJson = False,
) -> int:
    """Make the key pair of a peer, unless it has one, and print the lines for the broker's list.

    The secret half stays in peers/NAME.key_secret of the base directory, where worker and client of that name find it.
    """
    base = folder(base_dir)
    certificate = own_certificate(base, name)
    path = peer_file(base, name, ".key_secret")
    _show(certificate.public_key, name, standing, services, path, as_json)
    return OK


@app.command("show")
def show(
    whose: Annotated[
        str, typer.Argument(metavar="NAME|FILE|KEY", help="A peer here, a certificate, or Z85.")
    ],
    name: Annotated[
        str | None, typer.Option("--name", "-n", metavar="NAME", help="Name in the list.")
    ] = None,
    standing: Standing = "user",
    services: Services = None,
    base_dir: shared.BaseDir = None,
    as_json: options.AsJson = False,
) -> int:
    """Print a public key, and the lines that list it at a broker."""
    path: Path | None = Path(whose)
    if not Path(whose).is_file():
        base = folder(base_dir)
        mine = peer_file(base, whose, ".key_secret") if (base / "peers").is_dir() else None
        path = mine if mine is not None and mine.exists() else None
    if path is not None:
        certificate = load_public(path)
        key, called = certificate.public_key, certificate.metadata.get("name") or path.stem
    elif len(whose) == 40:
        key, called = check_key(whose, "key"), whose[:8]
    else:
        raise ConfigError(
            f"{whose}: neither a peer in {folder(base_dir)}, nor a certificate, nor a key of 40 characters"
        )
    _show(key, name or called, standing, services, path, as_json)
    return OK


def _show(
    key: str, name: str, standing: str, services: list[str] | None, path: Path | None, as_json: bool
) -> None:
    lines = entry(key, name, standing, services)
    value = {"key": key, "name": name, "file": None if path is None else str(path), "entry": lines}
    Screen(as_json).record(value, lines.split("\n") if path is None else [f"# {path}", *lines.split("\n")])


def main(argv: list[str]) -> int:
    """Entry point of the verb; without a word it lists."""
    return options.run_app("nfp keys", app, EXAMPLES, keys_last(argv), usual="list")


def keys_last(words: list[str]) -> list[str]:
    """One key in 85 begins with a dash: those go behind ``--``, where they are not taken for options.

    >>> keys_last(["show", "-" + 39 * "a", "--name", "me"]) == ["show", "--name", "me", "--", "-" + 39 * "a"]
    True
    """
    keys = [word for word in words if word.startswith("-") and _is_key(word)]
    return [word for word in words if word not in keys] + (["--", *keys] if keys else [])


def _is_key(word: str) -> bool:
    try:
        return bool(check_key(word))
    except ConfigError:
        return False
