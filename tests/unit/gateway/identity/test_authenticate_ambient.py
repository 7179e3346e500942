"""What browsers send by themselves, through real connections: client certificates and the cookies of logins."""

import json
import os

from gateway.identity.login import LOGIN_COOKIE
from gateway.settings.schema import AccessSection, ListenEntry, UserEntry
from tests.tables import for_each
from tests.unit.gateway.identity.doorway import (
    ALICE,
    OWNER,
    add_token,
    ask,
    bearer,
    client_tls,
    log_in,
    settings_in,
)

# ---------------------------------------------------------------- certificates


async def test_a_certificate(open_door, mutual, tmp_path, state):
    settings = mutual()
    text = add_token(settings, "bob")[2]
    door = await open_door(settings)
    alice, stranger, nobody = (
        client_tls(tmp_path / "ca.pem", tmp_path / f"{who}.pem" if who else None)
        for who in ("alice", "stranger", None)
    )
    found = (await ask(door.port, tls=alice)).json()
    assert (found["name"], found["kind"], found["userid"]) == ("alice", "tls", 1001)
    assert found["credential"].startswith("tls:")
    # one that is nobody's is none, and another credential beside it counts; a token comes first
    assert "name" not in (await ask(door.port, tls=stranger)).json()
    assert "name" not in (await ask(door.port, tls=nobody)).json()
    for tls in (alice, stranger, nobody):
        assert (await ask(door.port, bearer(text), tls=tls)).json()["name"] == "bob"
    # a revoked one is refused at once
    door.store.revoke(found["credential"], 1e12)
    assert (await ask(door.port, tls=alice)).status == 401


async def test_a_certificate_is_ambient_and_no_other_page_may_use_it(open_door, mutual, tmp_path):
    door = await open_door(mutual())
    alice = client_tls(tmp_path / "ca.pem", tmp_path / "alice.pem")
    socket = ["Upgrade: websocket", "Connection: Upgrade"]
    own = f"Origin: https://127.0.0.1:{door.port}"
    assert (await ask(door.port, "Origin: https://evil.example", *socket, tls=alice)).status == 403
    assert (await ask(door.port, "Sec-Fetch-Site: cross-site", tls=alice)).status == 403
    assert (await ask(door.port, own, "Sec-Fetch-Site: same-origin", *socket, tls=alice)).status == 200
    assert (await ask(door.port, tls=alice, host="rebound.example")).status == 403


async def test_a_certificate_of_two_users_is_refused(open_door, mutual, tmp_path):
    users = (ALICE, UserEntry(name="twin", userid=3, certificates=("DNS:alice.example",)))
    door = await open_door(mutual(users=users))
    alice = client_tls(tmp_path / "ca.pem", tmp_path / "alice.pem")
    assert (await ask(door.port, tls=alice)).status == 403


async def test_a_certificate_that_nobody_verified_proves_nothing(open_door, mutual, tmp_path):
    """Without client_cert the listener asks for none, and a client that has one sends none."""
    door = await open_door(mutual("off"))
    alice = client_tls(tmp_path / "ca.pem", tmp_path / "alice.pem")
    assert "name" not in (await ask(door.port, tls=alice)).json()


# ---------------------------------------------------------------- login

UPGRADE = ("Connection: Upgrade", "Upgrade: websocket")
FOR = "X-Forwarded-For: 192.0.2.7"
PROTO = "X-Forwarded-Proto: "


@for_each(
    ("plain", "upgrade"),
    [
        ((FOR, f"{PROTO}https"), (FOR, f"{PROTO}https")),  # nginx, Caddy, HAProxy
        ((FOR, f"{PROTO}https"), (FOR, f"{PROTO}wss")),  # Traefik
        ((FOR, f"{PROTO}HTTPS"), (FOR, f"{PROTO}http, WSS")),
        ((FOR, f"{PROTO}http"), (FOR, f"{PROTO}ws")),
        ((FOR, f"{PROTO}http"), (FOR,)),
    ],
)
async def test_a_login_by_way_of_a_proxy_counts_for_the_websocket_of_the_same_page(
    open_door, tmp_path_factory, plain, upgrade
):
    state = tmp_path_factory.mktemp("state")
    listen = ListenEntry(url="http://127.0.0.1:0", trusted_proxies=("127.0.0.1",))
    links = AccessSection(login_links="user", allowed_origins=("https://gate.example.org",))
    scheme = plain[1].removeprefix(PROTO).lower()
    for access in (links, AccessSection(login_links="user")):
        door = await open_door(settings_in(state, access=access, listen=listen))
        # a loopback listener is asked for by a name of this machine, or by one that is allowed
        host = "gate.example.org" if access is links and scheme == "https" else f"localhost:{door.port}"
        page = (f"Origin: {scheme}://{host}", "Sec-Fetch-Site: same-origin")
        value = (await log_in(door, *plain, *page, host=host)).header("Set-Cookie").split("; ")[0]
        assert value.startswith("__Host-") is (scheme == "https")
        found = await ask(door.port, *upgrade, *UPGRADE, *page, f"Cookie: {value}", host=host)
        assert (found.status, found.json().get("kind")) == (200, "cookie"), door.denied


async def test_a_login(open_door, state):
    door = await open_door(settings_in(state, access=OWNER))
    origin = f"Origin: http://127.0.0.1:{door.port}"
    answer = await log_in(door, origin)
    assert answer.json() == {"name": "owner"}
    value, *attributes = answer.header("Set-Cookie").split("; ")
    assert set(attributes) == {"HttpOnly", "Max-Age=43200", "Path=/", "SameSite=Strict"}
    name, _, cookie = value.partition("=")
    assert name == LOGIN_COOKIE.name
    found = (await ask(door.port, f"Cookie: {value}")).json()
    assert (found["name"], found["roles"], found["kind"]) == ("owner", ["owner"], "cookie")
    assert found["userid"] == os.geteuid()
    assert cookie not in json.dumps(found)
    # what changes something needs our own page
    assert (await ask(door.port, f"Cookie: {value}", origin, method="POST")).status == 200
    assert (await ask(door.port, f"Cookie: {value}", method="POST")).status == 403
    for other in ("http://evil.example", "null", f"http://localhost:{door.port}"):
        assert (await ask(door.port, f"Cookie: {value}", f"Origin: {other}", method="POST")).status == 403
    socket = ["Upgrade: websocket", "Connection: Upgrade", f"Cookie: {value}"]
    assert (await ask(door.port, *socket)).status == 403
    assert (await ask(door.port, *socket, origin)).status == 200
    answer = await ask(door.port, path="/v1/logout")
    assert f'{LOGIN_COOKIE.name}=""' in answer.header("Set-Cookie")
    assert "Max-Age=0" in answer.header("Set-Cookie")


async def test_a_login_needs_our_own_page(open_door, state):
    door = await open_door(settings_in(state, access=OWNER))
    secret = door.identity.logins.make_link()
    assert (await log_in(door, secret=secret)).status == 403
    assert (await log_in(door, "Origin: http://evil.example", secret=secret)).status == 403
    rebound = f"rebound.example:{door.port}"
    assert (await log_in(door, f"Origin: http://{rebound}", secret=secret, host=rebound)).status == 403
    assert (await log_in(door, f"Origin: http://127.0.0.1:{door.port}", secret=secret)).status == 200


async def test_the_owners_cookie_is_worthless_behind_a_proxy(open_door, state):
    """The proxy is on this machine, so the peer is: what it passes on comes from anywhere."""
    door = await open_door(settings_in(state, access=OWNER))
    origin = f"Origin: http://127.0.0.1:{door.port}"
    cookie = (await log_in(door, origin)).header("Set-Cookie").split("; ")[0]
    for header in ("X-Forwarded-For: 127.0.0.1", "Forwarded: for=127.0.0.1", "Via: 1.1 proxy"):
        assert (await ask(door.port, f"Cookie: {cookie}", header)).status == 403
        assert (await log_in(door, origin, header)).status == 403
    assert (await ask(door.port, f"Cookie: {cookie}", host="gate.example.org")).status == 403


async def test_over_https_the_cookie_is_bound_to_the_host(open_door, mutual, tmp_path):
    door = await open_door(mutual(access=OWNER))
    tls = client_tls(tmp_path / "ca.pem")
    answer = await log_in(door, f"Origin: https://127.0.0.1:{door.port}", tls=tls)
    value, *attributes = answer.header("Set-Cookie").split("; ")
    assert value.startswith(f"__Host-{LOGIN_COOKIE.name}=")
    assert {"Secure", "Path=/", "HttpOnly", "SameSite=Strict"} < set(attributes)
    assert not any(each.startswith("Domain") for each in attributes)
    assert (await ask(door.port, f"Cookie: {value}", tls=tls)).json()["name"] == "owner"
    # as a plain http page of the host could do
    planted = value.replace(f"__Host-{LOGIN_COOKIE.name}", LOGIN_COOKIE.name)
    assert "name" not in (await ask(door.port, f"Cookie: {planted}", tls=tls)).json()
