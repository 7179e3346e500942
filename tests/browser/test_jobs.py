"""The panel of jobs, with an NFP broker and a worker attached to the tree; where there is none, so is no tab."""

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.stage import hurry
from tests.browser.test_layout import CONTRAST
from tests.live.attached import Attached, attached
from tests.live.brokers import eventually

START_S = 20.0


@pytest.fixture(scope="module")
def nfp(four: str) -> Iterator[Attached]:
    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    try:
        with attached(folder, four) as running:
            yield running
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def copying(look, nfp, **kwargs) -> Iterator[tuple[Path, dict[str, object]]]:
    """A job that runs until the gate, which is given, exists; and its answer once it is there."""
    gate = Path(tempfile.mkdtemp(dir=nfp.folder)) / "gate"
    answer: dict[str, object] = {}

    def call() -> None:
        with contextlib.suppress(OSError):  # a job that was cancelled is an error of HTTP
            answer.update(look.rpc("nfp.lab.copy", {"kwargs": {"gate": str(gate), **kwargs}, "timeout": 60}))

    caller = threading.Thread(target=call)
    caller.start()
    try:
        yield gate, answer
    finally:
        gate.touch()
        caller.join(START_S)


def jobs(look, **context):
    page = look.dashboard(**context)
    page.wait_for_selector("#tab-jobs:not([hidden])")
    page.click("#tab-jobs")
    page.wait_for_selector("#panel-jobs tr:has-text('lab-1')")
    return page


def test_without_an_nfp_broker_there_is_no_tab(look):
    page = look.dashboard()
    assert page.locator("#tab-jobs").is_hidden()
    page.keyboard.press("7")
    assert page.locator("#panel-events").is_visible()


@pytest.mark.smoke
def test_services_and_workers_with_their_load(look, nfp):
    page = jobs(look, hurried=True)
    row = page.locator("#panel-jobs section:has-text('Workers') tr:has-text('lab-1')")
    eventually(lambda: "alive" in row.text_content() and "0 of 1" in row.text_content())
    service = page.locator("#panel-jobs section:has-text('Services') tr:has-text('lab')").first
    assert service.is_visible()
    with copying(look, nfp):
        hurry(page, lambda: "1 of 1" in row.text_content())
    hurry(page, lambda: "0 of 1" in row.text_content())


def test_a_bar_moves_with_the_events_of_its_job(look, nfp):
    page = jobs(look)
    with copying(look, nfp, done=4) as (gate, answer):
        job = page.locator(".job:has-text('lab copy'):has-text('running')")
        job.wait_for()
        eventually(lambda: job.locator("progress").get_attribute("value"), "0.400")
        assert "copying 4 of 10" in job.text_content()
        assert "lab-1" in job.text_content()
        assert page.text_content("#tab-jobs .badge") == "1"
        uuid = job.get_attribute("data-uuid")
        gate.touch()
        over = page.locator(f'.job[data-uuid="{uuid}"][data-mood=ok]')
        over.wait_for()
        assert (over.locator("progress").get_attribute("value"), over.locator("button").is_hidden()) == (
            "1.000",
            True,
        )
    assert answer["uuid"] == uuid
    eventually(lambda: page.locator("#tab-jobs .badge").is_hidden())


@pytest.mark.patient
def test_a_page_that_comes_later_knows_how_far_a_job_is(look, nfp):
    with copying(look, nfp, done=7):
        eventually(lambda: look.rpc("nfp.jobs.count")["open"], 1)
        page = jobs(look)
        job = page.locator(".job:has-text('running')")
        eventually(lambda: job.locator("progress").get_attribute("value"), "0.700")
        assert "copying 7 of 10" in job.text_content()


@pytest.mark.patient
def test_a_job_is_cancelled_with_two_presses(look, nfp):
    page = jobs(look)
    with copying(look, nfp):
        job = page.locator(".job:has-text('running')")
        job.wait_for()
        uuid = job.get_attribute("data-uuid")
        job.locator("button").click()
        assert job.locator("button").text_content() == "Sure?"
        job.locator("button").click()
        page.wait_for_selector(f'.job[data-uuid="{uuid}"][data-mood=muted]:has-text("cancelled")')


@pytest.mark.patient
def test_a_job_whose_task_failed_is_not_shown_as_done(look, nfp):
    page = jobs(look, hurried=True)
    answer = look.rpc("nfp.lab.fail", {"timeout": 60})
    assert answer["results"]["lab-1"]["failed"] is True
    job = page.locator(f'.job[data-uuid="{answer["uuid"]}"][data-mood=bad]:has-text("failed")')
    hurry(page, lambda: job.count(), 1)


@pytest.mark.patient
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_in_both_themes_and_fits_a_phone(look, nfp, scheme):
    with copying(look, nfp):
        page = jobs(look, color_scheme=scheme)
        page.wait_for_selector(".job:has-text('running')")
        assert page.evaluate(CONTRAST) == []
        page.set_viewport_size({"width": 390, "height": 844})
        page.wait_for_timeout(300)
        width, wide = page.evaluate(
            """() => [document.documentElement.scrollWidth,
                      [...document.querySelectorAll('#panel-jobs *')].filter(each => each.checkVisibility()
                          && each.getBoundingClientRect().right > 391).map(each => each.outerHTML.slice(0, 80))]"""
        )
        assert (width, wide) == (390, [])


@pytest.mark.patient
def test_a_role_that_may_not_ask_sees_no_tab_and_is_not_refused(look, nfp):
    before = look.rpc("gateway.denied")["total"]
    page = look.guest()
    page.wait_for_selector(".node >> nth=3")
    page.wait_for_timeout(1000)  # it asks the rules once it is connected
    assert page.locator("#tab-jobs").is_hidden()
    assert look.rpc("gateway.denied")["total"] == before


@pytest.mark.patient
def test_the_tab_goes_when_the_broker_goes(look, nfp):
    page = jobs(look, hurried=True)
    nfp.broker.terminate()
    nfp.broker.wait(START_S)
    hurry(page, lambda: page.locator("#tab-jobs").is_hidden())
    assert page.locator("#panel-events").is_visible()
