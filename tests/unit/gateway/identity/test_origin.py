"""From which pages browsers may come."""

import pytest
from aiohttp.test_utils import make_mocked_request

from gateway import closes
from gateway.identity.origin import Origins, normal
from gateway.identity.proxies import Client
from gateway.principal import Denied
from tests.tables import for_each

PUBLIC = Client("6.6.6.6", "6.6.6.6", "https", local=False, loopback_listener=False)
PROXIED = Client("6.6.6.6", "10.0.0.1", "https", local=False, loopback_listener=False)
LOCAL = Client("127.0.0.1", "127.0.0.1", "http", local=True, loopback_listener=True)
ORIGINS = Origins(["https://grafana.example.org"], ["gate.internal"])

SOCKET = {"Upgrade": "websocket", "Connection": "Upgrade"}


def check(client, method="GET", kind=None, host="dash.example.org", **headers):
    said = {"Host": host, **{name.replace("_", "-"): value for name, value in headers.items()}}
    ORIGINS.check(make_mocked_request(method, "/v1/ws", headers=said), client, kind=kind)


def refused(*arguments, **headers):
    with pytest.raises(Denied) as denied:
        check(*arguments, **headers)
    assert (denied.value.status, denied.value.close) == (403, closes.BAD_CREDENTIAL)
    return str(denied.value)


@for_each("kind", [None, "token", "jwt", "cookie", "tls"])
@for_each(
    "origin",
    [
        "https://dash.example.org",
        "https://dash.example.org:443",
        "https://DASH.example.org",
        "https://grafana.example.org",
    ],
)
def test_our_own_pages_and_those_allowed(kind, origin):
    check(PUBLIC, kind=kind, Origin=origin, **SOCKET)
    check(PUBLIC, "POST", kind=kind, Origin=origin)


@for_each("kind", [None, "token", "jwt", "cookie", "tls"])
@for_each(
    "origin",
    [
        "null",
        "",
        "https://evil.example",
        "http://dash.example.org",
        "https://dash.example.org:8443",
        "https://dash.example.org.evil.example",
        "https://dash.example.org@evil.example",
        "https://evil.example#https://dash.example.org",
        "https://dash.example.org/",
        "https://dash.example.org, https://evil.example",
        "file://",
        "https://dash.example.org:99999",
        "https://[",
    ],
)
def test_other_pages(kind, origin):
    refused(PUBLIC, kind=kind, Origin=origin, **SOCKET)
    refused(PUBLIC, "POST", kind=kind, Origin=origin)


def test_without_an_origin_cookies_change_nothing():
    refused(PUBLIC, kind="cookie", **SOCKET)
    for method in ("POST", "PUT", "DELETE", "PATCH"):
        refused(PUBLIC, method, kind="cookie")
    check(PUBLIC, kind="cookie")
    for kind in (None, "token", "jwt", "tls"):
        check(PUBLIC, kind=kind, **SOCKET)
        check(PUBLIC, "POST", kind=kind)


@for_each("site", ["cross-site", "same-site", "strange"])
@for_each("kind", ["cookie", "tls"])
def test_other_sites_get_nothing_by_ambient_credentials(kind, site):
    refused(PUBLIC, kind=kind, Sec_Fetch_Site=site)
    check(PUBLIC, kind="token", Sec_Fetch_Site=site)


@for_each("site", ["same-origin", "none"])
def test_our_own_site(site):
    check(PUBLIC, kind="cookie", Sec_Fetch_Site=site)


def test_an_allowed_origin_is_another_site():
    check(PUBLIC, "POST", kind="tls", Origin="https://grafana.example.org", Sec_Fetch_Site="cross-site")


APPS = (
    *("tauri://localhost", "capacitor://localhost", "chrome-extension://mhjfbmdgcfjbbpaeojofohoefgiehjai"),
    *(
        "vscode-webview://0d1c-2b3a",
        "moz-extension://550e8400-e29b-41d4-a716-446655440000",
        "app://obsidian.md",
    ),
)


@for_each("app", APPS)
@for_each("kind", [None, "token", "cookie", "tls"])
def test_an_app_whose_origin_is_allowed(app, kind):
    allowing = Origins([app])
    for host, said, taken in (
        ("dash.example.org", app, True),
        ("dash.example.org", f"{app}.evil", False),
        ("dash.example.org", app.replace("://", "s://"), False),
        ("dash.example.org", app.partition("//")[0] + "//other", False),
    ):
        request = make_mocked_request("POST", "/v1/ws", headers={"Host": host, "Origin": said})
        if taken:
            allowing.check(request, PUBLIC, kind=kind)
        else:
            with pytest.raises(Denied):
                allowing.check(request, PUBLIC, kind=kind)
    # its name is none of ours: a page of that name that resolves to this machine stays outside
    rebound = make_mocked_request("GET", "/", headers={"Host": app.partition("//")[2]})
    if "localhost" not in app and kind in ("cookie", "tls"):
        with pytest.raises(Denied):
            allowing.check(rebound, LOCAL, kind=kind)


@for_each("kind", ["cookie", "tls"])
def test_names_that_only_resolve_to_this_machine(kind):
    """DNS rebinding: the page's own origin fits, for the browser believes its name."""
    refused(LOCAL, kind=kind, host="evil.example:8280", Origin="http://evil.example:8280", **SOCKET)
    refused(LOCAL, kind=kind, host="evil.example:8280")
    for host in (
        "localhost:8280",
        "127.0.0.1:8280",
        "[::1]:8280",
        "gate.internal:8280",
        "grafana.example.org",
    ):
        check(LOCAL, kind=kind, host=host)
    check(PUBLIC, kind=kind, host="whatever.example")
    check(LOCAL, kind="token", host="evil.example:8280")


def test_two_origins():
    headers = [
        ("Host", "dash.example.org"),
        ("Origin", "https://dash.example.org"),
        ("Origin", "https://evil.example"),
    ]
    from multidict import CIMultiDict

    request = make_mocked_request("GET", "/", headers=CIMultiDict(headers))
    with pytest.raises(Denied):
        ORIGINS.check(request, PUBLIC)


def test_ipv6_origins():
    assert normal("http://[::1]:8280") == "http://[::1]:8280"
    check(LOCAL, "POST", kind="cookie", host="[::1]:8280", Origin="http://[::1]:8280")
