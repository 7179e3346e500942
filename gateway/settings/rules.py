"""What types cannot say about a gateway's configuration: relations between its fields.

Each rule yields a `Problem` per fault it sees, so that one run shows them all. A rule never opens, resolves or reads
anything: a file for another machine can be checked here.
"""

from __future__ import annotations

import ipaddress
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final
from urllib.parse import urlsplit

from broker.endpoints import Endpoint
from broker.schemes import capabilities_of
from broker.secret import masked
from broker.settings.lines import KeyPath
from broker.settings.rules import Problem
from broker.settings.transport_options import option_problems
from broker.settings.values import check_address, check_order, saw
from gateway.settings.addresses import KEYS, WEB, expected_origin, is_keys_address, is_web_address, place_of
from gateway.settings.redis_url import fault_of
from gateway.settings.schema import GatewaySettings, ListenEntry

METRICS: Final = "gateway.metrics"
"""What a rule lets a role call so that it may read the metrics."""


def problems(settings: GatewaySettings) -> Iterator[Problem]:
    """Yield every fault of settings whose types are right."""
    yield from _upstream(settings)
    yield from _listeners(settings)
    yield from _metrics(settings)
    yield from _jwt(settings)
    yield from _oidc(settings)
    yield from users(settings)
    yield from _rules(settings)
    yield from _access(settings)
    yield from _history(settings)
    yield from _limits(settings)


# ---------------------------------------------------------------- [[rules]]


def _rules(settings: GatewaySettings) -> Iterator[Problem]:
    for index, rule in enumerate(settings.rules):
        path = ("rules", index, "prefixes")
        if bool(rule.prefixes) == bool(rule.preset):
            yield Problem(path, "expected either prefixes or a preset")
        for at, prefix in enumerate(rule.prefixes):
            # roles decide who may call the gateway's own methods: such a rule would do nothing
            if "call" in rule.kinds and prefix.startswith("gateway.") and prefix not in ("gateway.", METRICS):
                yield saw((*path, at), prefix, f'{METRICS} alone; preset = "viewer" lets a role look')


# ---------------------------------------------------------------- the upstream


def _upstream(settings: GatewaySettings) -> Iterator[Problem]:
    section = settings.gateway
    for name, other in (("upstream_cert", "upstream_key"), ("upstream_key", "upstream_cert")):
        if getattr(section, name) is not None and getattr(section, other) is None:
            yield Problem(("gateway", other), f"missing, expected it beside {name}: CURVE needs both")
    if section.redis is not None and (fault := fault_of(section.redis)):
        yield Problem(("gateway", "redis"), fault)
    if section.upstream is not None:
        faults = list(check_address(("gateway", "upstream"), section.upstream))
        yield from faults
        if not faults:
            transport = capabilities_of(section.upstream)
            yield from option_problems(("gateway", "upstream_options"), section.upstream_options, transport)


# ---------------------------------------------------------------- [[listen]] and metrics


def _listeners(settings: GatewaySettings) -> Iterator[Problem]:
    if not settings.listen:
        yield Problem(("listen",), "saw no listener, expected at least one [[listen]]")
    times = Counter(entry.url for entry in settings.listen)
    for index, entry in enumerate(settings.listen):
        path = ("listen", index, "url")
        try:
            place = place_of(entry.url)
        except ValueError as error:
            yield Problem(path, f"saw {masked(entry.url)[:64]!r}, {error}")
            continue
        if times[entry.url] > 1 and (place.port or place.is_unix):
            yield saw(path, entry.url, "each URL once")
        if place.scheme == "http" and not place.is_local and not entry.insecure:
            yield saw(path, entry.url, "https, or a loopback address, or insecure = true here")
        yield from _tls(index, entry, place)
        yield from _proxies(index, entry)


def _tls(index: int, entry: ListenEntry, place: Endpoint) -> Iterator[Problem]:
    if place.scheme == "https":
        if entry.cert is None:
            yield Problem(("listen", index, "cert"), "missing, expected a PEM file since the URL is https")
        if entry.client_cert != "off" and entry.client_ca is None:
            yield saw(("listen", index, "client_cert"), entry.client_cert, "client_ca beside it, or off")
        if entry.client_cert == "off" and entry.client_ca is not None:
            yield saw(
                ("listen", index, "client_ca"), entry.client_ca, 'client_cert = "optional" or "required"'
            )
        return
    for name in ("cert", "key", "client_ca"):
        if (seen := getattr(entry, name)) is not None:
            yield saw(("listen", index, name), seen, f"https: {place.scheme} has no certificates")
    if entry.client_cert != "off":
        yield saw(("listen", index, "client_cert"), entry.client_cert, f"https: {place.scheme} has none")


def _proxies(index: int, entry: ListenEntry) -> Iterator[Problem]:
    if entry.proxy_protocol and not entry.trusted_proxies:
        yield saw(
            ("listen", index, "proxy_protocol"), "true", "trusted_proxies: whose header is to be believed"
        )
    for at, network in enumerate(entry.trusted_proxies):
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            yield Problem(("listen", index, "trusted_proxies", at), f"saw {network!r}: {error}")


def _metrics(settings: GatewaySettings) -> Iterator[Problem]:
    url = settings.gateway.metrics_listen
    if url is None:
        return
    path = ("gateway", "metrics_listen")
    try:
        place = place_of(url)
    except ValueError as error:
        yield Problem(path, f"saw {masked(url)[:64]!r}, {error}")
        return
    if place.scheme == "https":
        yield saw(path, url, "http or unix: it is served without TLS")
    elif not place.is_local and not settings.gateway.metrics_insecure:
        expected = (
            "a loopback address, or gateway.metrics_insecure = true: it is served without TLS and login"
        )
        yield saw(path, url, expected)


# ---------------------------------------------------------------- who may come in


def _jwt(settings: GatewaySettings) -> Iterator[Problem]:
    jwt = settings.jwt
    for index, key in enumerate(jwt.keys):
        if not is_keys_address(key.reveal()):
            yield saw(("jwt", "keys", index), key, KEYS)
    for name in ("issuer", "audience"):
        if jwt.keys and getattr(jwt, name) is None:
            yield Problem(("jwt", name), "missing, expected a text since jwt.keys is set")
    if jwt.trust_claims and not jwt.keys:
        yield saw(("jwt", "trust_claims"), "true", "jwt.keys: only a signed token has claims to trust")
    if not jwt.algorithms:
        yield Problem(("jwt", "algorithms"), "saw none, expected at least one")


def _oidc(settings: GatewaySettings) -> Iterator[Problem]:
    times = Counter(entry.name for entry in settings.oidc)
    for index, entry in enumerate(settings.oidc):
        if times[entry.name] > 1:
            yield saw(("oidc", index, "name"), entry.name, "each provider once")
        for other in settings.oidc[:index]:
            # one without a prefix names nobody of those that have one: its names that begin as theirs are refused
            one, two = entry.prefix, other.prefix
            if bool(one) == bool(two) and (one.startswith(two) or two.startswith(one)):
                expected = f"one that does not meet {other.prefix!r} of {other.name}"
                yield saw(("oidc", index, "user_prefix"), entry.prefix, expected)
        for name in ("issuer", "url"):
            if not is_web_address(seen := getattr(entry, name)):
                yield saw(("oidc", index, name), seen, WEB)
        yield from _roles(settings, ("oidc", index, "roles"), entry.roles)
        for at, group in enumerate(entry.groups):
            yield from _roles(settings, ("oidc", index, "groups", at, "roles"), group.roles)


def _roles(settings: GatewaySettings, path: KeyPath, roles: Iterable[str]) -> Iterator[Problem]:
    """Roles that ``[access]`` does not let in over the web."""
    for role in ("owner", "admin"):
        if role in roles and not getattr(settings.access, f"allow_{role}"):
            yield saw(path, role, f"access.allow_{role} = true, or another role")


def users(settings: GatewaySettings) -> Iterator[Problem]:
    """Yield every fault of ``[[users]]``: `gateway.identity` asks for them again, whoever made the settings."""
    names: set[str] = set()
    holders: dict[str, str] = {}
    for index, user in enumerate(settings.users):
        if user.name in names:
            yield saw(("users", index, "name"), user.name, "each user once")
        names.add(user.name)
        first, last = settings.access.own_userids
        if first <= user.userid <= last:
            expected = f"one below {first} or above {last}: access.own_userids are for people of providers"
            yield saw(("users", index, "userid"), user.userid, expected)
        yield from _roles(settings, ("users", index, "roles"), user.roles)
        for at, certificate in enumerate(user.certificates):
            holder = holders.setdefault(certificate, user.name)
            if holder != user.name:
                path = ("users", index, "certificates", at)
                yield saw(path, certificate, f"a name of its own: this is {holder}'s")


def shared_userids(settings: GatewaySettings) -> list[tuple[int, str]]:
    """The userids that several of ``[[users]]`` have, each with what that means for them: the operator may want it."""
    names: dict[int, list[str]] = {}
    for user in settings.users:
        names.setdefault(user.userid, []).append(user.name)
    means = (
        "each can read and cancel the others' jobs and act on their services; without the role owner none receives "
        "private events"
    )
    return [
        (userid, f"userid {userid} is shared by {', '.join(map(repr, sharers))} of [[users]]: {means}")
        for userid, sharers in names.items()
        if len(sharers) > 1
    ]


def _access(settings: GatewaySettings) -> Iterator[Problem]:
    first, last = settings.access.own_userids
    if not 65534 < first <= last:
        yield saw(
            ("access", "own_userids"), f"{first} to {last}", "two userids above 65534, the smaller first"
        )
    for index, origin in enumerate(settings.access.allowed_origins):
        if expected := expected_origin(origin):
            yield saw(("access", "allowed_origins", index), origin, expected)
    if settings.access.login_links == "owner" and not any(_is_loopback(each) for each in settings.listen):
        yield saw(
            ("access", "login_links"), "owner", "a listener on loopback: owner logins are granted there only"
        )

    hook = settings.access.hook_url
    if hook is not None and not is_web_address(hook.reveal()):
        yield saw(("access", "hook_url"), hook, WEB)
    if settings.access.client_crls and not any(entry.client_ca for entry in settings.listen):
        seen = settings.access.client_crls[0]
        yield saw(("access", "client_crls"), seen, "a listener with client_ca, whose authorities sign them")


def _is_loopback(entry: ListenEntry) -> bool:
    try:
        return place_of(entry.url).is_local
    except ValueError:
        return True  # told already


# ---------------------------------------------------------------- [history]


def _history(settings: GatewaySettings) -> Iterator[Problem]:
    warehouse = settings.history.warehouse
    try:
        if warehouse is not None and "://" in warehouse.reveal():
            _port = urlsplit(warehouse.reveal()).port
    except ValueError:
        yield saw(("history", "warehouse"), warehouse, "a folder, or the URL of one in a store")


# ---------------------------------------------------------------- [limits]


def _limits(settings: GatewaySettings) -> Iterator[Problem]:
    yield from check_order(
        ("limits",),
        settings.limits,
        ("preauth_bytes", "message_bytes"),
        ("message_bytes", "budget_bytes"),
        ("outbox_bytes", "budget_bytes"),
        ("response_bytes", "budget_bytes"),
        ("connections_per_user", "connections"),
    )
