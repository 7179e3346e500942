"""What every route has in common: credentials, origins, headers, problem bodies."""

import asyncio
import logging
import socket

import aiohttp
import msgspec
import pytest

from tests.live.gateways import run
from tests.unit.gateway.web.site import begin, site

GUARDED = [
    ("POST", "/v1/rpc/lab.who"),
    ("POST", "/v1/events/a.b"),
    ("GET", "/v1/events"),
    ("GET", "/v1/session"),
    ("POST", "/v1/logout"),
    ("GET", "/metrics"),
]


@pytest.mark.parametrize(("method", "path"), GUARDED)
def test_a_credential_is_needed(method, path):
    async def body(folder):
        async with site(folder) as it:
            async with it.ask(method, path, None) as answer:
                assert answer.status == 401
                assert answer.headers["WWW-Authenticate"].startswith("Bearer")
                assert answer.content_type == "application/problem+json"
            async with it.ask(method, path, None, headers={"Authorization": "Bearer nonsense"}) as answer:
                assert answer.status == 401
                assert "nonsense" not in await answer.text()

    run(body)


@pytest.mark.parametrize("path", ["/livez", "/healthz", "/readyz", "/openapi.json", "/", "/login"])
def test_what_anybody_may_see(path):
    async def body(folder):
        async with site(folder) as it, it.get(path, None) as answer:
            assert answer.status == 200

    run(body)


@pytest.mark.parametrize("path", ["/", "/livez", "/v1/session", "/nothing/here"])
def test_every_answer_has_the_security_headers(path):
    async def body(folder):
        async with site(folder) as it, it.get(path) as answer:
            policy = answer.headers["Content-Security-Policy"]
            assert "default-src 'self'" in policy
            assert "unsafe" not in policy
            assert answer.headers["X-Content-Type-Options"] == "nosniff"
            assert answer.headers["Referrer-Policy"] == "no-referrer"
            assert answer.headers["Server"].startswith("headgate/")

    run(body)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/nothing/here", 404),
        ("PUT", "/v1/session", 405),
        ("GET", "/v1/rpc/lab.who", 405),
        ("DELETE", "/", 405),
    ],
)
def test_routes_that_are_not_there(method, path, status):
    async def body(folder):
        async with site(folder) as it, it.ask(method, path) as answer:
            assert answer.status == status
            assert answer.content_type == "application/problem+json"
            assert (status == 405) is ("Allow" in answer.headers)

    run(body)


def test_without_a_dashboard_there_are_no_pages():
    async def body(folder):
        async with site(folder, "[gateway]\ndashboard = false\n") as it:
            for path in ("/", "/login", "/client.js"):
                async with it.get(path) as answer:
                    assert answer.status == 404
            async with it.get("/v1/session") as answer:
                assert answer.status == 200

    run(body)


# ---------------------------------------------------------------- origins

GRAFANA = "https://grafana.example.org"
ALLOWED = f'[access]\nallowed_origins = ["{GRAFANA}"]\n'


def test_a_page_of_an_allowed_origin_may_read_the_answer():
    async def body(folder):
        async with site(folder, ALLOWED) as it:
            async with it.get("/v1/session", headers={"Origin": GRAFANA}) as answer:
                assert answer.status == 200
                assert answer.headers["Access-Control-Allow-Origin"] == GRAFANA
                assert "Access-Control-Allow-Credentials" not in answer.headers
            asked = {"Origin": GRAFANA, "Access-Control-Request-Method": "POST"}
            async with it.ask("OPTIONS", "/v1/rpc/lab.who", None, headers=asked) as answer:
                assert answer.status == 204
                assert "Authorization" in answer.headers["Access-Control-Allow-Headers"]

    run(body)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "null", "https://grafana.example.org.evil.example"]
)
def test_other_pages_may_not(origin):
    async def body(folder):
        async with site(folder, ALLOWED) as it:
            async with it.get("/v1/session", headers={"Origin": origin}) as answer:
                assert answer.status == 403
                assert "Access-Control-Allow-Origin" not in answer.headers
            asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
            async with it.ask("OPTIONS", "/v1/rpc/lab.who", None, headers=asked) as answer:
                assert answer.status == 403

    run(body)


# ---------------------------------------------------------------- login

LINKS = '[access]\nlogin_links = "owner"\n'


async def logged_in(it):
    """Log in with a fresh link; the client keeps the cookie."""
    page, _, secret = it.live.gateway.login_link().partition("#once=")
    assert page == f"{it.live.url}/login"
    origin = {"Origin": it.live.url}
    async with it.post("/v1/login", None, json={"once": secret}, headers=origin) as answer:
        assert answer.status == 200, await answer.text()
        return answer.headers["Set-Cookie"], secret


def test_a_link_logs_in_once():
    async def body(folder):
        async with site(folder, LINKS) as it:
            cookie, secret = await logged_in(it)
            assert "HttpOnly" in cookie
            assert "SameSite=Strict" in cookie
            async with it.get("/v1/session", None) as who:
                assert (await who.json())["kind"] == "cookie"
            origin = {"Origin": it.live.url}
            async with it.post("/v1/login", None, json={"once": secret}, headers=origin) as again:
                assert again.status == 401

    run(body)


def test_a_cookie_calls_from_its_own_page_only_and_ends():
    async def body(folder):
        async with site(folder, LINKS) as it:
            await logged_in(it)
            own = {"Origin": it.live.url}
            for headers, status in (({}, 403), ({"Origin": "https://evil.example"}, 403), (own, 200)):
                async with it.post("/v1/rpc/lab.who", None, headers=headers) as answer:
                    assert answer.status == status
            async with it.post("/v1/logout", None, headers=own) as answer:
                assert answer.status == 204
            async with it.get("/v1/session", None) as answer:
                assert answer.status == 401

    run(body)


@pytest.mark.parametrize(
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
def test_logins_that_are_refused(sent, status):
    async def body(folder):
        async with site(folder, LINKS) as it:
            headers = {"Origin": it.live.url, "Content-Type": "application/json"}
            async with it.post("/v1/login", None, data=sent, headers=headers) as answer:
                assert answer.status == status
                assert "Set-Cookie" not in answer.headers

    run(body)


def test_a_login_that_counts_no_more_is_none_and_can_be_taken_away():
    async def body(folder):
        async with site(folder, LINKS) as it:
            await logged_in(it)
            access = msgspec.structs.replace(it.live.gateway.settings.access, login_links="off")
            it.live.gateway.identity.logins._access = access
            async with it.get("/v1/session", None) as answer:
                assert answer.status == 401
            async with it.post("/v1/logout", None, headers={"Origin": "https://evil.example"}) as answer:
                assert answer.status == 403
                assert "Set-Cookie" not in answer.headers
            async with it.post("/v1/logout", None, headers={"Origin": it.live.url}) as answer:
                assert answer.status == 204
                assert 'headgate=""' in answer.headers["Set-Cookie"]
                assert "Max-Age=0" in answer.headers["Set-Cookie"]
            async with it.post("/v1/logout", None, headers={"Origin": it.live.url}) as answer:
                assert answer.status == 401

    run(body)


def test_a_token_is_not_ended_by_logging_out():
    async def body(folder):
        async with site(folder) as it, it.post("/v1/logout") as answer:
            assert answer.status == 400

    run(body)


# ---------------------------------------------------------------- health and the end


@pytest.mark.parametrize("path", ["/livez", "/healthz", "/readyz"])
def test_health_can_be_asked_without_a_body(path):
    async def body(folder):
        async with site(folder) as it, it.ask("HEAD", path, None) as answer:
            assert answer.status == 200
            assert await answer.read() == b""

    run(body)


def test_readiness_follows_the_upstream_and_liveness_does_not():
    async def body(folder):
        inner = folder / "inner.sock"
        async with site(folder, f'[gateway]\nmetrics_listen = "unix://{inner}"\n') as it:
            await it.live.broker.stop()
            while it.live.gateway.upstream.joined:
                await asyncio.sleep(0.01)
            it.live.gateway.upstream.reason = f"connect {folder}: no such file"
            wrong = {"Authorization": "Bearer wrong"}
            for user, headers, full in (
                (None, {}, False),
                (None, wrong, False),
                ("bob", {}, False),
                ("eve", {}, True),
                ("ada", {}, True),
            ):
                async with it.get("/readyz", user, headers=headers) as answer:
                    assert answer.status == 503
                    reason = (await answer.json())["reason"]
                    assert (str(folder) in reason) is full
                    assert full or reason == "upstream is away"
            async with (
                aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(inner))) as http,
                http.get("http://localhost/readyz") as answer,
            ):
                assert str(folder) in (await answer.json())["reason"]
            async with it.get("/livez", None) as answer:
                assert answer.status == 200

    run(body)


def test_off_loopback_the_inner_listener_has_figures_and_no_reasons():
    async def body(folder):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        inner = f'[gateway]\nmetrics_listen = "http://0.0.0.0:{port}"\nmetrics_insecure = true\n'
        async with site(folder, inner) as it:
            await it.live.broker.stop()
            while it.live.gateway.upstream.joined:
                await asyncio.sleep(0.01)
            it.live.gateway.upstream.reason = f"connect {folder}: no such file"
            async with it.http.get(f"http://127.0.0.1:{port}/readyz") as answer:
                assert answer.status == 503
                assert (await answer.json())["reason"] == "upstream is away"
            async with it.http.get(f"http://127.0.0.1:{port}/metrics") as answer:
                assert answer.status == 200
                assert "headgate_gateway_upstream_joined 0.0" in await answer.text()

    run(body)


def test_a_leaving_gateway_is_not_ready():
    async def body(folder):
        path = folder / "inner.sock"
        async with site(folder, f'[gateway]\nmetrics_listen = "unix://{path}"\n') as it:
            await it.live.gateway.drain()
            async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as http:
                async with http.get("http://localhost/readyz") as answer:
                    assert answer.status == 503
                    assert (await answer.json())["status"] == "leaving"
                async with http.get("http://localhost/livez") as answer:
                    assert answer.status == 200
            with pytest.raises(aiohttp.ClientConnectorError):
                await it.get("/livez")

    run(body)


def test_the_access_log_has_no_query(caplog):
    async def body(folder):
        caplog.set_level(logging.DEBUG, "headgate")
        async with site(folder) as it, it.get("/livez?token=hgt_secret") as answer:
            assert answer.status == 200
        assert "GET /livez 200" in caplog.text
        assert "secret" not in caplog.text
        assert it.live.tokens["ada"] not in caplog.text

    run(body)


def test_a_leaving_gateway_lets_calls_finish_and_takes_no_more():
    async def body(folder):
        async with site(folder, "[gateway]\ndrain_s = 5\n") as it:
            gateway = it.live.gateway
            call = begin(it.post("/v1/rpc/lab.count?stream=1", json={"to": 50_000}).__aenter__())
            while not gateway.hub.sessions:
                await asyncio.sleep(0)
            drain = begin(gateway.drain())
            answer = await call
            body_read = await answer.read()
            assert body_read.endswith(b'{"end":true}\n')
            await drain
            assert gateway.front.draining

    run(body)
