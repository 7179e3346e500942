"""The tutorial "A dashboard in ten minutes": its settings, its page, in Chromium, in front of four brokers."""

import functools
import http.server
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.client.blocking import connect
from tests.live.brokers import eventually
from tests.live.gateways import GatewayProcess
from tests.live.pages import Page
from tests.live.ports import free_port
from tests.live.verbs import headgate

pytestmark = pytest.mark.patient
TUTORIAL = Page("tutorials/dashboard.md")
GATEWAY, ORIGIN = "http://127.0.0.1:8290", "http://127.0.0.1:8000"


@pytest.fixture
def origin(tmp_path: Path) -> Iterator[str]:
    """Where ``index.html`` of ``tmp_path`` is served."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture
def wall(tmp_path: Path, four: str, origin: str) -> Iterator[GatewayProcess]:
    config = tmp_path / "wall.toml"
    settings = TUTORIAL.block("toml", "[[users]]").replace(":8290", f":{free_port()}").replace(ORIGIN, origin)
    config.write_text(
        f'[gateway]\nupstream = "{four}"\nstatedir = "{tmp_path}/state"\ndrain_s = 0.1\n' + settings
    )
    running = GatewayProcess(config)
    try:
        running.wait_ready()
        yield running
    finally:
        running.kill()


def test_the_page_shows_what_happens_and_may_do_no_more(browser, four, origin, wall, tmp_path):
    there = wall.urls[0].rstrip("/")
    page_of = TUTORIAL.block("html", "client.js").replace("//127.0.0.1:8290", there.partition(":")[2])
    (tmp_path / "index.html").write_text(page_of)
    context = browser.new_context()
    try:
        page = context.new_page()
        page.goto(f"{origin}/#{wall.tokens['wall']}")
        eventually(lambda: page.inner_text("#size"), "4")
        with connect(four) as h:
            eventually(
                lambda: h.publish("demo.lamp", {"on": True}) and page.locator("#events li").count() > 0
            )
        assert 'demo.lamp {"on":true}' in page.inner_text("#events li >> nth=0")
        refused = page.evaluate(
            """async ([url, token]) => {
                const { connect } = await import(`${url}/client.js`);
                const client = connect(`${url.replace('http', 'ws')}/v1/ws`, { token });
                try { await client.publish('demo.lamp', {}); return ''; } catch (error) { return error.name; }
            }""",
            [there, wall.tokens["wall"]],
        )
        assert refused == "EPERM"
        link = headgate("login", "link", "--config", tmp_path / "wall.toml")  # as step 4 says
        assert (link.returncode, "/login" in link.stdout) == (0, True), link.stderr
        # and as step 3 says: what is published while there is no gateway comes, too
        wall.stop()
        with connect(four) as h:
            h.publish("demo.lamp", {"on": False})
        again = GatewayProcess(tmp_path / "wall.toml")
        try:
            again.wait_ready()
            eventually(lambda: 'demo.lamp {"on":false}' in page.inner_text("#events li >> nth=0"))
        finally:
            again.kill()
    finally:
        context.close()
