"""A gateway as a process, attacked over raw sockets: paths that lead out, pages of others, names that only resolve to
this machine, login links used again, requests inside requests.

What the rules of origins, cookies and links are is tested rule by rule in ``tests/unit/gateway``; here they are tried
together, on the real thing, by whoever may write any bytes.
"""

import concurrent.futures
import json
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.attached import attached
from tests.live.brokers import one_broker
from tests.live.gateways import USERS, gateway_process
from tests.live.rawweb import HANDSHAKE, Said, Web
from tests.tables import for_each
from tests.unit.gateway.websocket.house import masked

pytestmark = pytest.mark.story

CANARY = "canary-5f0c21aa"
"""Stands in every file that must not be served."""
LINKS = USERS.replace(
    "[access]", '[access]\nlogin_links = "owner"\nallowed_origins = ["https://grafana.example.org"]'
)
EVIL = "https://evil.example"


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    rundir = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    try:
        shared = rundir / "shared"
        (shared / "sub").mkdir(parents=True)
        (shared / "sub" / "open.txt").write_text("for everybody")
        for name in ("secret.key_secret", "sub/.hidden", "sub/worker.key"):
            (shared / name).write_text(CANARY)
        (rundir / "outside.txt").write_text(CANARY)
        (shared / "link.txt").symlink_to(rundir / "outside.txt")
        nfp = f'[nfp]\nfiles = "{shared}"\n'
        with (
            one_broker(rundir) as broker,
            attached(rundir, broker.uri, nfp),
            gateway_process(rundir, broker.uri, users=LINKS) as gateway,
        ):
            (rundir / "state" / "canary.json").write_text(CANARY)
            yield Web(gateway, rundir)
    finally:
        shutil.rmtree(rundir, ignore_errors=True)


# ---------------------------------------------------------------- paths

UP = (
    "..",
    "%2e%2e",
    "%2E.",
    "..%00",
    "....//",
    "..;",
    "%252e%252e",
    "..%c0%af",
    "%c0%ae%c0%ae",
    "..\\",
    "..%5c",
)
TAILS = ("state/canary.json", "outside.txt", "etc/passwd", "gateway.toml")


ODD_LINES = (
    b"GET http://169.254.169.254/latest HTTP/1.1",
    b"GET file:///etc/passwd HTTP/1.1",
    b"CONNECT evil.example:443 HTTP/1.1",
    b"GET /\0/etc/passwd HTTP/1.1",
    b"GET /%ff%fe HTTP/1.1",
    b"GET /\xe2\x80\xae HTTP/1.1",
    b"GET  / HTTP/1.1",
    b"GET / HTTP/9.9",
    b"OPTIONS * HTTP/1.1",
    b"TRACE / HTTP/1.1",
    b"G" * 9000,
)


def secrets_in(body: bytes) -> bool:
    return CANARY.encode() in body or b"root:" in body or b"hgt_" in body or b"[gateway]" in body


@for_each("begin", ["/", "/client/", "/lib/", "/v1/", "/v1/history/", "/v1/rpc/", "/v1/events/", "//", "/./"])
def test_no_path_leads_to_a_file(web, begin):
    """With and without a credential, for reading and for writing; plain dots to every file, odd ones to one each."""
    for number, up in enumerate(UP):
        for tail in TAILS if up == ".." else [TAILS[number % len(TAILS)]]:
            path = begin + f"{up}/" * 6 + tail
            for headers in ({}, web.gateway.bearer("bob")):
                for method in ("GET", "POST"):
                    said = web.ask(method, path, headers, b"" if method == "GET" else b"{}")
                    assert not secrets_in(said.body), (method, path, said)
                    assert said.status in (0, 301, 302, 308, 400, 401, 403, 404, 405, 413, 414, 415, 502), (
                        method,
                        path,
                        said.head,
                    )
                    assert not said.head.split(" ")[1].startswith("3") or EVIL not in said.head


def test_odd_request_lines_are_answered_or_cut(web):
    for line in ODD_LINES:
        came = web.raw(
            line
            + b"\r\nHost: "
            + web.authority.encode()
            + b"\r\nConnection: close\r\nX-Canary: reflected\r\n\r\n"
        )
        assert b"reflected" not in came, line
        assert not secrets_in(came)
        assert came[:9] != b"HTTP/1.1 5", (line, came[:200])
    assert web.ask("GET", "/livez").status == 200


@for_each(
    "url",
    [
        "nf://../outside.txt", "nf://sub/../../outside.txt", "nf:///etc/passwd", "nf://..\\outside.txt", "nf://%2e%2e/outside.txt",
        "nf://link.txt", "nf://secret.key_secret", "nf://sub/.hidden", "nf://sub/worker.key", "file:///etc/passwd", "nf://sub/\0",
        "nf://state/nfp.db", "../outside.txt", "nf://" + "a/" * 70, "nf://sub/./../../outside.txt", "nf://.",
    ],
)  # fmt: skip
def test_the_file_service_serves_what_is_shared(web, url):
    """Over HTTP, as a web user who may call it; every task that takes a URL."""
    headers = web.gateway.bearer("bob")
    for task in ("file_details", "fetch_file", "list_files", "walk"):
        asked = {
            "service": "fss.service.broker",
            "task": task,
            "kwargs": {"url": url},
            "timeout": 5,
            "target": "any",
        }
        said = web.post("/v1/rpc/nfp.run?timeout_s=10", asked, **headers)
        assert not secrets_in(said.body), (task, said.body)
        for each in json.loads(said.body)["results"].values() if said.status == 200 else ():
            if url in ("nf://.", "nf://sub/./../../outside.txt") and task in ("list_files", "walk"):
                assert each["failed"] or set(each["result"]) <= {"sub", "nf://sub/open.txt"}, each
            else:
                assert each["failed"], (task, each)


def test_the_file_service_serves_at_all(web):
    asked = {
        "service": "fss.service.broker",
        "task": "file_details",
        "kwargs": {"url": "nf://sub/open.txt"},
        "timeout": 5,
    }
    said = web.post("/v1/rpc/nfp.run?timeout_s=10", asked, **web.gateway.bearer("bob"))
    (result,) = json.loads(said.body)["results"].values()
    assert result["failed"] is False, said
    assert result["result"]["size_bytes"] == len("for everybody")


# ---------------------------------------------------------------- pages of others

PAGES = (
    EVIL,
    "null",
    "http://127.0.0.1:1",
    "http://localhost.evil.example",
    "https://grafana.example.org.evil.example",
)


@for_each("page", PAGES)
def test_a_page_of_another_site_gets_nothing_with_the_owners_cookie(web, page):
    """What a browser adds by itself does not count for a page that is not ours: nothing is done, read or opened."""
    cookie = {"Cookie": web.login()}
    events = {"topic": "csrf.test", "flags": 0}
    for method, path, kind, body in (
        ("POST", "/v1/rpc/attr.set?nodeid=0", "text/plain", b'{"name":"test.csrf","value":"1"}'),
        ("POST", "/v1/rpc/attr.set?nodeid=0", "application/json", b'{"name":"test.csrf","value":"1"}'),
        ("POST", "/v1/rpc/attr.set", "application/x-www-form-urlencoded", b"name=test.csrf&value=1"),
        ("POST", "/v1/events/csrf.test", "text/plain", b"x"),
        ("POST", "/v1/rpc/event.publish", "application/json", json.dumps(events).encode()),
        ("POST", "/v1/logout", "text/plain", b"{}"),
        ("GET", "/v1/events?prefix=", "", b""),
        ("GET", "/v1/session", "", b""),
        ("GET", "/v1/ws", "", b""),
    ):
        headers = {**cookie, "Origin": page, "Content-Type": kind, **(HANDSHAKE if path == "/v1/ws" else {})}
        if path == "/v1/ws":
            headers["Connection"] = "Upgrade"
        said = web.ask(method, path, headers, body)
        assert said.status == 403, (path, said)
        assert "Access-Control-Allow-Origin" not in said.head
        assert b'"roles"' not in said.body
    said = web.post("/v1/rpc/attr.list?nodeid=0", {}, Origin=web.origin, **cookie)
    assert said.status == 200, "the login still counts: nobody else could end it"
    assert b"test.csrf" not in said.body


def test_without_an_origin_a_cookie_changes_nothing(web):
    cookie = {"Cookie": web.login()}
    for path in ("/v1/rpc/attr.set?nodeid=0", "/v1/events/csrf.test", "/v1/logout"):
        assert web.post(path, {"name": "test.csrf", "value": "1"}, **cookie).status == 403
    headers = {**cookie, **HANDSHAKE}
    assert web.ask("GET", "/v1/ws", headers).status == 403
    for site in ("cross-site", "same-site"):
        assert web.ask("GET", "/v1/session", {**cookie, "Sec-Fetch-Site": site}).status == 403


def test_nobody_is_logged_in_by_another_page(web):
    """Login CSRF: with a good secret of its own choice a page would make a user work under somebody else's name."""
    secret = web.link()
    for page in PAGES:
        for kind in ("application/json", "text/plain"):
            headers = {"Origin": page, "Content-Type": kind}
            said = web.ask("POST", "/v1/login", headers, json.dumps({"once": secret}).encode())
            assert said.status in (403, 415)
            assert said.cookie == ""
    said = web.post("/v1/login", {"once": secret}, Origin=web.origin)
    assert said.status == 200, "refusals did not use the link up"


def test_an_allowed_page_reads_and_no_other_one_does(web):
    page = "https://grafana.example.org"
    said = web.ask("GET", "/v1/session", {"Origin": page, **web.gateway.bearer("bob")})
    assert said.status == 200
    assert f"Access-Control-Allow-Origin: {page}" in said.head
    assert "Access-Control-Allow-Credentials: true" in said.head
    other = web.ask("GET", "/v1/session", {"Origin": f"{page}.evil.example", "Cookie": web.login()})
    assert "Access-Control-Allow" not in other.head


# ---------------------------------------------------------------- names that only resolve to this machine


@for_each(
    "name",
    ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "[::ffff:192.0.2.1]", "0.0.0.0"],
)
def test_dns_rebinding_gets_neither_login_nor_cookie(web, name):
    """The browser believes the name, so that Origin and Host fit each other; the machine's own names are known."""
    port = web.authority.rpartition(":")[2]
    host, origin = f"{name}:{port}", f"http://{name}:{port}"
    cookie = web.login()
    for method, path in (("GET", "/v1/session"), ("POST", "/v1/rpc/attr.get"), ("GET", "/v1/events?prefix=")):
        headers = {"Host": host, "Origin": origin, "Cookie": cookie, "Sec-Fetch-Site": "same-origin"}
        assert web.ask(method, path, headers, b"{}" if method == "POST" else b"").status == 403, path
    assert (
        web.ask("GET", "/v1/ws", {"Host": host, "Origin": origin, "Cookie": cookie, **HANDSHAKE}).status
        == 403
    )
    secret = web.link()
    said = web.post("/v1/login", {"once": secret}, Host=host, Origin=origin)
    assert (said.status, said.cookie) == (403, "")
    assert web.post("/v1/login", {"once": secret}, Origin=web.origin).status == 200


def test_headers_of_proxies_that_nobody_trusts_mean_nothing(web):
    """Nor do they make a login of this machine out of one from elsewhere, but the other way round."""
    forged = {"X-Forwarded-For": "6.6.6.6", "X-Forwarded-Proto": "https", "X-Forwarded-Host": "evil.example"}
    headers = {**web.gateway.bearer("eve"), "X-Real-IP": "6.6.6.6", **forged}
    said = web.ask("POST", "/v1/rpc/gateway.session", headers, b"")
    assert json.loads(said.body)["address"].startswith("127.9.")
    assert web.post("/v1/login", {"once": web.link()}, Origin=web.origin, **forged).status == 403
    for name in ("X-Forwarded-User", "X-Remote-User", "Remote-User", "X-Auth-Request-User", "X-Userid"):
        assert web.ask("GET", "/v1/session", {name: "ada"}).status == 401


# ---------------------------------------------------------------- login links


def test_of_many_who_use_a_link_one_is_logged_in(web):
    secret = web.link()

    def use(_number: int) -> Said:
        return web.post("/v1/login", {"once": secret}, Origin=web.origin)

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        found = list(pool.map(use, range(16)))
    assert sorted(said.status for said in found) == [200] + [401] * 15
    assert len({said.cookie for said in found if said.cookie}) == 1
    assert all(secret.encode() not in said.body for said in found)


def test_what_was_a_credential_once_is_none_in_another_place(web):
    """The secret of a link is no token, the value of a cookie neither; and a token is no cookie."""
    secret, cookie = web.link(), web.login()
    token = web.gateway.tokens["bob"]
    value = cookie.partition("=")[2]
    for text in (secret, value, cookie, "", "null", token[:-1], token + "x", token.upper()):
        assert web.ask("GET", "/v1/session", {"Authorization": f"Bearer {text}"}).status == 401
    for text in (secret, token, "", value[:-1], value + "x"):
        assert web.ask("GET", "/v1/session", {"Cookie": f"headgate={text}"}).status == 401
        assert web.ask("GET", "/v1/session", {"Cookie": f"__Host-headgate={text}"}).status == 401
    assert web.ask("GET", "/v1/session", {"Cookie": cookie}).status == 200
    assert web.ask("GET", f"/v1/session?token={token}&access_token={token}").status == 401
    assert web.post("/v1/logout", {}, Origin=web.origin, Cookie=cookie).status == 204
    assert web.ask("GET", "/v1/session", {"Cookie": cookie}).status == 401


def test_secrets_stand_in_no_log_and_no_url(web):
    secret, cookie = web.link(), web.login()
    web.ask("GET", f"/login?once={secret}")
    web.post("/v1/login", {"once": secret + "x"}, Origin=web.origin)
    web.ask("GET", f"/v1/session?token={web.gateway.tokens['bob']}")
    log = "\n".join(web.gateway.lines())
    for text in (secret, cookie.partition("=")[2], *web.gateway.tokens.values()):
        assert text not in log


# ---------------------------------------------------------------- requests inside requests


@for_each(
    "framing",
    [
        b"Content-Length: 4\r\nContent-Length: 40\r\n",
        b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n",
        b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n",
        b"Transfer-Encoding: xchunked\r\n",
        b"Transfer-Encoding : chunked\r\nContent-Length: 4\r\n",
        b"Content-Length: +4\r\n",
        b"Content-Length: 0x4\r\n",
        b"Content-Length: -1\r\n",
    ],
)
def test_a_body_of_two_lengths_is_refused(web, framing):
    """What one reader takes for a body and another for the next request is answered once, and not with its content."""
    bearer = f"Authorization: Bearer {web.gateway.tokens['bob']}\r\n".encode()
    host = f"Host: {web.authority}\r\n".encode()
    inner = b"GET /v1/session HTTP/1.1\r\n" + host + bearer + b"\r\n"
    came = web.raw(b"POST /v1/rpc/attr.list HTTP/1.1\r\n" + host + framing + b"\r\n0\r\n\r\n" + inner)
    assert b'"user"' not in came, "the request inside was taken for one of its own"
    assert came[:12] in (b"HTTP/1.1 400", b"HTTP/1.0 400", b""), came[:200]


def test_frames_behind_a_refused_handshake_are_not_read(web):
    """A page that may not connect sends its frames right behind the handshake."""
    headers = {"Origin": EVIL, **HANDSHAKE, **web.gateway.bearer("bob")}
    request = (
        b'{"type":"request","topic":"event.publish","matchtag":1,"payload":{"topic":"smuggled","flags":0}}'
    )
    said = web.ask("GET", "/v1/ws", headers, more=masked(1, request))
    assert said.status == 403
    assert b"welcome" not in said.body
    assert web.ask("GET", "/readyz").status == 200
