"""The dashboard below a path of a reverse proxy that takes the path away, or leaves it."""

import pytest

from gateway.identity.login import add_link, link_url
from gateway.identity.store import Store
from tests.browser.stage import USERS
from tests.live.balancer import balancer
from tests.live.gateways import gateway_process
from tests.live.pair import place

pytestmark = pytest.mark.patient
PREFIX = "/team/headgate"
ASK = """async (url) => {
    const {connect} = await import(url + '/client.js');
    const flux = connect('v1/ws');
    const answer = await flux.rpc('attr.get', {name: 'size'});
    const http = await fetch('v1/rpc/attr.get', {
        method: 'POST', body: '{"name":"rank"}', headers: {'Content-Type': 'application/json'},
    });
    const source = new EventSource('v1/events?prefix=open.');
    await new Promise((done, failed) => { source.addEventListener('welcome', done); source.onerror = failed; });
    source.close();
    flux.close();
    return [answer.value, (await http.json()).value];
}"""


@pytest.mark.parametrize("take_away", [b"", PREFIX.encode()], ids=["left", "taken away"])
def test_below_a_path(browser, four, rundir, take_away):
    with (
        gateway_process(rundir, four, f'prefix = "{PREFIX}"\n', users=USERS) as gateway,
        balancer([place(gateway)], take_away=take_away) as port,
    ):
        store = Store(gateway.settings.gateway.statedir)
        secret = add_link(store, "owner", seconds=60, loopback_only=True)
        store.close()
        url = f"http://127.0.0.1:{port}{PREFIX}"
        page = browser.new_page()
        failed = []
        page.on("response", lambda answer: failed.append(answer.url) if answer.status == 404 else None)
        page.goto(link_url(url, secret))
        page.wait_for_selector(".node >> nth=3")
        assert page.url.startswith(f"{url}/")
        assert page.evaluate(ASK, url) == ["4", "0"]
        assert not failed
        page.close()
