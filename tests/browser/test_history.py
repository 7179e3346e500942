"""The history in a real browser: charts, tables and filters of a rich warehouse; what is said where there is none."""

import re
import shutil
import tempfile
import time
from pathlib import Path

import pytest

from gateway.pipeline import report
from tests.browser import stage as stages
from tests.browser.stage import Stage, hurry
from tests.browser.test_layout import CONTRAST
from tests.live import warehouse as wh
from tests.live.brokers import eventually
from tests.live.warehouse import ONCE, WHEN

UTC = {"timezone_id": "UTC", "locale": "en-GB"}
LONG = "0f1f0f8f-74ef-4854-aeb6-9f5a77e6d55d"
CHARTS = ("traffic", "latency", "errors", "denied", "slow", "jobs", "notifications")


@pytest.fixture(scope="module")
def house():
    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    try:
        yield wh.rich(folder, finished_at=time.time() - 200)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def stage(browser, four, house):
    """A gateway with this history; what the other tests have is without."""
    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "USERS", f'[history]\nwarehouse = "{house}"\n{stages.USERS}')
        running = Stage(browser, four, folder)
    try:
        yield running
    finally:
        running.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def plain(browser, four):
    """A gateway without a history."""
    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    running = Stage(browser, four, folder)
    try:
        yield running
        running.sweep()
    finally:
        running.close()
        shutil.rmtree(folder, ignore_errors=True)


def history(look, **context):
    page = look.dashboard("history", **UTC, **context)
    drawn(page)
    return page


def drawn(page):
    """Until the last answer is there."""
    page.wait_for_selector(".history-notifications .chart-bar[d^='M']")


def rows(page, caption):
    """The cells of a table."""
    return page.eval_on_selector_all(
        f"table[aria-label='{caption}'] tbody tr",
        "rows => rows.map(row => [...row.children].map(cell => cell.textContent))",
    )


@pytest.mark.smoke
def test_charts_and_tables_show_what_the_warehouse_holds(look):
    page = history(look)
    for name in CHARTS:
        picture = page.locator(f".history-{name} .chart-picture").first
        assert picture.is_visible(), name
        assert "NaN" not in picture.inner_html(), name
    assert page.locator(".history-traffic .chart-line").count() == 4
    assert "longest at most 6" in page.get_attribute(".history-latency .chart-picture", "aria-label")
    assert {row[0] for row in rows(page, "Top users")} == {"1001", "1002", "1003", "unknown"}
    assert rows(page, "Newest refusals")[0][:5] == ["03-02 12:19", "1003", "secret.read", "EPERM", "web-0"]
    assert page.text_content(".verdict").endswith("2 out of order, 1 missing.")
    assert rows(page, "Pairs out of order")[0][:3] == ["client-4", "job-1", "response"]
    assert [row[1] for row in rows(page, "Event numbers")] == ["gap", "reorder"]
    assert rows(page, "Who lost")[0][0] == "web-2"
    assert {row[1] for row in rows(page, "Jobs by task")} == {"backup", "ping"}
    assert [row[1] for row in rows(page, "Runs of the pipeline")] == ["batch", "ingest"]
    assert page.text_content(".history-fresh") == "data until 03-02 23:40; the pipeline ran 3 min ago"
    assert page.get_attribute(".history-fresh", "data-mood") == "ok"


@pytest.mark.patient
def test_filters_ask_again(look):
    page = history(look)
    page.select_option("select[aria-label=Service]", "store")
    eventually(lambda: {row[0] for row in rows(page, "Top topics")}, {"store.get", "store.put"})
    page.select_option("select[aria-label=Rank]", "1")
    page.select_option("select[aria-label='Traffic by']", "topic")
    names = "items => items.map(item => item.textContent)"
    eventually(
        lambda: sorted(page.eval_on_selector_all(".history-traffic .chart:first-child .legend li", names)),
        ["store.get", "store.put"],
    )
    eventually(lambda: {row[5] for row in rows(page, "Newest refusals")}, set())
    page.select_option("select[aria-label=Service]", "")
    eventually(lambda: {row[5] for row in rows(page, "Newest refusals")}, {"1"})
    eventually(lambda: [row[:3] for row in rows(page, "Who lost")], [["rank1", "1", "shed"]])


@pytest.mark.patient
def test_time_is_chosen_by_length_and_walked(look):
    page = history(look)
    when = ".history-when"
    assert page.text_content(when) == "03-01 23:40 \N{EN DASH} 03-02 23:40"
    assert page.is_disabled("button[aria-label=Later]")
    page.select_option("select[aria-label=Time]", "168")
    eventually(lambda: page.text_content(when), "03-01 00:00 \N{EN DASH} 03-02 23:40")
    assert page.is_disabled("button[aria-label=Earlier]")
    page.select_option("select[aria-label=Time]", "6")
    eventually(lambda: page.text_content(when), "03-02 17:40 \N{EN DASH} 03-02 23:40")
    page.click("button[aria-label=Earlier]")
    eventually(lambda: page.text_content(when), "03-02 11:40 \N{EN DASH} 03-02 17:40")
    eventually(lambda: page.locator(".history-denied .empty:visible").count(), 0)
    page.click("button[aria-label=Later]")
    eventually(lambda: page.text_content(when), "03-02 17:40 \N{EN DASH} 03-02 23:40")
    eventually(lambda: page.locator(".history-denied .empty:visible").count(), 2)


@pytest.mark.patient
def test_a_step_is_read_by_pointer_and_keyboard(look):
    page = history(look)
    chart = page.locator(".history-slow .chart-picture")
    chart.focus()
    readout = ".history-slow .readout"
    assert page.text_content(readout) == ""
    page.keyboard.press("Home")
    assert page.text_content(readout).startswith("03-01 23:")
    page.keyboard.press("ArrowRight")
    second = page.text_content(readout)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    page.mouse.move(box["x"] + box["width"] - 12, box["y"] + 60)
    eventually(lambda: page.text_content(readout).startswith("03-02 23:"))
    assert page.text_content(readout) != second
    assert page.get_attribute(".history-slow .chart-cursor", "visibility") == "visible"


@pytest.mark.patient
def test_it_has_the_page_for_itself_and_gives_it_back(look):
    page = history(look)
    assert page.locator("#overlay").is_hidden()
    page.keyboard.press("o")
    assert page.locator("#overlay").is_visible()
    assert page.evaluate("document.activeElement.dataset.rank") == "0"


@pytest.mark.patient
def test_new_data_appears_by_itself(look, house):
    """A run of the pipeline adds rows; the page looks again and again, and then asks for everything."""
    page = history(look, hurried=True)
    try:
        wh.write(house, "slow", [{"_when": wh.LAST - 900, "ts": wh.at(wh.LAST - 900), "rank": 0, "peer": "late-1",
                                  "what": "drop", "events": 9999}], "late")  # fmt: skip
        wh.write(
            house, "_runs", [{"_when": wh.FIRST, "job": "stream", "finished_at": wh.at(time.time())}], "late"
        )
        hurry(page, lambda: "late-1" in [row[0] for row in rows(page, "Who lost")])
    finally:
        wh.withdraw(house, "slow", "late")
        wh.withdraw(house, "_runs", "late")


@pytest.mark.patient
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(look, scheme):
    page = history(look, color_scheme=scheme)
    assert page.evaluate(CONTRAST) == []
    colours = page.evaluate(
        "() => [getComputedStyle(document.querySelector('.chart-line')).stroke, "
        "getComputedStyle(document.querySelector('.workspace')).backgroundColor]"
    )
    assert colours[0] != colours[1]


@pytest.mark.patient
def test_a_phone_needs_no_sideways_scrolling(look):
    page = history(look, width=390, height=844)
    width, wide = page.evaluate(
        """() => [document.documentElement.scrollWidth,
                  [...document.querySelectorAll('#panel-history *')].filter(each => each.checkVisibility()
                      && !each.closest('svg') && each.getBoundingClientRect().right > 391)
                      .map(each => each.outerHTML.slice(0, 80))]"""
    )
    assert (width, wide) == (390, [])
    words = page.eval_on_selector_all(
        ".history-traffic .chart-grid text", "all => all.map(each => each.getBoundingClientRect().right)"
    )
    assert max(words) <= 390


@pytest.mark.patient
def test_a_lesser_role_is_told_and_not_refused(look):
    before = look.rpc("gateway.denied")["total"]
    page = look.guest()
    page.wait_for_selector(".node >> nth=3")
    page.click("#tab-history")
    page.wait_for_selector("#panel-history .needs:has-text('needs the role owner or admin')")
    assert "This session has the role user." in page.text_content("#panel-history .needs")
    assert page.locator(".history-body").is_hidden()
    assert look.rpc("gateway.denied")["total"] == before


@pytest.mark.patient
def test_without_a_warehouse_it_says_what_to_run(plain):
    page = plain.dashboard("history")
    page.wait_for_selector("#panel-history .needs:has-text('There is no history here')")
    assert "--history DIR" in page.text_content("#panel-history .needs")
    assert "headgate pipeline batch" in page.text_content("#panel-history .commands")
    assert page.locator(".history-body").is_hidden()


@pytest.fixture
def short(browser, four):
    """A gateway with the history of a session of seconds, and a name that is long."""
    folder = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    for table, row in ONCE.items():
        wh.write(folder / "house", table, [{"_when": WHEN, **row}])
    wh.write(folder / "house", "denied", [{"_when": WHEN, **ONCE["denied"], "peer": LONG}], "long")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stages, "USERS", f'[history]\nwarehouse = "{folder}/house"\n{stages.USERS}')
        running = Stage(browser, four, folder)
    try:
        yield running
        running.sweep()
    finally:
        running.close()
        shutil.rmtree(folder, ignore_errors=True)


@pytest.mark.patient
def test_a_short_session_is_shown_whole(short):
    page = history(short)
    when = ".history-when"
    assert page.text_content(when) == "03-01 03:35 \N{EN DASH} 03-01 03:37"
    assert page.input_value("select[aria-label=Time]") == "all"
    assert page.is_disabled("button[aria-label=Earlier]")
    assert page.is_disabled("button[aria-label=Later]")
    for name in CHARTS:
        assert page.locator(f".history-{name} .chart-picture").first.is_visible(), name
    page.locator(".history-slow .chart-picture").focus()
    page.keyboard.press("Home")
    assert page.text_content(".history-slow .readout") == "03-01 03:35:00: lost 0"
    assert "median at most < 0.1 ms" in page.get_attribute(".history-latency .chart-picture", "aria-label")
    assert rows(page, "Calls by topic")[0][2:6] == ["< 0.1 ms"] * 4
    assert rows(page, "Newest refusals")[0][0] == "03-01 03:36:28"
    assert rows(page, "Errors by topic") == [["broker.ping", "ETIMEDOUT", "answer", "1"]]
    assert page.text_content(".history-errors .legend") == "ETIMEDOUT"
    cell = "table[aria-label='Newest refusals'] td[data-name=from][title]"
    assert (page.text_content(cell), page.get_attribute(cell, "title")) == (
        "0f1f0f8f\N{HORIZONTAL ELLIPSIS}",
        LONG,
    )
    page.select_option("select[aria-label=Time]", "1")
    eventually(lambda: page.text_content(when), "03-01 03:36:20 \N{EN DASH} 03-01 03:36:30")
    page.click("#tab-events")
    page.click("#tab-history")
    assert page.input_value("select[aria-label=Time]") == "1"  # what was chosen stays


@pytest.mark.patient
def test_words_are_not_broken_into_letters(look):
    """On a phone: words of a table have room."""
    page = history(look, width=390, height=844)
    first = """() => [...document.querySelectorAll('.history-body td:first-child')]
        .filter(each => each.checkVisibility()).map(each => Math.round(each.getBoundingClientRect().width))"""
    assert min(page.evaluate(first)) > 250


# -- the same as a file

FIGURES = """() => ({
    tables: [...document.querySelectorAll('.history-body table')].map(each => [each.ariaLabel,
        ...[...each.querySelectorAll('td')].map(cell => [cell.textContent, cell.title, cell.dataset.mood ?? ''])]),
    charts: [...document.querySelectorAll('.history-body .chart-picture')].map(each => each.ariaLabel),
    legends: [...document.querySelectorAll('.history-body .legend li')].map(each => [each.className, each.textContent]),
    rest: [...document.querySelectorAll('.history-sums, .verdict, .history-when')].map(each => each.textContent),
})"""
"""All that a history says."""


def opened(look, file, **context):
    page = look.page(**UTC, **context)
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    drawn(page)
    assert asked == [file.as_uri()]
    return page


@pytest.mark.smoke
def test_the_report_is_the_history_with_its_data_inside(look, house, tmp_path):
    """It is opened from the disk, and says the same."""
    file = tmp_path / "report.html"
    report.write(str(house), str(file), days=1)
    page = opened(look, file)
    assert page.evaluate(FIGURES) == history(look).evaluate(FIGURES)
    assert re.search(
        r"; the pipeline ran \d min before this page was made$", page.text_content(".history-fresh")
    )
    assert page.locator(".history-view select:visible, .history-view .tools button:visible").count() == 0
    with page.expect_download() as download:
        page.click("button[aria-label='Top users as CSV']")
    assert download.value.path().read_text().startswith("userid,messages,bytes,errors,requests,events\n")


@pytest.mark.patient
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_report_on_a_desk_on_a_phone_and_on_paper(look, house, tmp_path, scheme):
    file = tmp_path / "report.html"
    report.write(str(house), str(file))
    page = opened(look, file, color_scheme=scheme)
    assert page.evaluate(CONTRAST) == []
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (ground == "rgb(12, 18, 23)") == (scheme == "dark")
    page.set_viewport_size({"width": 390, "height": 844})
    wide = """() => [...document.querySelectorAll('body *')].filter(each => each.checkVisibility()
        && !each.closest('svg') && each.getBoundingClientRect().right > 391).map(each => each.outerHTML.slice(0, 80))"""
    assert (page.evaluate("document.documentElement.scrollWidth"), page.evaluate(wide)) == (390, [])
    page.set_viewport_size({"width": 718, "height": 1000})
    page.emulate_media(media="print", color_scheme=scheme)
    assert page.evaluate("getComputedStyle(document.documentElement).getPropertyValue('--ink')") == "#14202a"
    assert page.locator(".download:visible").count() == 0
    assert page.locator(".chart-picture:visible").count() == len(CHARTS)
    page.emulate_media(media="screen")


@pytest.mark.patient
def test_a_report_of_nothing_says_what_to_do(look, tmp_path):
    report.write(str(tmp_path), str(tmp_path / "report.html"))
    page = look.page(**UTC)
    page.goto((tmp_path / "report.html").as_uri())
    page.wait_for_selector(".history-fresh:has-text('no data; the pipeline has not run yet')")
    for said in (
        "No messages in this time.",
        'journal.capture = "both"',
        "headgate pipeline batch --journal",
    ):
        assert said in page.text_content(".history-body")
