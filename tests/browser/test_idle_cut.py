"""A balancer that cuts idle connections: client.js stays, by the gateway's pings, or comes back without loss."""

import time

import pytest

from tests.browser.stage import USERS
from tests.live.balancer import balancer
from tests.live.brokers import eventually
from tests.live.gateways import gateway_process
from tests.live.pair import place

pytestmark = pytest.mark.patient
IDLE_S = 0.8
WATCH = """async ({url, token}) => {
    const {connect} = await import(url + '/client.js');
    Object.assign(window, {heard: [], cut: 0, told: []});
    window.flux = connect(url + '/v1/ws', {token, reconnect: {minMs: 20, maxMs: 100}});
    flux.on('reconnecting', () => { window.cut += 1; });
    flux.on('resumed', ({recovered}) => told.push(recovered));
    await flux.subscribe('open.', ({payload}) => heard.push(payload.n));
}"""
PUBLISH = """async ({url, token, n}) => {
    await fetch(url + '/v1/events/open.number', {
        method: 'POST', headers: {Authorization: 'Bearer ' + token, 'Content-Type': 'application/json'},
        body: JSON.stringify({n}),
    });
}"""


@pytest.mark.parametrize("ping_s", [0.2, 25])
def test_an_idle_cut(browser, four, rundir, ping_s):
    with (
        gateway_process(rundir, four, f"[limits]\nping_s = {ping_s}\n", users=USERS) as gateway,
        balancer([place(gateway)], IDLE_S) as port,
    ):
        given = {"url": f"http://127.0.0.1:{port}", "token": gateway.tokens["bob"]}
        page = browser.new_page()
        page.goto(f"{given['url']}/login")
        page.evaluate(WATCH, given)
        for number in range(3):
            if ping_s < IDLE_S:
                time.sleep(2 * IDLE_S)
            else:
                eventually(lambda least=number: page.evaluate("window.cut") > least)
            page.evaluate(PUBLISH, given | {"n": number})
            eventually(lambda upto=number: page.evaluate("window.heard") == list(range(upto + 1)))
        assert bool(page.evaluate("window.cut")) == (ping_s > IDLE_S)
        assert all(page.evaluate("window.told"))
        page.close()
