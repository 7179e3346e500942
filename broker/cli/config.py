"""``headgate config``: check or show a configuration, of brokers or of a gateway."""

from __future__ import annotations

import os
import tomllib
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from broker import secret
from broker.cli import options, settings_text
from broker.cli.exits import OK
from broker.cli.screen import Screen
from broker.settings import Settings, load, read, shown
from broker.settings.rules import closed_doors
from broker.settings.showing import secrets

EXAMPLES = (
    "headgate config check broker.toml               or gateway.toml: which it is, its sections say",
    "headgate config show                           every setting, its default and the reason",
    "headgate config show broker.toml --brief",
    "headgate config sample gateway > gateway.toml   a file to begin with",
)

_GATEWAY: Final = frozenset({"gateway", "tokens", "jwt", "users", "rules", "history"})
_BROKER: Final = frozenset({"broker", "tree", "hosts", "clients", "journal", "nfp", "oslo"})
"""Sections of one kind of file alone."""

app = options.application("config")


class Kind(StrEnum):
    """Whose configuration file."""

    BROKER = "broker"
    GATEWAY = "gateway"


@app.callback()
def config() -> None:
    """Check or show a configuration."""


@app.command("check")
def check(
    file: Annotated[str, typer.Argument(metavar="FILE", help="A configuration (TOML).")],
    as_json: options.AsJson = False,
) -> int:
    """Say everything that is wrong with a configuration, each with its line; exit code 78.

    Nothing is opened, resolved or connected: a file for another machine can be checked here.
    """
    screen = Screen(as_json)
    settings: Any
    if is_gateways(file):
        settings = import_module("gateway.settings").load(file)
        told, said = _gateway_facts(settings)
        shared = import_module("gateway.settings.rules").shared_userids(settings)
        closed = [*_without_users(settings), *(text for _userid, text in shared)]
    else:
        settings = load(file)
        told, said = facts(settings), summary(settings)
        closed = list(closed_doors(settings))
    mode = os.stat(file)
    shown = [secret.exposure(mode, f"the secret in {name}") for name in secrets(settings)]
    warnings = [
        *closed,
        *(f"{file}: {each}, expected 0600, or the secret in a file" for each in shown if each),
    ]
    screen.record({"file": file, "ok": True, "warnings": warnings, **told}, f"{file}: ok, {said}", "green")
    for warning in () if as_json else warnings:
        screen.line(warning, "yellow")
    return OK


def _without_users(settings: Any) -> list[str]:
    """What to say of a gateway that nobody can log in at."""
    ways = (settings.users, settings.jwt.keys, settings.oidc)
    if any(ways) or settings.access.login_links != "off":
        return []
    return ["nobody is ever let in: no [[users]], no jwt.keys, no [[oidc]], and access.login_links is off"]


def is_gateways(file: str) -> bool:
    """Whether a file is a gateway's, by its sections; False where it cannot be read."""
    try:
        found = tomllib.loads(Path(file).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    if _BROKER & found.keys():
        return False
    listeners = found.get("listen")
    urls = isinstance(listeners, list) and any(isinstance(each, dict) and "url" in each for each in listeners)
    return urls or bool(_GATEWAY & found.keys())


def _gateway_facts(settings: Any) -> tuple[dict[str, Any], str]:
    """What the configuration of a gateway (``gateway.settings``) is about: for programs, for people."""
    told = {
        "listeners": [entry.url for entry in settings.listen],
        "upstream": shown(settings.gateway.upstream),
        "users": len(settings.users),
        "rules": len(settings.rules),
        "jwt": bool(settings.jwt.keys),
        "login_links": settings.access.login_links,
    }
    said = f"a gateway on {', '.join(told['listeners'])}, {told['users']} user(s), {told['rules']} rule(s)"
    return told, said + (", JWTs" if told["jwt"] else "")


def facts(settings: Settings) -> dict[str, Any]:
    """A few figures that characterize a configuration, for ``--json``."""
    return {
        "size": settings.size,
        "topology": settings.tree.topology,
        "listeners": 1 + len(settings.listen),
        "clients": len(settings.clients),
        "curve": settings.tree.curve_cert is not None,
        "journal": settings.journal.directory if settings.journal.enabled else None,
        "nfp": settings.nfp and settings.nfp.endpoint,
        "oslo": settings.oslo and list(settings.oslo.run),
    }


def summary(settings: Settings) -> str:
    """The figures of ``facts`` in one line for people."""
    told = facts(settings)
    links = "CURVE" if told["curve"] else "plaintext"
    tree = f"a tree of {told['size']} ({told['topology']}, {links})" if told["size"] > 1 else "a tree of one"
    nfp = f", NFP on {told['nfp']}" if told["nfp"] else ""
    oslo = f", oslo with {', '.join(told['oslo'])}" if told["oslo"] else ""
    journal = f", journal in {told['journal']}" if told["journal"] else ""
    return f"{tree}, {told['listeners']} listener(s), {told['clients']} CURVE client(s){nfp}{oslo}{journal}"


@app.command("show")
def show(
    file: Annotated[
        str | None, typer.Argument(metavar="[FILE]", help="A configuration (TOML). Default: an empty one.")
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", "-s", metavar="SECTION.KEY=VALUE", help="As of headgate broker."),
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Values only.")] = False,
    as_json: options.AsJson = False,
) -> int:
    """Print every setting that is in force, with its meaning and its default's reason, as a configuration file."""
    settings: Any
    if file is not None and is_gateways(file):
        gateway = import_module("gateway.settings")
        settings = gateway.apply(gateway.load(file), assignments or [])
    else:
        settings = read(file, assignments or [])
    screen = Screen(as_json)
    if as_json:
        screen.value(shown(settings))
        return OK
    for line in settings_text.lines(settings, explain=not brief):
        screen.line(line, "dim" if line.startswith("#") else "bold" if line.startswith("[") else "")
    return OK


@app.command("sample")
def sample(
    kind: Annotated[Kind, typer.Argument(help="Whose file: of brokers, or of a gateway.")] = Kind.BROKER,
) -> int:
    """Print a configuration file to begin with: every setting with its meaning, at its default, commented out."""
    settings: Any = Settings
    if kind is Kind.GATEWAY:
        settings = import_module("gateway.settings").GatewaySettings
    print("\n".join(settings_text.sample(settings)).rstrip())
    return OK


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run_app("config", app, EXAMPLES, argv)
