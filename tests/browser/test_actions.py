"""What an operator does in the dashboard: keep what is shown, revoke a credential; each asks before it is done."""

import contextlib
import json
import os
import signal
import time

import pytest

from gateway.identity.store import Store
from gateway.identity.tokens import TokenFile, token_path
from tests.browser.stage import Stage, press
from tests.live.brokers import eventually, tree
from tests.live.gateways import gateway_process
from tests.live.redis_server import redis_server
from tests.live.speaker import Closed, Speaker

pytestmark = pytest.mark.patient


def kept(page, button) -> str:
    """What a press of ``button`` has the browser keep."""
    with page.expect_download() as download:
        button.click()
    return download.value.path().read_text()


def test_tables_and_consoles_are_kept_as_files(look):
    page = look.dashboard("sessions")
    page.wait_for_selector("#panel-sessions table[aria-label='Web sessions'] tbody tr")
    heads, *rows = kept(page, page.get_by_label("Web sessions as CSV")).splitlines()
    assert heads.startswith("user,role,speaks,from,since,")
    assert rows[0].count(",") >= heads.count(",")
    page.click("#tab-log")
    eventually(lambda: page.inner_text("#panel-log .count").endswith("kept"))
    lines = [
        json.loads(line) for line in kept(page, page.locator("#panel-log").get_by_text("Save")).splitlines()
    ]
    assert {"at", "severity", "rank", "text"} <= lines[0].keys()


def test_a_spreadsheet_finds_no_formula_in_a_file(look):
    page = look.bench()
    rows = [["a", "b"], ["=SUM(A1)", "-3"], ['say "x", y', "@me\nyou"]]
    text = page.evaluate("async (rows) => (await import('./lib/download.js')).csv(rows)", rows)
    assert text == 'a,b\r\n\'=SUM(A1),-3\r\n"say ""x"", y","\'@me\nyou"\r\n'


def test_a_credential_is_revoked_after_a_second_press(look):
    tokens = TokenFile(token_path(look.gateway.settings))
    made, text = tokens.add("bob", now=time.time())
    guest = look.page()
    guest.goto(look.url)
    guest.fill("#token", text)
    guest.click("#login button[type=submit]")
    guest.wait_for_selector("body[data-link=open]")
    page = look.dashboard("sessions")
    revoke = page.get_by_label("Revoke what bob logged in with").last
    revoke.click()
    assert revoke.inner_text() == "Sure?"
    assert guest.get_attribute("body", "data-link") == "open"
    press(revoke)
    guest.wait_for_selector("body[data-link=login]")
    assert made.id in {credential.partition(":")[2] for credential in revoked(look)}


def revoked(look) -> list[str]:
    with contextlib.closing(Store(look.gateway.settings.gateway.statedir)) as store:
        return list(store.revocations())


def test_a_client_of_a_broker_is_sent_away(look, four):
    page = look.dashboard("sessions")
    with Speaker(four) as client:
        assert client.ping() == 0
        ends = page.locator("table[aria-label='Clients of the brokers'] tr", has_text=f"{os.getpid()}")
        press(ends.get_by_role("button"))
        with pytest.raises(Closed):
            client.receive()


def test_other_gateways_are_shown_with_the_sum_and_one_that_is_silent_is_named(browser, four, rundir):
    for name in "ab":
        (rundir / name).mkdir()
    with contextlib.ExitStack() as stack:
        _process, port = stack.enter_context(redis_server(rundir))
        extra = f'redis = "redis://127.0.0.1:{port}/0"\n'
        other = stack.enter_context(gateway_process(rundir / "b", four, extra))
        stage = Stage(browser, four, rundir / "a", extra)
        stack.callback(stage.close)
        page = stage.dashboard("sessions")
        rows = page.locator("table[aria-label='Gateways'] tbody tr")
        eventually(rows.count, 3)
        assert rows.last.locator("td").first.inner_text() == "all"
        assert rows.last.locator("td[data-name=sessions]").inner_text() == "1"
        other.signal(signal.SIGSTOP)
        try:
            eventually(lambda: rows.filter(has_text="does not answer").count(), 1)
        finally:
            other.signal(signal.SIGCONT)
        eventually(lambda: (rows.count(), rows.filter(has_text="does not answer").count()), (3, 0))
        stage.sweep()


def test_a_gateway_is_drained_and_its_page_waits_for_the_next_one(look):
    page = look.dashboard("sessions")
    press(page.get_by_label("Drain this gateway"))
    page.wait_for_selector("#banner:has-text('about to leave'), #banner:has-text('Disconnected')")
    assert look.gateway.process.wait(30) == 0
    look.kill_gateway()
    look.start_gateway()
    page.wait_for_selector("body[data-link=open]", timeout=30_000)


def test_a_rank_is_drained_by_the_owner_and_by_nobody_else(browser, rundir):
    with tree(rundir, 4, "[broker]\nheartbeat_period_s = 0.5\n") as running:
        stage = Stage(browser, running.ranks[0].uri, rundir)
        try:
            page = stage.dashboard()
            page.click('.node[data-rank="3"]')
            press(page.get_by_label("Drain rank 3"))
            assert running.ranks[3].wait() == 0
            page.wait_for_selector("#incident:has-text('rank 3')")
            stage.sweep()
        finally:
            stage.close()


def test_an_event_is_published_from_the_form(look):
    page = look.dashboard("call")
    page.fill("#call-topic", "open.door")
    page.fill("#call-payload", '{"by": "hand"}')
    page.click("#panel-call button:has-text('Publish')")
    page.wait_for_selector("#panel-call .outcome:has-text('Published as event')")
    page.click("#tab-events")
    page.wait_for_selector(".event-row:has-text('open.door')")
