"""The panel of jobs, with an NFP broker and a worker attached to the tree; where there is none, so is no tab."""

import contextlib
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.browser.stage import hurry, press
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


@pytest.mark.patient
def test_without_an_nfp_broker_there_is_no_tab(look):
    page = look.dashboard()
    assert page.locator("#tab-jobs").is_hidden()
    page.keyboard.press("9")
    assert page.locator("#panel-events").is_visible()


@pytest.mark.smoke
def test_services_and_workers_with_their_load(look, nfp):
    page = jobs(look, hurried=True)
    row = page.locator("#panel-jobs section:has-text('Workers') tr:has-text('lab-1')")
    eventually(lambda: "alive" in row.text_content() and "0 of 5" in row.text_content())
    service = page.locator("#panel-jobs section:has-text('Services') tr:has-text('lab')").first
    assert service.is_visible()
    with copying(look, nfp):
        hurry(page, lambda: "1 of 5" in row.text_content())
    hurry(page, lambda: "0 of 5" in row.text_content())


@pytest.mark.patient
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
        assert (over.locator("progress").get_attribute("value"), over.locator(".job-end").is_hidden()) == (
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
        press(job.locator(".job-end"))
        page.wait_for_selector(f'.job[data-uuid="{uuid}"][data-mood=muted]:has-text("cancelled")')


@pytest.mark.patient
def test_a_job_whose_task_failed_is_not_shown_as_done(look, nfp):
    page = jobs(look, hurried=True)
    answer = look.rpc("nfp.lab.fail", {"timeout": 60})
    assert answer["results"]["lab-1"]["failed"] is True
    job = page.locator(f'.job[data-uuid="{answer["uuid"]}"][data-mood=bad]:has-text("failed")')
    hurry(page, lambda: job.count(), 1)


@pytest.mark.patient
def test_a_failed_job_shows_arguments_error_and_traceback(look, nfp):
    page = jobs(look, hurried=True)
    answer = look.rpc("nfp.lab.fail", {"kwargs": {"device": "r-17"}, "timeout": 60})
    job = page.locator(f'.job[data-uuid="{answer["uuid"]}"]')
    hurry(page, lambda: "ValueError: no such device r-17" in ((job.count() and job.text_content()) or ""))
    assert 'device="r-17"' in job.text_content()
    job.locator(".job-what").click()
    page.wait_for_selector(".job-traceback")
    detail = page.text_content(".job-detail")
    assert answer["uuid"] in detail
    assert "lab-1 · failed" in detail
    assert "Traceback (most recent call last)" in page.text_content(".job-traceback")
    failed = page.locator("#panel-jobs section:has-text('Workers') tr:has-text('lab-1') td[data-name=failed]")
    hurry(page, lambda: int(failed.text_content()) >= 1)
    job.locator(".job-what").click()
    assert page.locator(".job-detail").count() == 0


@pytest.mark.patient
def test_the_list_is_searched_and_filtered(look, nfp):
    page = jobs(look, hurried=True)
    good = look.rpc("nfp.lab.ping", {"kwargs": {"n": 4711}, "timeout": 60})["uuid"]
    bad = look.rpc("nfp.lab.fail", {"kwargs": {"device": "r-4711"}, "timeout": 60})["uuid"]

    def listed():
        return page.locator(".job").evaluate_all("all => all.map((each) => each.dataset.uuid)")

    form = page.get_by_role("search", name="Jobs")
    form.get_by_label("Text in id, arguments or error").fill("4711")
    hurry(page, lambda: sorted(listed()) == sorted([good, bad]))
    form.get_by_label("State", exact=True).select_option("failed")
    hurry(page, lambda: listed(), [bad])
    form.get_by_label("Service", exact=True).select_option("lab")
    form.get_by_label("Worker", exact=True).select_option("lab-1")
    form.get_by_label("Task", exact=True).fill("ping")
    hurry(page, lambda: listed(), [])
    assert page.locator(".empty:has-text('No job is like that.')").is_visible()


@pytest.mark.patient
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_is_readable_in_both_themes_and_fits_a_phone(look, nfp, scheme):
    look.rpc("nfp.lab.fail", {"kwargs": {"device": "x" * 200}, "timeout": 60})
    with copying(look, nfp):
        page = jobs(look, color_scheme=scheme)
        page.wait_for_selector(".job:has-text('running')")
        page.locator(".job:has-text('lab fail') .job-what").first.click()
        page.wait_for_selector(".job-traceback")
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
