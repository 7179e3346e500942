"""Two gateways that share nothing, behind a plain TCP balancer; one is killed under load, and no client notices."""

import asyncio
import threading

import pytest

import broker.client
from tests.browser.stage import USERS
from tests.live.brokers import eventually
from tests.live.pair import pair, token

pytestmark = pytest.mark.patient
CLIENTS = 8
EVENTS = 400
PAUSE_S = 0.01
WATCH = """async ({url, token, clients}) => {
    const {connect} = await import(url + '/client.js');
    window.heard = Array.from({length: clients}, () => []);
    window.told = [];
    window.failed = [];
    window.answered = 0;
    for (let at = 0; at < clients; at += 1) {
        const flux = connect(url + '/v1/ws', {token});
        flux.on('resumed', ({recovered}) => told.push(recovered));
        flux.on('close', ({text}) => failed.push(text));
        await flux.subscribe('open.', ({payload}) => heard[at].push(payload.n));
        (async () => {
            for (;;) {
                try {
                    await flux.rpc('attr.get', {name: 'size'});
                    window.answered += 1;
                } catch (error) {
                    if (error.name !== 'ECONNRESET') failed.push(String(error));
                }
                await new Promise((done) => { setTimeout(done, 20); });
            }
        })();
    }
}"""


def publish(uri: str) -> None:
    """Numbered events, one after another."""

    async def work():
        async with broker.client.connect(uri) as h:
            for number in range(EVENTS):
                await h.publish("open.number", {"n": number})
                await asyncio.sleep(PAUSE_S)

    asyncio.run(work())


def test_clients_go_on_at_the_other_gateway_and_miss_nothing(browser, four, rundir):
    with pair(rundir, four, users=USERS) as both:
        page = browser.new_page()
        page.goto(f"{both.url}/login")
        page.evaluate(WATCH, {"url": both.url, "token": token("bob"), "clients": CLIENTS})
        publishing = threading.Thread(target=publish, args=(four,))
        publishing.start()
        eventually(lambda: page.evaluate("Math.min(...heard.map((one) => one.length))") > EVENTS // 4)
        before = page.evaluate("answered")
        both.first.kill()
        publishing.join()
        eventually(lambda: page.evaluate("heard.map((one) => one.length)"), [EVENTS] * CLIENTS)
        assert page.evaluate("heard") == [list(range(EVENTS))] * CLIENTS, "each once, in order"
        told = page.evaluate("told")
        assert 1 <= len(told) <= CLIENTS - 1, "some were at the gateway that was killed, and not all"
        assert all(told)
        assert page.evaluate("failed") == []
        assert page.evaluate("answered") > before
        page.close()
