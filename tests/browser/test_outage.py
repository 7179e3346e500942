"""The gateway goes away and comes back while somebody looks."""

import shutil
import tempfile
from pathlib import Path

import pytest

from tests.browser.stage import Stage
from tests.live.brokers import eventually, one_broker

pytestmark = pytest.mark.patient


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
