"""``headgate token``: make, list and remove bearer tokens of web clients; let revoked credentials count again."""

from __future__ import annotations

import contextlib
import time
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from broker.cli import options
from broker.cli.exits import OK, Failed, UsageError
from broker.cli.screen import Screen
from broker.errors import ConfigError
from broker.times import seconds_of
from gateway.cli.whereabouts import Config, Statedir, settings_of, store_of
from gateway.identity.store import FOREVER, Store
from gateway.identity.tokens import Token, TokenFile, credential_of, token_path
from gateway.settings import GatewaySettings

EXAMPLES = (
    "headgate token add grafana --config gateway.toml --expires 90d --note 'dashboards of hall 3'",
    "headgate token list --config gateway.toml",
    "headgate token remove 3f9a0c1b22d4 --config gateway.toml",
    "headgate token remove grafana --config gateway.toml          all of this user",
    "headgate token revoked --config gateway.toml",
    "headgate token restore 3f9a0c1b22d4 --config gateway.toml",
)

app = options.application("token")


@app.callback()
def token() -> None:
    """Make, list and remove the bearer tokens of web clients; let revoked credentials count again.

    A running gateway takes every change up within a second; sessions of a removed token end.
    """


@app.command("add")
def add(
    user: Annotated[str, typer.Argument(metavar="USER", help="Whose it is: a name of [[users]].")],
    expires: Annotated[
        str | None,
        typer.Option("--expires", metavar="SPAN", help="30d, 12h, 90min, 2w, 600s. Default: never."),
    ] = None,
    note: Annotated[str, typer.Option("--note", metavar="TEXT", help="What it is for.")] = "",
    config: Config = None,
    as_json: options.AsJson = False,
) -> int:
    """Make a token and print it: this once, for the file keeps a hash of it only."""
    settings = settings_of(config, None)
    check_user(settings, user, config)
    now = time.time()
    until = None if expires is None else now + span(expires)
    made, text = TokenFile(token_path(settings)).add(user, now=now, expires=until, note=note)
    Screen(as_json).record({"token": text, **shown(made)}, text)
    return OK


@app.command("list")
def list_(config: Config = None, statedir: Statedir = None, as_json: options.AsJson = False) -> int:
    """Print every token: id, user, when it was made and ends, whether it was revoked, what it is for."""
    settings = settings_of(config, statedir)
    tokens = TokenFile(token_path(settings)).entries()
    gone: dict[str, float] | None
    try:
        gone = revocations(settings)
    except ConfigError:
        gone = None  # the state directory is of another user: whether one is revoked is not known
    now = time.time()
    values, rows = [], []
    for each in tokens:
        revoked = None if gone is None else credential_of(each.id) in gone
        end = "revoked" if revoked else moment(each.expires, now)
        values.append({**shown(each), "revoked": revoked})
        rows.append((each.id, each.user, moment(each.created), end, each.note))
    Screen(as_json).records(("id", "user", "created", "expires", "note"), values, rows)
    return OK


@app.command("remove")
def remove(
    which: Annotated[str, typer.Argument(metavar="ID|USER", help="One token, or all tokens of a user.")],
    config: Config = None,
    statedir: Statedir = None,
    as_json: options.AsJson = False,
) -> int:
    """Remove a token, or all tokens of a user; exit code 1 when there is none."""
    file = TokenFile(token_path(settings_of(config, statedir)))
    gone = file.remove(lambda each: each.id == which) or file.remove(lambda each: each.user == which)
    if not gone:
        raise Failed(f"{file.path} has no token and no user {which!r}")
    screen = Screen(as_json)
    for each in gone:
        screen.record({"removed": True, **shown(each)}, f"removed {each.id} of {each.user}")
    return OK


@app.command("revoked")
def revoked(config: Config = None, statedir: Statedir = None, as_json: options.AsJson = False) -> int:
    """Print every credential that was revoked (gateway.end): tokens, JWTs, certificates, and when they would end."""
    gone = revocations(settings_of(config, statedir))
    values = [{"credential": name, "until": ends(until)} for name, until in gone.items()]
    rows = [(name, moment(ends(until))) for name, until in gone.items()]
    Screen(as_json).records(("credential", "until"), values, rows)
    return OK


@app.command("restore")
def restore(
    which: Annotated[
        str,
        typer.Argument(metavar="ID|CREDENTIAL", help="A token, or a credential as `token revoked` names it."),
    ],
    config: Config = None,
    statedir: Statedir = None,
    as_json: options.AsJson = False,
) -> int:
    """Let a revoked credential count again; exit code 1 when it was not revoked."""
    settings = settings_of(config, statedir)
    credential = which if ":" in which else credential_of(which)
    if credential not in revocations(settings):
        raise Failed(f"{credential} is not revoked")
    with contextlib.closing(Store(settings.gateway.statedir)) as store:
        store.restore(credential)
    Screen(as_json).record({"restored": True, "credential": credential}, f"restored {credential}")
    return OK


def revocations(settings: GatewaySettings) -> dict[str, float]:
    """Revoked credentials, and the wall clock seconds at which they would end; none where no gateway has run."""
    if store_of(settings) is None:
        return {}
    with contextlib.closing(Store(settings.gateway.statedir)) as store:
        return store.revocations()


def ends(until: float) -> float | None:
    """The end of a revoked credential; None where it has none."""
    return None if until >= FOREVER else until


def check_user(settings: GatewaySettings, user: str, config: str | None) -> None:
    """Refuse a user that the configuration does not name: nobody could use the token.

    Raises:
        UsageError: no configuration is given.
        ConfigError: the file names no such user.
    """
    if config is None:
        raise UsageError(
            f"expected --config FILE, the configuration of the gateway whose [[users]] has {user!r}"
        )
    if all(each.name != user for each in settings.users):
        named = ", ".join(each.name for each in settings.users) or "nobody"
        raise ConfigError(f"{config}: saw no user {user!r} in [[users]], expected one of: {named}")


def span(text: str) -> float:
    """Seconds of ``30d`` and the like.

    Raises:
        UsageError: it is no span of time.

    >>> span("2h"), span("1w")
    (7200.0, 604800.0)
    """
    seconds = seconds_of(text)
    if not seconds:
        raise UsageError(f"--expires: saw {text!r}, expected a number and one of s, min, h, d, w, like 30d")
    return seconds


def shown(entry: Token) -> dict[str, Any]:
    """A token for programs: everything but its hash."""
    return {
        "id": entry.id,
        "user": entry.user,
        "created": entry.created,
        "expires": entry.expires,
        "note": entry.note,
    }


def moment(seconds: float | None, now: float = 0.0) -> str:
    """A time for people, UTC.

    >>> moment(0.0), moment(None), moment(0.0, 5.0)
    ('1970-01-01 00:00', 'never', 'expired 1970-01-01 00:00')
    """
    if seconds is None:
        return "never"
    text = datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M")
    return f"expired {text}" if seconds < now else text


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run_app("token", app, EXAMPLES, argv)
