"""Logging in over HTTP: at a provider, with a token; the cookies and pages that a browser gets to see."""

import time
from http.cookies import SimpleCookie

import aiohttp
import pytest

from gateway.identity.authenticate import BURST
from gateway.identity.jwt import TOKEN_CHARS
from tests.tables import for_each
from tests.unit.gateway.identity.authority import public_pem
from tests.unit.gateway.identity.idp import Idp
from tests.unit.gateway.identity.issuer import AUDIENCE, ISSUER, KEYS, signed

OIDC = """
[[oidc]]
name = "{name}"
title = "Example <Corp>"
issuer = "{issuer}"
client_id = "headgate"
url = "http://127.0.0.1:8280"
user_prefix = "{prefix}"
[[oidc.groups]]
group = "ops"
roles = ["admin"]
"""
BEGIN, BACK = "/v1/login/oidc/corp", "/v1/login/oidc/corp/callback"


@pytest.fixture
async def idp(aiohttp_server):
    made = Idp(time.time)
    await made.serve(aiohttp_server)
    return made


@pytest.fixture
async def corp(open_site, idp):
    """A gateway whose people log in at a provider."""
    return await open_site(OIDC.format(name="corp", issuer=idp.issuer, prefix="corp:"))


def cookies_of(answer):
    return {
        name: morsel
        for said in answer.headers.getall("Set-Cookie", [])
        for name, morsel in SimpleCookie(said).items()
    }


async def begun(site):
    """Where the browser is sent, and what it has to bring back."""
    answer = await site.get(BEGIN, None, allow_redirects=False)
    assert answer.status == 303, await answer.text()
    return answer.headers["Location"], cookies_of(answer)["headgate-begun"].value


async def back(site, query, cookie, path=BACK):
    return await site.get(path, None, params=query, headers={"Cookie": f"headgate-begun={cookie}"})


async def logged_in(site, idp):
    """The cookie of a login at the provider."""
    url, cookie = await begun(site)
    answer = await back(site, idp.approve(url), cookie)
    assert answer.status == 200, await answer.text()
    return cookies_of(answer)["headgate"].value


async def who(site, cookie):
    site.client.session.cookie_jar.clear()  # the cookie that is asked about, and no other
    answer = await site.get("/v1/session", None, headers={"Cookie": f"headgate={cookie}"})
    return await answer.json() if answer.status == 200 else answer.status


# ---------------------------------------------------------------- at a provider

FIRST_OF_ALICE = 4090580080
"""The first userid that is tried for corp:alice, for good."""


async def test_the_page_can_know_the_ways(corp):
    answer = await corp.get("/v1/login", None)
    assert await answer.json() == {"oidc": [{"name": "corp", "title": "Example <Corp>"}], "links": False}
    corp.gateway.identity.user_logins.providers.by_name.clear()
    assert await (await corp.get("/v1/login", None)).json() == {"oidc": [], "links": False}


async def test_who_comes_from_a_provider_has_the_roles_of_its_groups(corp, idp):
    said = await who(corp, await logged_in(corp, idp))
    assert (said["user"], said["userid"]) == ("corp:alice", FIRST_OF_ALICE)
    assert (said["roles"], said["kind"], said["login"]) == (["user", "admin"], "cookie", "oidc:corp")
    assert 0 < said["expires"] - time.time() <= 43200


async def test_a_user_of_the_settings_is_who_it_is_there(open_site, idp):
    idp.claims = {"sub": "bob"}
    site = await open_site(OIDC.format(name="corp", issuer=idp.issuer, prefix=""))
    said = await who(site, await logged_in(site, idp))
    assert (said["user"], said["userid"], said["roles"]) == ("bob", 1002, ["user"])


async def test_who_is_in_no_group_stays_outside(corp, idp):
    idp.claims = {"groups": ["others"]}
    url, cookie = await begun(corp)
    answer = await back(corp, idp.approve(url), cookie)
    assert answer.status == 403
    assert "this user has no role here" in await answer.text()
    assert "headgate" not in cookies_of(answer)
    assert corp.gateway.store.reading("SELECT count(*) FROM logins") == [(0,)]


async def test_the_cookies(corp, idp):
    answer = await corp.get(BEGIN, None, allow_redirects=False)
    one = cookies_of(answer)["headgate-begun"]
    assert (one["httponly"], one["samesite"], one["secure"], one["max-age"]) == (True, "Lax", "", "600")
    assert answer.headers["Cache-Control"] == "no-store"
    answer = await back(corp, idp.approve(answer.headers["Location"]), one.value)
    found = cookies_of(answer)
    assert (found["headgate-begun"].value, found["headgate-begun"]["max-age"]) == ("", "0")
    login = found["headgate"]
    assert (login["httponly"], login["samesite"], login["secure"]) == (True, "Strict", "")
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert 'http-equiv="refresh" content="0; url=../../../../"' in await answer.text()


async def test_over_https_cookies_are_of_this_host_alone(open_site, idp):
    listen = '[[listen]]\nurl = "http://127.0.0.1:8280"\ntrusted_proxies = ["127.0.0.0/8"]\n'
    oidc = OIDC.format(name="corp", issuer=idp.issuer, prefix="").replace(
        "http://127.0.0.1:8280", "https://gate.example"
    )
    site = await open_site(listen + oidc)
    answer = await site.get(BEGIN, None, allow_redirects=False)
    assert answer.status == 400
    assert "this gateway is to be reached at https://gate.example" in await answer.text()
    site.gateway.identity.listeners.opened(site.gateway.settings.listen[0], ("127.0.0.1", site.client.port))
    headers = {"X-Forwarded-Proto": "https", "X-Forwarded-For": "192.0.2.7", "Host": "gate.example"}
    # a listener of the loopback takes ambient credentials for its own names alone
    site.gateway.identity.origins._names.add("gate.example")
    answer = await site.get(BEGIN, None, headers=headers, allow_redirects=False)
    one = cookies_of(answer)["__Host-headgate-begun"]
    assert (one["secure"], one["path"], one["domain"]) == (True, "/", "")
    query = idp.approve(answer.headers["Location"])
    plain = await site.get(
        BACK, None, params=query, headers={**headers, "Cookie": f"headgate-begun={one.value}"}
    )
    assert plain.status == 400, "a cookie that a plain page could have planted"
    cookie = f"__Host-headgate-begun={one.value}"
    answer = await site.get(BACK, None, params=query, headers={**headers, "Cookie": cookie})
    assert cookies_of(answer)["__Host-headgate"]["secure"] is True


@pytest.mark.parametrize("headers", [{"Sec-Fetch-Site": "cross-site"}, {"Origin": "https://evil.example"}])
async def test_another_site_begins_no_login(corp, headers):
    answer = await corp.get(BEGIN, None, headers=headers, allow_redirects=False)
    assert answer.status == 403
    assert "Location" not in answer.headers


async def test_a_victim_is_not_logged_in_as_the_attacker(corp, idp):
    """Login CSRF: the attacker's own answer, opened in the browser of somebody else."""
    url, _cookie = await begun(corp)
    query = idp.approve(url)
    _url, victims = await begun(corp)
    for cookie in (victims, "", "x"):
        answer = await back(corp, query, cookie)
        assert answer.status == 400
        assert "headgate" not in cookies_of(answer)
    assert "not begun in this browser" in await answer.text()


@for_each("more", ["next=https://evil.example", "redirect_uri=https://evil.example/", "url=//evil.example"])
async def test_nothing_of_a_request_says_where_to_go(corp, idp, more):
    answer = await corp.get(f"{BEGIN}?{more}", None, allow_redirects=False, headers={"Host": "127.0.0.1:1"})
    place = answer.headers["Location"]
    assert place.startswith(f"{idp.issuer}/authorize?")
    assert "evil" not in place
    cookie = cookies_of(answer)["headgate-begun"].value
    answer = await back(corp, {**idp.approve(place), **dict([more.split("=", 1)])}, cookie)
    assert answer.status == 200
    assert "evil" not in await answer.text() + str(answer.headers)


async def test_a_name_that_is_given_twice_is_none(corp, idp):
    url, cookie = await begun(corp)
    query = idp.approve(url)
    answer = await back(corp, [*query.items(), ("state", "another")], cookie)
    assert answer.status == 400


async def test_a_page_says_who_is_away_and_how_to_go_on(corp, idp):
    idp.metadata["issuer"] = "https://evil.example"
    answer = await corp.get(BEGIN, None, allow_redirects=False)
    text = await answer.text()
    assert (answer.status, answer.headers["Retry-After"]) == (503, "5")
    assert (
        "Logging in with Example &lt;Corp&gt; did not work: Example &lt;Corp&gt; does not answer now." in text
    )
    assert '<a href="../../../v1/login/oidc/corp">Try again</a>' in text
    assert '<a href="../../../">Other ways to log in</a>' in text
    assert "evil" not in text


async def test_who_asks_for_a_provider_that_is_away_again_and_again_fills_no_log(corp, idp, caplog):
    idp.metadata["issuer"] = "https://evil.example"
    said = {(await corp.get(BEGIN, None, allow_redirects=False)).status for _ in range(2 * BURST)}
    assert said == {503}
    lines = [each for each in caplog.messages if each.startswith("cannot check a credential")]
    assert 0 < len(lines) < 2 * BURST
    assert corp.gateway.identity.attempts.failed == 0


async def test_a_page_repeats_nothing_of_its_address(corp, idp):
    url, cookie = await begun(corp)
    evil = "<script>alert(1)</script>"
    query = idp.approve(url, code=None, error=evil, error_description=evil)
    answer = await back(corp, query, cookie)
    assert answer.status == 400
    assert "script" not in await answer.text()
    answer = await corp.get(f"/v1/login/oidc/{evil.replace('/', '')}", None)
    assert (answer.status, "script" in await answer.text()) == (404, False)


async def test_a_login_ends_with_its_provider(corp, idp):
    cookie = await logged_in(corp, idp)
    corp.gateway.identity.user_logins.providers.by_name.clear()
    assert await who(corp, cookie) == 401


async def test_answers_that_are_wrong_count_as_refused_credentials(corp):
    before = corp.gateway.identity.attempts.failed
    for _ in range(12):
        answer = await back(corp, {"state": "x"}, "x")
    assert corp.gateway.identity.attempts.failed == before + 12
    assert answer.status == 429


# ---------------------------------------------------------------- with a token


async def exchanged(site, token, **headers):
    return await site.post("/v1/login", None, json={"token": token}, headers={"Origin": site.url, **headers})


async def test_a_token_becomes_a_cookie(site):
    answer = await exchanged(site, site.live.tokens["bob"])
    said = await answer.json()
    assert (said["user"], said["roles"], said["kind"]) == ("bob", ["user"], "cookie")
    assert said["login"].startswith("token:")
    cookie = cookies_of(answer)["headgate"]
    assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
    assert await who(site, cookie.value) == said
    assert site.live.tokens["bob"] not in str(answer.headers)


@for_each("origin", [None, "https://evil.example", "null"])
async def test_another_sites_page_logs_nobody_in(site, origin):
    headers = {} if origin is None else {"Origin": origin}
    answer = await site.post("/v1/login", None, json={"token": site.live.tokens["bob"]}, headers=headers)
    assert answer.status == 403
    assert not cookies_of(answer)


@for_each("body", [{}, {"once": "x", "token": "y"}, {"once": None}, {"token": 7}, {"tokens": "x"}])
async def test_bodies_that_are_none(site, body):
    answer = await site.post("/v1/login", None, json=body, headers={"Origin": site.url})
    assert answer.status == 400


@for_each("token", ["", "hgt_0123456789ab_x", "a.b.c"])
async def test_a_wrong_token(site, token):
    answer = await exchanged(site, token)
    assert (answer.status, cookies_of(answer)) == (401, {})


async def test_the_login_ends_when_its_token_is_removed(site):
    cookie = cookies_of(await exchanged(site, site.live.tokens["bob"]))["headgate"].value
    site.gateway.identity.tokens.remove(lambda token: token.user == "bob")
    assert await who(site, cookie) == 401


async def test_the_login_ends_when_its_token_is_revoked(site):
    answer = await exchanged(site, site.live.tokens["bob"])
    token = (await answer.json())["login"]
    site.gateway.store.revoke(token, time.time() + 60)
    assert await who(site, cookies_of(answer)["headgate"].value) == 401
    site.gateway.store.restore(token)
    assert (await who(site, cookies_of(answer)["headgate"].value))["user"] == "bob"


async def test_the_login_ends_with_its_token_at_the_latest(site):
    until = time.time() + 100
    _entry, text = site.gateway.identity.tokens.add("bob", now=0.0, expires=until)
    answer = await exchanged(site, text)
    assert (await answer.json())["expires"] == until
    assert int(cookies_of(answer)["headgate"]["max-age"]) <= 101


async def test_logging_out_ends_the_login_and_not_the_token(site):
    cookie = cookies_of(await exchanged(site, site.live.tokens["bob"]))["headgate"].value
    headers = {"Origin": site.url, "Cookie": f"headgate={cookie}"}
    assert (await site.post("/v1/logout", None, headers=headers)).status == 204
    assert await who(site, cookie) == 401
    assert (await site.get("/v1/session", "bob")).status == 200


async def test_logins_of_one_user_are_bounded(site, monkeypatch):
    monkeypatch.setattr("gateway.identity.login.LOGINS_OF_USER", 2)
    other = cookies_of(await exchanged(site, site.live.tokens["ada"]))["headgate"].value
    made = [cookies_of(await exchanged(site, site.live.tokens["bob"]))["headgate"].value for _ in range(3)]
    assert [await who(site, each) == 401 for each in (*made, other)] == [True, False, False, False]


@pytest.mark.parametrize("trusted", [True, False])
async def test_a_jwt_becomes_a_cookie(open_site, tmp_path, trusted):
    (tmp_path / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
    site = await open_site(
        f'[jwt]\nkeys = ["{tmp_path}/key.pem"]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'
        f"trust_claims = {str(trusted).lower()}\n"
    )
    answer = await exchanged(site, signed(sub="carol", userid=1234, roles=["user"], exp=time.time() + 60))
    assert answer.status == (200 if trusted else 403)
    if trusted:
        said = await who(site, cookies_of(answer)["headgate"].value)
        assert (said["user"], said["userid"], said["roles"], said["login"]) == (
            "carol",
            1234,
            ["user"],
            "jwt:1",
        )
        assert said["expires"] < time.time() + 61
    answer = await exchanged(site, signed(sub="bob"))
    assert (await answer.json())["userid"] == 1002


async def test_a_token_may_be_as_large_wherever_it_is_shown(open_site, tmp_path):
    (tmp_path / "key.pem").write_bytes(public_pem(KEYS["EdDSA"]))
    site = await open_site(
        f'[jwt]\nkeys = ["{tmp_path}/key.pem"]\nissuer = "{ISSUER}"\naudience = "{AUDIENCE}"\n'
    )
    room = TOKEN_CHARS - len(signed(sub="bob", groups=""))
    largest, larger = (signed(sub="bob", groups="x" * (room * 3 // 4 + more)) for more in (-8, 8))
    assert len(larger) > TOKEN_CHARS >= len(largest) > TOKEN_CHARS - 32
    for token, status, said in ((largest, 200, "welcome"), (larger, 401, "error")):
        assert (await exchanged(site, token)).status == status
        site.client.session.cookie_jar.clear()
        async with site.client.ws_connect(
            "/v1/ws", protocols=["flux.v1"], headers={"Origin": site.url}
        ) as socket:
            await socket.send_json({"type": "auth", "token": token})
            answer = await socket.receive_json()
            assert (answer["type"], answer.get("code", 4500)) == (said, 4500)
    answer = await exchanged(site, "x" * 2**14)
    assert (answer.status, "limits.preauth_bytes" in (await answer.json())["text"]) == (413, True)


# ---------------------------------------------------------------- where am I logged in


async def rpc(site, topic, payload, cookie):
    site.client.session.cookie_jar.clear()
    headers = {"Origin": site.url, "Cookie": f"headgate={cookie}"}
    answer = await site.post(f"/v1/rpc/gateway.{topic}", None, json=payload, headers=headers)
    return (await answer.json()) | {"status": answer.status}


async def cookie_for(site, user):
    return cookies_of(await exchanged(site, site.live.tokens[user]))["headgate"].value


async def test_everybody_sees_the_own_logins_and_the_owner_all(site):
    bobs = [await cookie_for(site, "bob") for _ in range(2)]
    ada, eve = await cookie_for(site, "ada"), await cookie_for(site, "eve")
    rows = (await rpc(site, "logins", {}, bobs[0]))["logins"]
    assert [(row["user"], row["own"], row["current"]) for row in rows] == [
        ("bob", True, False),
        ("bob", True, True),
    ]
    assert all(row["from"].startswith("token:") and row["since"] < row["expires"] for row in rows)
    assert {row["user"] for row in (await rpc(site, "logins", {}, eve))["logins"]} == {"eve"}
    rows = (await rpc(site, "logins", {}, ada))["logins"]
    assert sorted((row["user"], row["own"]) for row in rows) == [
        ("ada", True), ("bob", False), ("bob", False), ("eve", False),
    ]  # fmt: skip
    assert not any(secret in str(rows) for secret in (*bobs, ada, eve))


async def test_logging_out_everywhere_ends_the_own_logins_alone(site):
    bobs = [await cookie_for(site, "bob") for _ in range(2)]
    eve = await cookie_for(site, "eve")
    assert await rpc(site, "logout", {"everywhere": True}, bobs[0]) == {"ended": 2, "status": 200}
    assert [await who(site, each) for each in bobs] == [401, 401]
    assert (await who(site, eve))["user"] == "eve"


async def test_one_login_is_ended_by_its_user_or_the_owner(site):
    bob, eve, ada = [await cookie_for(site, user) for user in ("bob", "eve", "ada")]
    (row,) = (await rpc(site, "logins", {}, bob))["logins"]
    assert (await rpc(site, "logout", {"login": row["login"]}, eve))["name"] == "ENOENT"
    assert (await rpc(site, "logout", {"user": "bob"}, eve))["name"] == "EPERM"
    assert (await who(site, bob))["user"] == "bob"
    assert (await rpc(site, "logout", {"login": row["login"]}, bob))["ended"] == 1
    assert await who(site, bob) == 401
    assert (await rpc(site, "logout", {"user": "eve"}, ada))["ended"] == 1
    assert await who(site, eve) == 401


@for_each("payload", [{}, {"everywhere": False}, {"login": 7}, {"login": "x", "everywhere": True}])
async def test_what_is_no_logout(site, payload):
    assert (await rpc(site, "logout", payload, await cookie_for(site, "bob")))["name"] == "EPROTO"


async def test_guests_by_a_link_are_no_one_person(open_site):
    site = await open_site('[access]\nlogin_links = "user"\n')
    made = []
    for _ in range(2):
        secret = site.gateway.identity.logins.make_link()
        answer = await site.post("/v1/login", None, json={"once": secret}, headers={"Origin": site.url})
        made.append(cookies_of(answer)["headgate"].value)
        site.client.session.cookie_jar.clear()
    assert len((await rpc(site, "logins", {}, made[0]))["logins"]) == 1
    assert (await rpc(site, "logout", {"everywhere": True}, made[0]))["ended"] == 1
    assert [await who(site, made[0]), (await who(site, made[1]))["user"]] == [401, "guest"]


async def test_live_sessions_end_with_their_login(open_live):
    """The same in every worker process: each asks the shared store once a second."""
    running = await open_live()
    async with aiohttp.ClientSession() as browser:
        body = {"token": running.tokens["bob"]}
        answer = await browser.post(f"{running.url}/v1/login", json=body, headers={"Origin": running.url})
        cookie = cookies_of(answer)["headgate"].value
        headers = {"Cookie": f"headgate={cookie}", "Origin": running.url}
    async with (
        aiohttp.ClientSession() as page,
        page.ws_connect(f"{running.url}/v1/ws", protocols=["flux.v1.json"], headers=headers) as socket,
    ):
        assert (await socket.receive_json())["type"] == "welcome"
        identity = running.gateway.identity
        identity.logins.end_all(identity.logins.of(None))
        identity.poll()
        running.gateway.sessions.revoked()
        assert (await socket.receive_json())["code"] == 4506
