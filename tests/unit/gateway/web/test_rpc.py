"""Calls over HTTP: payloads, errors, streams, and a client that goes away."""

import asyncio
import errno

import pytest

from tests.tables import for_each
from tests.unit.gateway.web.site import begin, lines


async def test_json_goes_in_and_comes_out(site):
    answer = await site.post("/v1/rpc/lab.echo", json={"a": [1, "ä"]})
    assert answer.status == 200
    assert answer.content_type == "application/json"
    assert await answer.json() == {"a": [1, "ä"]}


@for_each(
    ("kind", "sent"),
    [
        ("text/plain", "grüezi\n".encode()),
        ("application/octet-stream", bytes(range(256))),
        ("application/octet-stream", b'{"looks":"like JSON"}'),
        ("application/json", b'{ "spaces" :\n 1 }'),
    ],
)
async def test_a_payload_comes_back_as_it_went(site, kind, sent):
    headers = {"Content-Type": kind}
    answer = await site.post("/v1/rpc/lab.echo", data=sent, headers=headers)
    assert answer.status == 200
    assert await answer.read() == sent
    assert answer.content_type == kind


async def test_no_body_is_no_payload(site):
    answer = await site.post("/v1/rpc/lab.echo")
    assert answer.status == 204
    assert await answer.read() == b""


async def test_the_message_is_stamped_with_the_user_and_nothing_else(site):
    for user, userid, role in (("ada", 1001, 1), ("bob", 1002, 2), ("eve", 1003, 10)):
        answer = await site.post("/v1/rpc/lab.who", user)
        assert await answer.json() == {"userid": userid, "rolemask": role}


@for_each(
    ("errnum", "status"),
    [
        (errno.EPERM, 403),
        (errno.ENOSYS, 404),
        (errno.ENOENT, 404),
        (errno.EINVAL, 400),
        (errno.EPROTO, 400),
        (errno.EAGAIN, 429),
        (errno.EHOSTUNREACH, 503),
        (errno.ETIMEDOUT, 504),
        (errno.EIO, 502),
    ],
)
async def test_an_error_is_a_status_and_a_problem(site, errnum, status):
    asked = {"errno": errnum, "text": "because"}
    answer = await site.post("/v1/rpc/lab.fail", json=asked)
    assert answer.status == status
    assert answer.content_type == "application/problem+json"
    said = await answer.json()
    assert (said["errno"], said["name"], said["text"]) == (errnum, errno.errorcode[errnum], "because")
    assert said["topic"] == "lab.fail"
    assert ("Retry-After" in answer.headers) is (status in (429, 503))


async def test_a_service_that_nobody_has(site):
    answer = await site.post("/v1/rpc/nobody.here")
    assert answer.status == 404
    assert (await answer.json())["errno"] == errno.ENOSYS


async def test_what_the_role_does_not_allow(site):
    answer = await site.post("/v1/rpc/secret.read", "bob")
    assert answer.status == 403
    said = await answer.json()
    assert said["errno"] == errno.EPERM
    assert "owner" in said["text"]


@pytest.fixture
async def small(open_site):
    return await open_site("[limits]\nmessage_bytes = 4096\npreauth_bytes = 4096\n")


@for_each(
    ("path", "kind", "sent", "status"),
    [
        ("lab.echo", "application/json", b"[1]", 400),
        ("lab.echo", "application/json", b'{"a":', 400),
        ("lab.echo", "application/json", b'{"a":"\xff"}', 400),
        ("lab.echo", "application/json", b'{"a":1}\0', 400),
        ("lab.echo", "text/plain", b"a\0b", 400),
        ("lab.echo", "text/plain", b"\xff", 400),
        ("lab.echo", "application/xml", b"<a/>", 415),
        ("lab.echo", "application/octet-stream", b"x" * 5000, 413),
        ("lab.echo?nodeid=x", "application/json", b"{}", 400),
        ("lab.echo?nodeid=4294967294", "application/json", b"{}", 400),
        ("lab.echo?nodeid=99999999999999999999999999", "application/json", b"{}", 400),
        ("lab.echo?nodeid=7", "application/json", b"{}", 503),
        ("lab.echo?timeout_s=0", "application/json", b"{}", 400),
        ("lab.echo?timeout_s=nan", "application/json", b"{}", 400),
        ("lab.echo?timeout_s=inf", "application/json", b"{}", 400),
        ("lab.echo?stream=yes", "application/json", b"{}", 400),
        ("a%00b", "application/json", b"{}", 400),
        ("x" * 256, "application/json", b"{}", 400),
    ],
)
async def test_requests_that_make_no_sense(small, path, kind, sent, status):
    headers = {"Content-Type": kind}
    answer = await small.post(f"/v1/rpc/{path}", data=sent, headers=headers)
    assert answer.status == status, await answer.text()
    assert answer.content_type == "application/problem+json"


@for_each("topic", ["event.subscribe", "event.unsubscribe", "service.add", "service.remove"])
async def test_requests_about_a_connection_that_stays(site, topic):
    said = {"topic": "a", "service": "a"}
    answer = await site.post(f"/v1/rpc/{topic}", json=said)
    assert answer.status == 400
    text = (await answer.json())["text"]
    assert "GET /v1/events" in text
    assert "WebSocket" in text


async def test_a_chunked_body_that_is_too_large(open_site):
    async def chunks():
        for _ in range(100):
            yield b"x" * 1000

    site = await open_site("[limits]\nmessage_bytes = 4096\npreauth_bytes = 4096\n")
    headers = {"Content-Type": "application/octet-stream"}
    answer = await site.post("/v1/rpc/lab.echo", data=chunks(), headers=headers)
    assert answer.status == 413


async def test_no_answer_in_time(site):
    answer = await site.post("/v1/rpc/lab.never?timeout_s=0.05")
    assert answer.status == 504
    assert (await answer.json())["errno"] == errno.ETIMEDOUT
    assert not site.gateway.sessions.by_id


async def test_too_many_calls_are_told_when_to_come_back(open_site):
    site = await open_site("[limits]\nmsgs_per_s = 1\nmsgs_burst = 3\n")
    statuses = []
    for _ in range(5):
        answer = await site.post("/v1/rpc/lab.who", "bob")
        statuses.append(answer.status)
    assert statuses == [200, 200, 200, 429, 429]
    assert int(answer.headers["Retry-After"]) >= 1
    answer = await site.post("/v1/rpc/lab.who", "eve")
    assert answer.status == 200  # another user has a rate of their own


# ---------------------------------------------------------------- streams


async def test_a_stream_is_a_line_a_response_and_says_that_it_ended(site):
    answer = await site.post("/v1/rpc/lab.count?stream=1", json={"to": 1000})
    assert answer.status == 200
    assert answer.content_type == "application/x-ndjson"
    assert answer.headers["X-Accel-Buffering"] == "no"
    found = lines(await answer.read())
    assert found[:-1] == [{"payload": {"n": number}} for number in range(1000)]
    assert found[-1] == {"end": True}


async def test_an_empty_stream(site):
    answer = await site.post("/v1/rpc/lab.count?stream=1", json={"to": 0})
    assert lines(await answer.read()) == [{"end": True}]


async def test_an_error_before_the_first_response_is_a_status(site):
    asked = {"errno": errno.EPERM, "text": "no"}
    answer = await site.post("/v1/rpc/lab.fail?stream=1", json=asked)
    assert answer.status == 403


async def test_an_error_behind_it_is_the_last_line(site):
    answer = await site.post("/v1/rpc/lab.breaks?stream=1")
    assert answer.status == 200
    last = {"errno": 5, "name": "EIO", "text": "it broke"}
    assert lines(await answer.read()) == [{"payload": {"n": 0}}, last]


async def test_a_payload_with_line_ends_stays_one_line(site):
    headers = {"Content-Type": "application/json"}
    async with site.handle.service("raw") as raw:

        @raw.method("pretty")
        async def pretty(request):
            yield b'{\r\n  "a": 1\n}\0'

        answer = await site.post("/v1/rpc/raw.pretty?stream=1", headers=headers)
        assert lines(await answer.read()) == [{"payload": {"a": 1}}, {"end": True}]


async def test_a_stream_that_falls_silent_ends_and_says_so(site):
    asked = {"name": "rank"}
    answer = await site.post("/v1/rpc/attr.get?stream=1&timeout_s=0.2", json=asked)
    *found, last = lines(await answer.read())
    assert [each["payload"]["value"] for each in found] == ["0"]
    assert last["name"] == "ETIMEDOUT"
    assert not site.gateway.sessions.by_id
    answer = await site.post("/v1/rpc/lab.forever?stream=1&timeout_s=0.3")
    for _ in range(50):  # each response begins the time anew
        assert "payload" in lines(await answer.content.readline())[0]


async def test_methods_of_the_gateway_have_one_answer(site):
    for topic in ("event.publish", "gateway.session"):
        answer = await site.post(f"/v1/rpc/{topic}?stream=1", json={"topic": "a"})
        assert answer.status == 400
        assert (await answer.json())["errno"] == errno.EPROTO


async def test_streams_count_as_connections_of_their_user_and_plain_calls_do_not(open_site):
    site = await open_site("[limits]\nconnections_per_user = 2\n")
    one = await site.post("/v1/rpc/lab.forever?stream=1")
    two = await site.get("/v1/events")
    assert (one.status, two.status) == (200, 200)
    three = await site.post("/v1/rpc/lab.forever?stream=1")
    assert three.status == 429
    four = await site.client.ws_connect("/v1/ws", protocols=("flux.v1.json",), headers=site.live.bearer())
    assert (await four.receive_json())["code"] == 4504
    five = await site.post("/v1/rpc/lab.who")
    assert five.status == 200


async def test_cancel_and_disconnect_are_sent_and_nothing_is_waited_for(site):
    for path in ("lab.cancel", "lab.disconnect", "nobody.cancel", "lab.cancel?stream=1"):
        answer = await site.post(f"/v1/rpc/{path}", json={"matchtag": 1})
        assert (answer.status, await answer.read()) == (202, b"")
    answer = await site.post("/v1/rpc/secret.cancel", "bob", json={"matchtag": 1})
    assert answer.status == 403
    answer = await site.post("/v1/rpc/gateway.cancel", json={"matchtag": 1})
    assert answer.status == 404
    await site.live.broker.stop()
    answer = await site.post("/v1/rpc/lab.cancel", json={"matchtag": 1})
    assert answer.status == 503


async def test_a_client_that_leaves_ends_the_stream_at_the_service(site):
    answer = await site.post("/v1/rpc/lab.forever?stream=1")
    assert await answer.content.readline() == b'{"payload":{"n":0}}\n'
    answer.close()
    assert await asyncio.wait_for(site.gone.get(), 5)
    assert not site.gateway.sessions.by_id


async def test_a_client_that_leaves_a_plain_call_leaves_nothing_behind(site):
    sessions = site.gateway.sessions
    call = begin(site.post("/v1/rpc/lab.never"))
    while not sessions:
        await asyncio.sleep(0.01)
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    while sessions:
        await asyncio.sleep(0.01)


async def test_a_stream_that_is_not_read_ends_with_an_error_and_without_a_hole(open_site):
    site = await open_site("[limits]\nresponse_bytes = 65536\noutbox_bytes = 65536\n")
    answer = await site.post("/v1/rpc/lab.flood?stream=1", read_bufsize=1024)
    sessions = site.gateway.sessions
    while sessions:
        await asyncio.sleep(0.01)
    found = lines(await answer.read())
    assert [each["payload"]["n"] for each in found[:-1]] == list(range(len(found) - 1))
    assert len(found) < 4000
    assert found[-1]["name"] == "ECONNRESET"
    assert sessions.options.budget.used_bytes == 0


async def test_the_upstream_is_lost_during_a_call(site):
    call = begin(site.post("/v1/rpc/lab.never"))
    while not site.gateway.sessions.by_id:
        await asyncio.sleep(0.01)
    await site.live.broker.stop()
    answer = await call
    assert answer.status == 503
    assert (await answer.json())["errno"] == errno.EHOSTUNREACH
    answer.close()
