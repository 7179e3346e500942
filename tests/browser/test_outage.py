"""The gateway goes away and comes back while somebody looks."""

import shutil
import signal
import tempfile
from pathlib import Path

import pytest

from tests.browser.stage import Stage
from tests.live.brokers import eventually, one_broker, tree

pytestmark = pytest.mark.patient

MOVES = """async (line) => {
    let moves = 0;
    const observer = new MutationObserver(() => { moves += 1; });
    observer.observe(document.querySelector(line), {attributes: true});
    await new Promise(done => setTimeout(done, 8000));
    return moves;
}"""
"""How often a line is drawn anew in eight seconds."""


def value(page, figure):
    return page.text_content(f'[data-figure="{figure}"] .figure-value').strip()


def test_a_killed_gateway_is_told_and_its_return_is_noticed(look):
    page = look.dashboard()
    page.wait_for_selector(".event-row")
    look.kill_gateway()
    page.wait_for_selector("#banner:has-text('Disconnected')")
    assert page.locator("#banner-act:has-text('Try now')").is_visible()
    assert page.text_content("#link-state").strip() == "disconnected"
    stale = "getComputedStyle(document.querySelector('#overlay h2'), '::after').content"
    assert page.evaluate(stale) == '"stale"'
    assert page.locator(".node").count() == 4
    look.start_gateway()
    page.wait_for_selector("#banner", state="hidden", timeout=30_000)
    assert page.text_content("#link-state").strip() == "live"
    page.wait_for_selector(".event-row[data-note]:has-text('connection is back')")
    look.publish("after.outage", {})
    page.wait_for_selector(".event-row:has-text('after.outage')")
    eventually(lambda: page.locator(".node[data-status=full]").count(), 4)


def test_a_frozen_gateway_is_told_within_seconds(look):
    """Nothing is lost, so nothing is closed; what is shown is grey and says since when, until it goes on."""
    page = look.dashboard()
    page.wait_for_selector('.node[data-rank="3"][data-status=full]')
    look.gateway.signal(signal.SIGSTOP)
    try:
        page.wait_for_selector("#link-state:has-text('no answer for')", timeout=15_000)
        assert "Nothing has been answered for" in page.text_content("#banner")
        eventually(page.locator(".node[data-status=silent]").count, 4)
        eventually(lambda: value(page, "Brokers"), "0 / 4")
    finally:
        look.gateway.signal(signal.SIGCONT)
    page.wait_for_selector("body[data-link=open]")
    eventually(lambda: page.locator(".node[data-status=full]").count(), 4)
    assert page.locator("#banner").is_hidden()


def test_one_frozen_broker_is_named_and_delays_nobody(look, four_brokers):
    page = look.dashboard()
    page.wait_for_selector('.node[data-rank="3"][data-status=full]')
    four_brokers[3].signal(signal.SIGSTOP)
    try:
        page.wait_for_selector('.node[data-rank="3"][data-status=silent]', timeout=15_000)
        eventually(lambda: value(page, "Brokers"), "3 / 4")
        page.wait_for_selector("#incident:has-text('rank 3: no answer for')")
        assert page.title().startswith("rank 3: no answer for")
        assert page.get_attribute("#icon", "href") == "favicon-trouble.svg"
        assert "rank 3: no answer for" in page.text_content('[data-figure="Brokers"]')
        assert page.text_content("#link-state").strip() == "live"
        assert page.evaluate(MOVES, "#traffic .line .spark-line") >= 4  # 2 where every round waits for it
    finally:
        four_brokers[3].signal(signal.SIGCONT)
    page.wait_for_selector('.node[data-rank="3"][data-status=full]', timeout=30_000)
    page.wait_for_selector("#incident", state="hidden")
    assert page.title() == "Headgate"


def test_a_broker_that_is_lost_is_an_incident_with_those_below_it(browser, rundir):
    with tree(rundir, 4, "[broker]\nheartbeat_period_s = 0.5\n") as running:
        stage = Stage(browser, running.ranks[0].uri, rundir)
        try:
            page = stage.dashboard()
            running.ranks[1].kill()
            page.wait_for_selector("#incident:has-text('rank 1 lost')", timeout=30_000)
            eventually(lambda: "rank 3 with it" in page.text_content("#incident"))
            assert page.title().startswith("rank 1 lost")
            stage.sweep()
        finally:
            stage.close()


def test_trying_now_does_not_wait_for_the_pause(look):
    page = look.dashboard()
    look.kill_gateway()
    page.wait_for_selector("#banner:has-text('Disconnected')")
    look.start_gateway()
    page.evaluate("document.querySelector('#banner-act').click()")
    page.wait_for_selector("body[data-link=open]")


def test_a_gateway_without_its_broker_says_so(browser):
    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    try:
        with one_broker(folder) as broker:
            stage = Stage(browser, broker.uri, folder)
            try:
                page = stage.page()
                page.goto(stage.link())
                page.wait_for_selector(".node")
                broker.kill()
                page.wait_for_selector("#banner:has-text('lost its broker')")
                assert page.text_content("#link-state").strip() == "no broker"
                broker.start()
                page.wait_for_selector("#banner", state="hidden")
                page.wait_for_selector(".event-row[data-note]:has-text('has its broker again')")
                eventually(lambda: page.locator(".node[data-status=full]").count(), 1)
                stage.sweep()
            finally:
                stage.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
