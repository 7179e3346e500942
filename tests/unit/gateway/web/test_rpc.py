"""Calls over HTTP: payloads, errors, streams, and a client that goes away."""

import asyncio
import errno

import pytest

from tests.live.gateways import run
from tests.unit.gateway.web.site import begin, lines, site


def test_json_goes_in_and_comes_out():
    async def body(folder):
        async with site(folder) as it, it.post("/v1/rpc/lab.echo", json={"a": [1, "ä"]}) as answer:
            assert answer.status == 200
            assert answer.content_type == "application/json"
            assert await answer.json() == {"a": [1, "ä"]}

    run(body)


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("text/plain", "grüezi\n".encode()),
        ("application/octet-stream", bytes(range(256))),
        ("application/octet-stream", b'{"looks":"like JSON"}'),
        ("application/json", b'{ "spaces" :\n 1 }'),
    ],
)
def test_a_payload_comes_back_as_it_went(kind, sent):
    async def body(folder):
        headers = {"Content-Type": kind}
        async with site(folder) as it, it.post("/v1/rpc/lab.echo", data=sent, headers=headers) as answer:
            assert answer.status == 200
            assert await answer.read() == sent
            assert answer.content_type == kind

    run(body)


def test_no_body_is_no_payload():
    async def body(folder):
        async with site(folder) as it, it.post("/v1/rpc/lab.echo") as answer:
            assert answer.status == 204
            assert await answer.read() == b""

    run(body)


def test_the_message_is_stamped_with_the_user_and_nothing_else():
    async def body(folder):
        async with site(folder) as it:
            for user, userid, role in (("ada", 1001, 1), ("bob", 1002, 2), ("eve", 1003, 10)):
                async with it.post("/v1/rpc/lab.who", user) as answer:
                    assert await answer.json() == {"userid": userid, "rolemask": role}

    run(body)


@pytest.mark.parametrize(
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
def test_an_error_is_a_status_and_a_problem(errnum, status):
    async def body(folder):
        asked = {"errno": errnum, "text": "because"}
        async with site(folder) as it, it.post("/v1/rpc/lab.fail", json=asked) as answer:
            assert answer.status == status
            assert answer.content_type == "application/problem+json"
            said = await answer.json()
            assert (said["errno"], said["name"], said["text"]) == (errnum, errno.errorcode[errnum], "because")
            assert said["topic"] == "lab.fail"
            assert ("Retry-After" in answer.headers) is (status in (429, 503))

    run(body)


def test_a_service_that_nobody_has():
    async def body(folder):
        async with site(folder) as it, it.post("/v1/rpc/nobody.here") as answer:
            assert answer.status == 404
            assert (await answer.json())["errno"] == errno.ENOSYS

    run(body)


def test_what_the_role_does_not_allow():
    async def body(folder):
        async with site(folder) as it, it.post("/v1/rpc/secret.read", "bob") as answer:
            assert answer.status == 403
            said = await answer.json()
            assert said["errno"] == errno.EPERM
            assert "owner" in said["text"]

    run(body)


@pytest.mark.parametrize(
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
def test_requests_that_make_no_sense(path, kind, sent, status):
    async def body(folder):
        limits = "[limits]\nmessage_bytes = 4096\n"
        async with site(folder, limits) as it:
            headers = {"Content-Type": kind}
            async with it.post(f"/v1/rpc/{path}", data=sent, headers=headers) as answer:
                assert answer.status == status, await answer.text()
                assert answer.content_type == "application/problem+json"

    run(body)


@pytest.mark.parametrize("topic", ["event.subscribe", "event.unsubscribe", "service.add", "service.remove"])
def test_requests_about_a_connection_that_stays(topic):
    async def body(folder):
        said = {"topic": "a", "service": "a"}
        async with site(folder) as it, it.post(f"/v1/rpc/{topic}", json=said) as answer:
            assert answer.status == 400
            text = (await answer.json())["text"]
            assert "GET /v1/events" in text
            assert "WebSocket" in text

    run(body)


def test_a_chunked_body_that_is_too_large():
    async def chunks():
        for _ in range(100):
            yield b"x" * 1000

    async def body(folder):
        async with site(folder, "[limits]\nmessage_bytes = 4096\n") as it:
            headers = {"Content-Type": "application/octet-stream"}
            async with it.post("/v1/rpc/lab.echo", data=chunks(), headers=headers) as answer:
                assert answer.status == 413

    run(body)


def test_no_answer_in_time():
    async def body(folder):
        async with site(folder) as it:
            async with it.post("/v1/rpc/lab.never?timeout_s=0.05") as answer:
                assert answer.status == 504
                assert (await answer.json())["errno"] == errno.ETIMEDOUT
            assert not it.live.gateway.hub.sessions

    run(body)


def test_too_many_calls_are_told_when_to_come_back():
    async def body(folder):
        async with site(folder, "[limits]\nmsgs_per_s = 1\nmsgs_burst = 3\n") as it:
            statuses = []
            for _ in range(5):
                async with it.post("/v1/rpc/lab.who", "bob") as answer:
                    statuses.append(answer.status)
            assert statuses == [200, 200, 200, 429, 429]
            assert int(answer.headers["Retry-After"]) >= 1
            async with it.post("/v1/rpc/lab.who", "eve") as answer:
                assert answer.status == 200  # another user has a rate of their own

    run(body)


# ---------------------------------------------------------------- streams


def test_a_stream_is_a_line_a_response_and_says_that_it_ended():
    async def body(folder):
        async with site(folder) as it, it.post("/v1/rpc/lab.count?stream=1", json={"to": 1000}) as answer:
            assert answer.status == 200
            assert answer.content_type == "application/x-ndjson"
            found = lines(await answer.read())
            assert found[:-1] == [{"payload": {"n": number}} for number in range(1000)]
            assert found[-1] == {"end": True}

    run(body)


def test_an_empty_stream():
    async def body(folder):
        async with site(folder) as it, it.post("/v1/rpc/lab.count?stream=1", json={"to": 0}) as answer:
            assert lines(await answer.read()) == [{"end": True}]

    run(body)


def test_an_error_before_the_first_response_is_a_status():
    async def body(folder):
        asked = {"errno": errno.EPERM, "text": "no"}
        async with site(folder) as it, it.post("/v1/rpc/lab.fail?stream=1", json=asked) as answer:
            assert answer.status == 403

    run(body)


def test_an_error_behind_it_is_the_last_line():
    async def body(folder):
        async with site(folder) as it, it.post("/v1/rpc/lab.breaks?stream=1") as answer:
            assert answer.status == 200
            last = {"errno": 5, "name": "EIO", "text": "it broke"}
            assert lines(await answer.read()) == [{"payload": {"n": 0}}, last]

    run(body)


def test_a_payload_with_line_ends_stays_one_line():
    async def body(folder):
        headers = {"Content-Type": "application/json"}
        async with site(folder) as it, it.handle.service("raw") as raw:

            @raw.method("pretty")
            async def pretty(request):
                yield b'{\r\n  "a": 1\n}\0'

            async with it.post("/v1/rpc/raw.pretty?stream=1", headers=headers) as answer:
                assert lines(await answer.read()) == [{"payload": {"a": 1}}, {"end": True}]

    run(body)


def test_a_stream_that_falls_silent_ends_and_says_so():
    async def body(folder):
        async with site(folder) as it:
            asked = {"name": "rank"}
            async with it.post("/v1/rpc/attr.get?stream=1&timeout_s=0.2", json=asked) as answer:
                *found, last = lines(await answer.read())
            assert [each["payload"]["value"] for each in found] == ["0"]
            assert last["name"] == "ETIMEDOUT"
            assert not it.live.gateway.hub.sessions
            async with it.post("/v1/rpc/lab.forever?stream=1&timeout_s=0.3") as answer:
                for _ in range(50):  # each response begins the time anew
                    assert "payload" in lines(await answer.content.readline())[0]

    run(body)


def test_methods_of_the_gateway_have_one_answer():
    async def body(folder):
        async with site(folder) as it:
            for topic in ("event.publish", "gateway.session"):
                async with it.post(f"/v1/rpc/{topic}?stream=1", json={"topic": "a"}) as answer:
                    assert answer.status == 400
                    assert (await answer.json())["errno"] == errno.EPROTO

    run(body)


def test_streams_count_as_connections_of_their_user_and_plain_calls_do_not():
    async def body(folder):
        async with (
            site(folder, "[limits]\nconnections_per_user = 2\n") as it,
            it.post("/v1/rpc/lab.forever?stream=1") as one,
            it.get("/v1/events") as two,
        ):
            assert (one.status, two.status) == (200, 200)
            async with it.post("/v1/rpc/lab.forever?stream=1") as three:
                assert three.status == 429
            headers = it.live.bearer()
            async with it.http.ws_connect(it.live.ws, protocols=("flux.v1.json",), headers=headers) as four:
                assert (await four.receive_json())["code"] == 4504
            async with it.post("/v1/rpc/lab.who") as five:
                assert five.status == 200

    run(body)


def test_cancel_and_disconnect_are_sent_and_nothing_is_waited_for():
    async def body(folder):
        async with site(folder) as it:
            for path in ("lab.cancel", "lab.disconnect", "nobody.cancel", "lab.cancel?stream=1"):
                async with it.post(f"/v1/rpc/{path}", json={"matchtag": 1}) as answer:
                    assert (answer.status, await answer.read()) == (202, b"")
            async with it.post("/v1/rpc/secret.cancel", "bob", json={"matchtag": 1}) as answer:
                assert answer.status == 403
            async with it.post("/v1/rpc/gateway.cancel", json={"matchtag": 1}) as answer:
                assert answer.status == 404
            await it.live.broker.stop()
            async with it.post("/v1/rpc/lab.cancel", json={"matchtag": 1}) as answer:
                assert answer.status == 503

    run(body)


def test_a_client_that_leaves_ends_the_stream_at_the_service():
    async def body(folder):
        async with site(folder) as it:
            async with it.post("/v1/rpc/lab.forever?stream=1") as answer:
                assert await answer.content.readline() == b'{"payload":{"n":0}}\n'
                answer.close()
            assert await asyncio.wait_for(it.gone.get(), 5)
            assert not it.live.gateway.hub.sessions

    run(body)


def test_a_client_that_leaves_a_plain_call_leaves_nothing_behind():
    async def body(folder):
        async with site(folder) as it:
            hub = it.live.gateway.hub
            call = begin(it.post("/v1/rpc/lab.never").__aenter__())
            while not hub.sessions:
                await asyncio.sleep(0.01)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            while hub.sessions:
                await asyncio.sleep(0.01)

    run(body)


def test_a_stream_that_is_not_read_ends_with_an_error_and_without_a_hole():
    async def body(folder):
        async with site(folder, "[limits]\nresponse_bytes = 65536\noutbox_bytes = 65536\n") as it:
            async with it.post("/v1/rpc/lab.flood?stream=1", read_bufsize=1024) as answer:
                hub = it.live.gateway.hub
                while hub.sessions:
                    await asyncio.sleep(0.01)
                found = lines(await answer.read())
            assert [each["payload"]["n"] for each in found[:-1]] == list(range(len(found) - 1))
            assert len(found) < 4000
            assert found[-1]["name"] == "ECONNRESET"
            assert hub.options.budget.used_bytes == 0

    run(body)


def test_the_upstream_is_lost_during_a_call():
    async def body(folder):
        async with site(folder) as it:
            call = begin(it.post("/v1/rpc/lab.never").__aenter__())
            while not it.live.gateway.hub.sessions:
                await asyncio.sleep(0.01)
            await it.live.broker.stop()
            answer = await call
            assert answer.status == 503
            assert (await answer.json())["errno"] == errno.EHOSTUNREACH
            answer.close()

    run(body)
