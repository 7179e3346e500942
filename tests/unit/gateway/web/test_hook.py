"""The authorisation hook in front of calls, events and streams over HTTP, and in the metrics."""

import pytest
from aiohttp import web


@pytest.fixture
async def asked(open_site, aiohttp_server):
    """A gateway whose hook lets nobody but ada do anything with ``lab.fail`` and ``news.``; and what it was asked."""
    questions = []

    async def allow(request):
        question = await request.json()
        questions.append((question["user"], question["kind"], question["topic"]))
        if question["topic"] == "lab.never":
            return web.Response(status=500)
        ok = question["user"] == "ada" or not question["topic"].startswith(("lab.fail", "news."))
        return web.json_response({"allow": ok, "text": "ada alone may"})

    app = web.Application()
    app.router.add_post("/allow", allow)
    url = (await aiohttp_server(app)).make_url("/allow")
    site = await open_site(f'[access]\nhook_url = "{url}"\n')
    return site, questions


async def test_calls(asked):
    site, questions = asked
    answer = await site.post("/v1/rpc/lab.who", "bob")
    assert (await answer.json())["userid"] == 1002
    answer = await site.post("/v1/rpc/lab.fail", "bob", json={"errno": 2})
    said = await answer.json()
    assert (answer.status, said["name"], said["text"]) == (403, "EPERM", "call 'lab.fail': ada alone may")
    assert (await site.post("/v1/rpc/lab.fail", json={"errno": 2})).status == 404
    assert (await site.post("/v1/rpc/lab.who", "bob")).status == 200
    assert questions == [("bob", "call", "lab.who"), ("bob", "call", "lab.fail"), ("ada", "call", "lab.fail")]


async def test_events(asked):
    site, questions = asked
    assert (await site.post("/v1/events/news.a", "bob", json={})).status == 403
    assert (await site.post("/v1/events/other.a", "bob", json={})).status == 200
    assert questions == [("bob", "publish", "news.a"), ("bob", "publish", "other.a")]


@pytest.mark.parametrize("headers", [{}, {"Last-Event-ID": "x:1"}])
async def test_streams(asked, headers):
    site, questions = asked
    assert (await site.get("/v1/events?prefix=news.", "bob", headers=headers)).status == 403
    answer = await site.get("/v1/events?prefix=open.", "bob", headers=headers)
    assert answer.status == 200
    answer.close()
    assert questions == [("bob", "subscribe", "news."), ("bob", "subscribe", "open.")]


async def test_a_hook_that_fails_is_503_and_counted(asked):
    site, _questions = asked
    answer = await site.post("/v1/rpc/lab.never", "bob")
    said = await answer.json()
    assert (answer.status, said["name"]) == (503, "EHOSTUNREACH")
    assert said["text"] == "the authorisation hook does not answer: retry in 1 s"
    text = await (await site.get("/metrics")).text()
    assert 'headgate_gateway_authorization_hook_total{outcome="failed"} 1\n' in text


async def test_the_owner_can_end_things_whatever_the_hook_says(asked):
    site, questions = asked
    assert (await site.post("/v1/rpc/gateway.sessions", json={})).status == 200
    assert questions == []
