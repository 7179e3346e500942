"""``headgate login``: one-time login links for the dashboard of a running gateway; who is logged in, and the end."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from broker.cli import options
from broker.cli.exits import OK, Failed
from broker.cli.screen import Screen, duration
from broker.errors import ConfigError
from gateway.cli.token import moment
from gateway.cli.whereabouts import Config, Statedir, settings_of, store_of
from gateway.identity.login import LinkRole, Logins, add_link, link_facts, link_url
from gateway.identity.store import FILE, Store
from gateway.settings import AccessSection, GatewaySettings, place_of

EXAMPLES = (
    "headgate login link",
    "headgate login link --config gateway.toml",
    "headgate login link --statedir /var/lib/headgate --json | jq -r .url",
    "headgate login list --config gateway.toml",
    "headgate login end 3f9a0c1b22d45566 --config gateway.toml",
    "headgate login end corp:ada --config gateway.toml            all of this user",
)

app = options.application("login")


@app.callback()
def login() -> None:
    """Make one-time login links for the dashboard of a running gateway; list and end logins of browsers."""


@app.command("link")
def link(
    config: Config = None,
    statedir: Statedir = None,
    url: Annotated[
        str | None,
        typer.Option("--url", metavar="URL", help="How the browser reaches it. Default: where it listens."),
    ] = None,
    as_json: options.AsJson = False,
) -> int:
    """Print a link that logs in one browser, once.

    The role it gives is the gateway's setting access.login_links; a link for the owner works on the gateway's own
    machine only. The secret stands behind the # and so is sent to no server but in the body of the login itself.
    """
    settings = settings_of(config, statedir)
    with contextlib.closing(_store(settings)) as store:
        running = store.announced() or link_facts(settings, [entry.url for entry in settings.listen])
        text, role = make(store, running, url)
        seconds = float(running["login_link_s"])
        value = {"url": text, "role": role, "expires": store.wall() + seconds}
    screen = Screen(as_json)
    screen.record(value, text)
    if screen.rich:
        screen.line(f"for one login as {role}, within {duration(seconds)}", "dim")
    return OK


def make(store: Store, running: Mapping[str, Any], url: str | None = None) -> tuple[str, LinkRole]:
    """A login link of the gateway that ``running`` describes (`link_facts`), and the role that it gives; ``url`` is how
    the browser reaches it, by default where it listens.

    Raises:
        ConfigError: it takes no login links, or has no listener for them.
        Denied: the store cannot be written.
    """
    if running["login_links"] == "off":
        raise ConfigError(
            f"the gateway at {', '.join(running['urls'])} takes no login links, expected access.login_links = "
            '"user" or "owner" there; of gateways side by side each needs a gateway.statedir of its own'
        )
    role: LinkRole = "owner" if running["login_links"] == "owner" else "user"
    base = url or choose(running["urls"], role) + running.get("prefix", "")
    seconds = float(running["login_link_s"])
    return link_url(base, add_link(store, role, seconds=seconds, loopback_only=role == "owner")), role


@app.command("list")
def list_(config: Config = None, statedir: Statedir = None, as_json: options.AsJson = False) -> int:
    """Print every login of a browser: id, user, what it came from, when it began and ends.

    A login whose token, user or provider is gone counts no more, and stands here until it ends.
    """
    with contextlib.closing(_store(settings_of(config, statedir))) as store:
        found = Logins(store, AccessSection()).of(None)
    values = [each.described() for each in found]
    rows = [
        (each["login"], each["user"], each["from"], moment(each["since"]), moment(each["expires"]))
        for each in values
    ]
    Screen(as_json).records(("id", "user", "from", "since", "until"), values, rows)
    return OK


@app.command("end")
def end(
    which: Annotated[str, typer.Argument(metavar="ID|USER", help="One login, or all logins of a user.")],
    config: Config = None,
    statedir: Statedir = None,
    as_json: options.AsJson = False,
) -> int:
    """End a login, or all logins of a user, within a second and with their sessions; exit code 1 when there is none.

    Tokens go on (headgate token remove), and who logged in at an identity provider may do so again.
    """
    with contextlib.closing(_store(settings_of(config, statedir))) as store:
        logins = Logins(store, AccessSection())
        found = [each for each in logins.of(None) if which in (each.id, each.described()["user"])]
        logins.end_all(found)
    if not found:
        raise Failed(f"there is no login and no user {which!r}")
    screen = Screen(as_json)
    for each in found:
        value = {"ended": True, **each.described()}
        screen.record(value, f"ended {each.id} of {value['user']}")
    return OK


def choose(urls: Sequence[str], role: str) -> str:
    """The listener that a link should lead to: for the owner one on the loopback, else the first that has a URL.

    Raises:
        ConfigError: there is none; a UNIX socket opens in no browser.
    """
    places = [(each, place_of(each)) for each in urls]
    opened = [(each, place) for each, place in places if not place.is_unix]
    local = [each for each, place in opened if place.is_local]
    others = [each for each, _place in opened]
    found = local if role == "owner" else others
    if not found:
        kind = (
            "on the loopback, which alone takes the owner's logins"
            if role == "owner"
            else "with http or https"
        )
        raise ConfigError(f"the gateway has no listener {kind}; --url says how the browser reaches it")
    return found[0]


def _store(settings: GatewaySettings) -> Store:
    """The store of a gateway that has run.

    Raises:
        ConfigError: there is none, or it cannot be opened.
    """
    if store_of(settings) is None:
        where = Path(settings.gateway.statedir, FILE)
        raise ConfigError(
            f"{where}: no gateway has run with this state directory; --config or --statedir names it"
        )
    return Store(settings.gateway.statedir)


def main(argv: list[str]) -> int:
    """Entry point of the verb."""
    return options.run_app("login", app, EXAMPLES, argv)
