"""What every route has in common: credentials, origins, headers, problem bodies."""

import asyncio

import msgspec
import pytest

from tests.tables import for_each
from tests.unit.gateway.web.site import begin

GUARDED = [
    ("POST", "/v1/rpc/lab.who"),
    ("POST", "/v1/events/a.b"),
    ("GET", "/v1/events"),
    ("GET", "/v1/session"),
    ("POST", "/v1/logout"),
    ("GET", "/metrics"),
]


@for_each(("method", "path"), GUARDED)
async def test_a_credential_is_needed(site, method, path):
    answer = await site.request(method, path, None)
    assert answer.status == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert answer.content_type == "application/problem+json"
    answer = await site.request(method, path, None, headers={"Authorization": "Bearer nonsense"})
    assert answer.status == 401
    assert "nonsense" not in await answer.text()


@for_each("path", ["/livez", "/healthz", "/readyz", "/openapi.json", "/", "/login"])
async def test_what_anybody_may_see(site, path):
    answer = await site.get(path, None)
    assert answer.status == 200


@for_each("path", ["/", "/livez", "/v1/session", "/nothing/here"])
async def test_every_answer_has_the_security_headers(site, path):
    answer = await site.get(path)
    policy = answer.headers["Content-Security-Policy"]
    assert "default-src 'self'" in policy
    assert "connect-src 'self';" in policy
    assert "unsafe" not in policy
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Server"].startswith("headgate/")


@for_each(
    ("method", "path", "status"),
    [
        ("GET", "/nothing/here", 404),
        ("PUT", "/v1/session", 405),
        ("GET", "/v1/rpc/lab.who", 405),
        ("DELETE", "/", 405),
    ],
)
async def test_routes_that_are_not_there(site, method, path, status):
    answer = await site.request(method, path)
    assert answer.status == status
    assert answer.content_type == "application/problem+json"
    assert (status == 405) is ("Allow" in answer.headers)


async def test_without_a_dashboard_there_are_no_pages(open_site):
    site = await open_site("[gateway]\ndashboard = false\n")
    for path in ("/", "/login", "/client.js"):
        answer = await site.get(path)
        assert answer.status == 404
    answer = await site.get("/v1/session")
    assert answer.status == 200


# ---------------------------------------------------------------- origins

GRAFANA = "https://grafana.example.org"
ALLOWED = f'[access]\nallowed_origins = ["{GRAFANA}"]\n'


async def test_a_page_of_an_allowed_origin_may_read_the_answer(open_site):
    site = await open_site(ALLOWED)
    answer = await site.get("/v1/session", headers={"Origin": GRAFANA})
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == GRAFANA
    assert answer.headers["Access-Control-Allow-Credentials"] == "true"
    assert answer.headers["Vary"] == "Origin"
    asked = {"Origin": GRAFANA, "Access-Control-Request-Method": "POST"}
    answer = await site.request("OPTIONS", "/v1/rpc/lab.who", None, headers=asked)
    assert answer.status == 204
    assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]


async def test_an_app_of_an_allowed_origin_may_read_the_answer(open_site):
    site = await open_site('[access]\nallowed_origins = ["tauri://localhost"]\n')
    for origin, status in (("tauri://localhost", 200), ("tauri://other", 403), ("http://localhost", 403)):
        answer = await site.get("/v1/session", headers={"Origin": origin})
        assert (answer.status, answer.headers.get("Access-Control-Allow-Origin")) == (
            status,
            origin if status == 200 else None,
        )


@pytest.fixture
async def allowing(open_site):
    return await open_site(ALLOWED)


@for_each("origin", ["https://evil.example", "null", "https://grafana.example.org.evil.example"])
async def test_other_pages_may_not(allowing, origin):
    answer = await allowing.get("/v1/session", headers={"Origin": origin})
    assert answer.status == 403
    assert not [name for name in answer.headers if name.startswith("Access-Control-")]
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    answer = await allowing.request("OPTIONS", "/v1/rpc/lab.who", None, headers=asked)
    assert answer.status == 403


# ---------------------------------------------------------------- login

LINKS = '[access]\nlogin_links = "owner"\n'


async def logged_in(site):
    """Log in with a fresh link; the client keeps the cookie."""
    secret = site.gateway.identity.logins.make_link()
    answer = await site.post("/v1/login", None, json={"once": secret}, headers={"Origin": site.url})
    assert answer.status == 200, await answer.text()
    return answer.headers["Set-Cookie"], secret


async def test_a_link_logs_in_once(open_site):
    site = await open_site(LINKS)
    cookie, secret = await logged_in(site)
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    who = await site.get("/v1/session", None)
    assert (await who.json())["kind"] == "cookie"
    origin = {"Origin": site.url}
    again = await site.post("/v1/login", None, json={"once": secret}, headers=origin)
    assert again.status == 401


async def test_a_cookie_calls_from_its_own_page_only_and_ends(open_site):
    site = await open_site(LINKS)
    await logged_in(site)
    own = {"Origin": site.url}
    for headers, status in (({}, 403), ({"Origin": "https://evil.example"}, 403), (own, 200)):
        answer = await site.post("/v1/rpc/lab.who", None, headers=headers)
        assert answer.status == status
    answer = await site.post("/v1/logout", None, headers=own)
    assert answer.status == 204
    answer = await site.get("/v1/session", None)
    assert answer.status == 401


@pytest.fixture
async def linking(open_site):
    return await open_site(LINKS)


@for_each(
    ("sent", "status"),
    [
        (b"{}", 400),
        (b'{"once":1}', 400),
        (b'{"once":"wrong"}', 401),
        (b'{"once":"x","more":1}', 400),
        (b"", 415),
        (b"once=x", 400),
    ],
)
async def test_logins_that_are_refused(linking, sent, status):
    headers = {"Origin": linking.url, "Content-Type": "application/json"}
    answer = await linking.post("/v1/login", None, data=sent, headers=headers)
    assert answer.status == status
    assert "Set-Cookie" not in answer.headers


async def test_a_login_that_counts_no_more_is_none_and_can_be_taken_away(open_site):
    site = await open_site(LINKS)
    await logged_in(site)
    access = msgspec.structs.replace(site.gateway.settings.access, login_links="off")
    site.gateway.identity.logins._access = access
    answer = await site.get("/v1/session", None)
    assert answer.status == 401
    answer = await site.post("/v1/logout", None, headers={"Origin": "https://evil.example"})
    assert answer.status == 403
    assert "Set-Cookie" not in answer.headers
    answer = await site.post("/v1/logout", None, headers={"Origin": site.url})
    assert answer.status == 204
    assert 'headgate=""' in answer.headers["Set-Cookie"]
    assert "Max-Age=0" in answer.headers["Set-Cookie"]
    answer = await site.post("/v1/logout", None, headers={"Origin": site.url})
    assert answer.status == 401


async def test_a_token_is_not_ended_by_logging_out(site):
    answer = await site.post("/v1/logout")
    assert answer.status == 400


# ---------------------------------------------------------------- health and the end


@for_each("path", ["/livez", "/healthz", "/readyz"])
async def test_health_can_be_asked_without_a_body(site, path):
    answer = await site.request("HEAD", path, None)
    assert answer.status == 200
    assert await answer.read() == b""


INNER = '[gateway]\nmetrics_listen = "unix:///run/inner.sock"\n'


async def without_upstream(site, rundir):
    """Take the broker away; whatever the gateway tells of it names its directory."""
    await site.live.broker.stop()
    while site.gateway.upstream.joined:
        await asyncio.sleep(0.01)
    site.gateway.upstream.reason = f"connect {rundir}: no such file"


async def test_readiness_follows_the_upstream_and_liveness_does_not(open_site, aiohttp_client, rundir):
    site = await open_site(INNER)
    await without_upstream(site, rundir)
    wrong = {"Authorization": "Bearer wrong"}
    for user, headers, full in (
        (None, {}, False),
        (None, wrong, False),
        ("bob", {}, False),
        ("eve", {}, True),
        ("ada", {}, True),
    ):
        answer = await site.get("/readyz", user, headers=headers)
        assert answer.status == 503
        reason = (await answer.json())["reason"]
        assert (str(rundir) in reason) is full
        assert full or reason == "upstream is away"
    inner = await aiohttp_client(site.gateway.apps[-1])
    assert str(rundir) in (await (await inner.get("/readyz")).json())["reason"]
    assert (await site.get("/livez", None)).status == 200


async def test_off_loopback_the_inner_listener_has_figures_and_no_reasons(open_site, aiohttp_client, rundir):
    site = await open_site('[gateway]\nmetrics_listen = "http://0.0.0.0:0"\nmetrics_insecure = true\n')
    await without_upstream(site, rundir)
    inner = await aiohttp_client(site.gateway.apps[-1])
    answer = await inner.get("/readyz")
    assert answer.status == 503
    assert (await answer.json())["reason"] == "upstream is away"
    answer = await inner.get("/metrics")
    assert answer.status == 200
    assert "headgate_gateway_upstream_joined 0\n" in await answer.text()


async def test_the_inner_listener_asks_nobody_who_he_is(open_site, aiohttp_client):
    inner = await aiohttp_client((await open_site(INNER)).gateway.apps[-1])
    for path, status in (("/metrics", 200), ("/livez", 200), ("/readyz", 200), ("/v1/session", 404)):
        assert (await inner.get(path)).status == status


async def test_a_leaving_gateway_is_not_ready(open_site, aiohttp_client):
    site = await open_site(INNER)
    await site.gateway.drain()
    inner = await aiohttp_client(site.gateway.apps[-1])
    answer = await inner.get("/readyz")
    assert answer.status == 503
    assert (await answer.json())["status"] == "leaving"
    assert (await inner.get("/livez")).status == 200


async def test_a_leaving_gateway_lets_calls_finish_and_takes_no_more(open_site):
    site = await open_site("[gateway]\ndrain_s = 5\n")
    gateway = site.gateway
    call = begin(site.post("/v1/rpc/lab.count?stream=1", json={"to": 5_000}))
    while not gateway.sessions.by_id:
        await asyncio.sleep(0)
    drain = begin(gateway.drain())
    answer = await call
    body_read = await answer.read()
    assert body_read.endswith(b'{"end":true}\n')
    await drain
    assert gateway.front.draining


@for_each(
    ("host", "status"),
    [
        ("localhost", 200),
        ("127.0.0.1:9100", 200),
        ("[::1]:1", 200),
        ("evil.example", 403),
        ("evil.example:9100", 403),
    ],
)
async def test_figures_without_login_are_not_for_pages_of_another_name(inner, host, status):
    """DNS rebinding: a page whose name resolves to 127.0.0.1 would read them."""
    for path in ("/metrics", "/livez"):
        assert (await inner.get(path, headers={"Host": host})).status == status


@pytest.fixture
async def inner(open_site, aiohttp_client):
    site = await open_site('[gateway]\nmetrics_listen = "http://127.0.0.1:0"\n')
    return await aiohttp_client(site.gateway.apps[-1])
