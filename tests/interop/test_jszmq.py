"""The stock ``jszmq`` package of npm in a real Chromium: ZeroMQ sockets that speak with a Flux broker."""

import errno
import functools
import shutil
import subprocess
from pathlib import Path

import pytest

from broker.wire.decoding import from_parts
from broker.wire.message import EVENT, Message, event, request
from broker.wire.payload import decode_json, encode_json
from tests.conftest import OPTIONAL
from tests.interop.commonjs import Bundle
from tests.interop.test_zws import subscribed, until
from tests.live.chromium import ARGUMENTS, find
from tests.live.gateways import Live, live, run
from tests.unit.gateway.test_protocol_examples import blocks

pytestmark = pytest.mark.interop

PACKAGE = "jszmq@0.1.2"
NPM_S = 120

OPEN = """([kind, url]) => {
  const socket = window.zmq.socket(kind);
  const box = { socket, frames: [], waiting: [] };
  socket.on('message', (...frames) => {
    const hex = frames.map((frame) => frame.toString('hex'));
    const next = box.waiting.shift();
    if (next) next(hex); else box.frames.push(hex);
  });
  socket.connect(url);
  window.boxes = window.boxes || [];
  return window.boxes.push(box) - 1;
}"""
SEND = "([box, parts]) => window.boxes[box].socket.send(parts.map((part) => window.buffer.Buffer.from(part, 'hex')))"
RECEIVE = (
    "(box) => window.boxes[box].frames.shift() || new Promise((done) => window.boxes[box].waiting.push(done))"
)
SUBSCRIBE = "([box, prefix]) => window.boxes[box].socket.subscribe(prefix)"


@pytest.fixture(scope="module")
def script(tmp_path_factory) -> str:
    """The package and all it needs as one script, fresh from the registry."""
    if find() is None:
        pytest.skip("there is no chromium")
    if shutil.which("npm") is None:
        pytest.skip("there is no npm")
    folder = tmp_path_factory.mktemp("jszmq")
    command = [
        "npm",
        "install",
        "--no-audit",
        "--no-fund",
        "--ignore-scripts",
        "--cache",
        str(folder / "cache"),
        PACKAGE,
    ]
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=NPM_S, check=False)
    except subprocess.TimeoutExpired:
        pytest.skip("the npm registry does not answer")
    if done.returncode:
        pytest.skip(f"npm cannot install {PACKAGE}: {done.stderr.strip().splitlines()[-1:]}")
    return Bundle((folder / "node_modules").resolve()).script({"zmq": "jszmq", "buffer": "buffer"})


class Sockets:
    """ZeroMQ sockets of one page."""

    def __init__(self, page, url: str) -> None:
        self.page, self.url = page, url

    async def open(self, kind: str) -> int:
        return await self.page.evaluate(OPEN, [kind, self.url])

    async def send(self, box: int, parts: list[bytes]) -> None:
        await self.page.evaluate(SEND, [box, [part.hex() for part in parts]])

    async def receive(self, box: int) -> list[bytes]:
        return [bytes.fromhex(part) for part in await self.page.evaluate(RECEIVE, box)]

    async def ask(self, box: int, message: Message) -> Message:
        await self.send(box, message.parts())
        return from_parts(await self.receive(box))

    async def subscribe(self, box: int, prefix: str) -> None:
        await self.page.evaluate(SUBSCRIBE, [box, prefix])


def in_chromium(script: str, work) -> None:
    """Run ``work(sockets, gateway)`` in a page of a gateway, logged in by a one-time link."""
    playwright = pytest.importorskip("playwright.async_api", reason=f"{OPTIONAL} playwright is not installed")

    async def body(folder: Path) -> None:
        extra = '[access]\nlogin_links = "owner"\n'
        async with live(folder, extra) as gateway, playwright.async_playwright() as driver:
            context = await driver.chromium.launch_persistent_context(
                str(folder / "profile"), executable_path=find(), headless=True, args=ARGUMENTS
            )
            try:
                once = gateway.gateway.login_link().partition("#once=")[2]
                headers = {"Origin": gateway.url}
                entered = await context.request.post(
                    f"{gateway.url}/v1/login", data={"once": once}, headers=headers
                )
                assert entered.ok, await entered.text()
                page = await context.new_page()
                await page.goto(f"{gateway.url}/livez")
                await page.evaluate(script)
                await work(Sockets(page, gateway.ws), gateway)
            finally:
                await context.close()

    run(body, 60.0)


def test_a_dealer_calls_a_broker(script):
    async def work(sockets: Sockets, gateway: Live) -> None:
        dealer = await sockets.open("dealer")
        for number, (name, value) in enumerate((("rank", "0"), ("size", "1")), 1):
            asked = request("attr.get", encode_json({"name": name}), nodeid=0, matchtag=number)
            answer = await sockets.ask(dealer, asked)
            assert (answer.matchtag, answer.errnum, answer.routes) == (number, 0, [])
            assert decode_json(answer.payload)["value"] == value
        refused = await sockets.ask(dealer, request("no.such.service", None, matchtag=9))
        assert refused.errnum == errno.ENOSYS

    in_chromium(script, work)


def test_part_boundaries_survive_at_every_length(script):
    async def work(sockets: Sockets, gateway: Live) -> None:
        dealer = await sockets.open("dealer")
        answer = await sockets.ask(
            dealer, request("event.subscribe", encode_json({"topic": "size."}), matchtag=1)
        )
        assert answer.errnum == 0
        for size in (0, 1, 124, 125, 126, 254, 255, 256, 65_534, 65_535, 65_536, 300_000):
            await sockets.send(dealer, event(f"size.{size}", bytes(size)).parts())
            heard = from_parts(await sockets.receive(dealer))
            assert (heard.type, heard.topic, len(heard.payload)) == (EVENT, f"size.{size}", size)

    in_chromium(script, work)


def test_a_req_socket_needs_no_delimiter_of_its_own(script):
    async def work(sockets: Sockets, gateway: Live) -> None:
        req = await sockets.open("req")
        await sockets.send(req, request("attr.get", encode_json({"name": "rank"}), matchtag=5).parts()[1:])
        answer = from_parts([b"", *await sockets.receive(req)])
        assert decode_json(answer.payload)["value"] == "0"

    in_chromium(script, work)


def test_a_sub_socket_hears_events(script):
    async def work(sockets: Sockets, gateway: Live) -> None:
        sub, dealer = await sockets.open("sub"), await sockets.open("dealer")
        await sockets.subscribe(sub, "job.")
        await until(lambda: subscribed(gateway, b"job."))
        for topic in ("jobs", "job.new"):
            await sockets.send(dealer, event(topic, encode_json({"id": 1})).parts())
        topic, payload, _proto = await sockets.receive(sub)
        assert (topic, decode_json(payload)) == (b"job.new", {"id": 1})

    in_chromium(script, work)


def test_a_socket_comes_back_by_itself(script):
    async def work(sockets: Sockets, gateway: Live) -> None:
        dealer = await sockets.open("dealer")
        asked = functools.partial(request, "attr.get", encode_json({"name": "rank"}))
        assert (await sockets.ask(dealer, asked(matchtag=1))).errnum == 0
        sessions = gateway.gateway.sessions.by_id
        (session,) = sessions.values()
        session.close(4000, "for a test")
        await until(lambda: any(other is not session for other in sessions.values()))
        assert (await sockets.ask(dealer, asked(matchtag=2))).matchtag == 2

    in_chromium(script, work)


def test_the_example_of_the_protocol_page(script):
    (example,) = [block for block in blocks() if block.kind == "js"]

    async def work(sockets: Sockets, gateway: Live) -> None:
        async with sockets.page.expect_console_message() as said:
            await sockets.page.evaluate(
                "([code, url]) => new Function('require', 'WS', code)((name) => name === 'jszmq' ? zmq : buffer, url)",
                [example.text, gateway.ws],
            )
        assert (await said.value).text + "\n" == example.output

    in_chromium(script, work)
