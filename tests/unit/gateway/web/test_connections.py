"""What aiohttp answers by itself: with our body and our headers, and with one line in the log."""

import asyncio
import json
import logging

from gateway.web import answers, app
from tests.tables import for_each
from tests.unit.gateway.web.test_listener import dial, gone_by_us

LOGIN = b"POST /v1/login HTTP/1.1\r\nHost: x\r\n"
MALFORMED = {
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "method": b"G\x00T / HTTP/1.1\r\nHost: x\r\n\r\n",
    "version": b"GET / HTTP/9.9\r\nHost: x\r\n\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "header": b"GET / HTTP/1.1\r\nHost x secret\r\n\r\n",
    "long line": b"GET /secret?" + b"a" * 20_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "long header": b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: secret" + b"a" * 20_000 + b"\r\n\r\n",
    "many headers": b"GET / HTTP/1.1\r\nHost: x\r\n" + b"X-A: secret\r\n" * 3000 + b"\r\n",
    "no host": b"GET /livez?secret HTTP/1.1\r\n\r\n",
    "URL": b"GET http://[::1/livez?secret HTTP/1.1\r\nHost: x\r\n\r\n",
    "lengths": LOGIN + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "length and chunks": LOGIN + b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\nab",
    "chunk": LOGIN + b"Transfer-Encoding: chunked\r\n\r\nsecret\r\nab",
}
OTHERS = {
    "nowhere": (b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    "method not allowed": (b"PUT /livez HTTP/1.1\r\nHost: x\r\n\r\n", 405),
    "too large": (LOGIN + b"Content-Length: 99999999\r\n\r\n", 413),
    "expectation": (LOGIN + b"Expect: wonders\r\nContent-Length: 2\r\n\r\n{}", 417),
    "connect": (b"CONNECT x:80 HTTP/1.1\r\nHost: x\r\n\r\n", 404),
}


async def answered(live, *sent):
    """Status, headers and body of the answer to what is sent in so many pieces."""
    reader, writer = await dial(live.url)
    for piece in sent:
        writer.write(piece)
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)).decode().split("\r\n")
    fields = {name.lower(): value for name, _, value in (line.partition(": ") for line in head[1:])}
    body = await asyncio.wait_for(reader.readexactly(int(fields["content-length"])), 10)
    await gone_by_us((reader, writer))
    return int(head[0].split()[1]), fields, json.loads(body)


def check_ours(status, fields, body):
    assert fields["server"].startswith("headgate/")
    assert {name: fields.get(name.lower()) for name in answers.SECURITY} == answers.SECURITY
    assert fields["content-type"] == "application/problem+json"
    assert body["status"] == status


@for_each("kind", MALFORMED)
async def test_what_is_no_http_is_answered_and_told_in_one_line(live, caplog, kind):
    caplog.clear()
    caplog.set_level(logging.INFO, "headgate")
    status, fields, body = await answered(live, MALFORMED[kind])
    check_ours(status, fields, body)
    assert (status, body["name"]) == (400, "EPROTO")
    assert body["text"].startswith("malformed request: ")
    (line,) = [each for each in caplog.records if each.levelno >= logging.INFO]
    assert line.name == "headgate"
    assert line.getMessage() == f"malformed request of 127.0.0.1: {body['text'].partition(': ')[2]}"
    assert not line.exc_info
    assert "secret" not in line.getMessage()


@for_each("kind", OTHERS)
async def test_what_is_answered_before_our_handlers_is_a_problem_like_all_others(live, caplog, kind):
    sent, status = OTHERS[kind]
    seen, fields, body = await answered(live, sent)
    assert seen == status
    check_ours(status, fields, body)
    assert not [each for each in caplog.records if each.levelno >= logging.WARNING]


async def test_a_body_that_cannot_be_unpacked_is_one_line(live, caplog):
    caplog.set_level(logging.INFO, "headgate")
    sent = LOGIN + b"Content-Encoding: gzip\r\nContent-Length: 6\r\n\r\nsecret"
    check_ours(*await answered(live, sent))
    (line,) = [each for each in caplog.records if each.levelno >= logging.INFO]
    assert line.getMessage().startswith("malformed request of 127.0.0.1: Can not decode content-encoding")
    assert not line.exc_info


async def test_a_fault_outside_of_our_handlers_is_ours_and_is_told(live, caplog, monkeypatch):
    monkeypatch.setattr(app, "_preflight", lambda _request: 1 / 0)
    preflight = b"OPTIONS / HTTP/1.1\r\nHost: x\r\nAccess-Control-Request-Method: GET\r\n\r\n"
    status, fields, body = await answered(live, preflight)
    check_ours(status, fields, body)
    assert (status, body["name"]) == (500, "EIO")
    (line,) = [each for each in caplog.records if each.levelno >= logging.WARNING]
    assert (line.name, line.levelno, line.exc_info[0]) == ("headgate", logging.ERROR, ZeroDivisionError)
