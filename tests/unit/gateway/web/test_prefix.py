"""``gateway.prefix``: everything is below it, too, for proxies that leave it and for those that take it away."""

import json

import aiohttp

from tests.live.gateways import live, run
from tests.tables import for_each

PREFIX = "/team/headgate"
SETTING = f'[gateway]\nprefix = "{PREFIX}"\n[access]\nlogin_links = "owner"\n'


def visit(work, extra=SETTING):
    async def body(folder):
        async with live(folder, extra) as gateway, aiohttp.ClientSession() as http:
            await work(gateway, http)

    run(body)


@for_each("below", ["", PREFIX])
def test_http_websocket_and_sse(below):
    async def work(gateway, http):
        base, bearer = gateway.url + below, gateway.bearer()
        async with http.post(f"{base}/v1/rpc/attr.get", json={"name": "size"}, headers=bearer) as answer:
            assert (await answer.json())["value"] == "1"
            assert answer.headers["Cache-Control"] == "no-store"
        async with http.ws_connect(f"{base}/v1/ws", protocols=("flux.v1.json",), headers=bearer) as ws:
            assert (await ws.receive_json())["type"] == "welcome"
        async with http.get(f"{base}/v1/events", params={"prefix": "a."}, headers=bearer) as stream:
            assert b"retry" in await stream.content.readline()
        async with http.get(f"{base}/client.js") as answer:
            assert answer.status == 200

    visit(work)


def test_the_folder_has_a_slash():
    async def work(gateway, http):
        async with http.get(gateway.url + PREFIX, allow_redirects=False) as answer:
            assert (answer.status, answer.headers["Location"]) == (308, f"{PREFIX}/")
        async with http.get(gateway.url + PREFIX) as answer:
            assert (answer.status, answer.content_type) == (200, "text/html")

    visit(work)


def test_what_tells_of_addresses_tells_of_it():
    async def work(gateway, http):
        async with http.get(f"{gateway.url}/openapi.json") as answer:
            assert json.loads(await answer.text())["servers"] == [{"url": PREFIX}]
        assert gateway.gateway.login_link().startswith(f"{gateway.url}{PREFIX}/login#once=")

    visit(work)


def test_there_is_none_unless_it_is_set():
    async def work(gateway, http):
        async with http.get(f"{gateway.url}{PREFIX}/v1/session", headers=gateway.bearer()) as answer:
            assert answer.status == 404
        async with http.get(f"{gateway.url}/openapi.json") as answer:
            assert "servers" not in json.loads(await answer.text())

    visit(work, "")
