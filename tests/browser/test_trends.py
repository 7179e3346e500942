"""The last day as charts; what is chosen stands in the address; the log of all brokers in one."""

import os
import signal
import uuid

import pytest

from broker.wire.message import NORESPONSE, request
from tests.browser.test_services import calling
from tests.live.brokers import eventually
from tests.live.speaker import Speaker

PANEL = "#panel-trends"
LINES = """(title) => {
    const charts = [...document.querySelectorAll('#panel-trends .chart')];
    const chart = charts.find((each) => each.querySelector('h3').firstChild.textContent === title);
    return chart && {
        legend: [...chart.querySelectorAll('.legend li')].map((each) => each.innerText),
        drawn: [...chart.querySelectorAll('.chart-marks path')].filter((path) => path.getAttribute('d')).length,
        happened: [...chart.querySelectorAll('.chart-happened title')].map((each) => each.textContent),
    };
}"""


def chart(page, title: str) -> dict[str, list[str]]:
    """What one chart shows, all of it at one moment."""
    return page.evaluate(LINES, title) or {"legend": [], "drawn": 0, "happened": []}


@pytest.mark.patient
def test_charts_of_the_last_minutes_and_a_broker_that_is_frozen(look, four, four_brokers):
    with calling(four):
        page = look.dashboard("trends")
        eventually(lambda: chart(page, "Calls")["legend"], ["calls", "failed"])
        # other tests called other methods of these brokers in the last minutes: they have lines, too
        eventually(lambda: {"stock.get", "stock.put"} <= set(chart(page, "Calls by method")["legend"]))
        eventually(lambda: "stock.put" in chart(page, "Failed calls by method")["legend"])
        assert "stock.get" not in chart(page, "Failed calls by method")["legend"]
        eventually(
            lambda: chart(page, "Time until the answer")["legend"], ["half within", "99 of 100 within"]
        )
        ranks = {f"rank {rank}" for rank in range(4)}
        eventually(lambda: set(chart(page, "Round trip")["legend"]), ranks)
        eventually(lambda: chart(page, "Messages")["drawn"] >= 2)
        os.kill(four_brokers[3].process.pid, signal.SIGSTOP)
        try:
            eventually(lambda: "rank 3 does not answer" in chart(page, "Calls")["happened"])
        finally:
            os.kill(four_brokers[3].process.pid, signal.SIGCONT)
        eventually(lambda: "rank 3 answers again" in page.inner_text(f"{PANEL} .happened"))

        page.select_option(f"{PANEL} select", "3600")
        page.click('.node[data-rank="2"]')
        eventually(lambda: chart(page, "Round trip")["legend"], ["rank 2"])
        eventually(lambda: page.url.partition("#")[2], "trends?rank=2&range=3600")
        page.reload()
        page.wait_for_selector('.node[data-rank="2"][aria-selected="true"]')
        eventually(lambda: chart(page, "Round trip")["legend"], ["rank 2"])
        assert page.input_value(f"{PANEL} select") == "3600"


@pytest.mark.patient
def test_the_log_of_all_brokers_stands_in_one_list_and_a_rank_narrows_it(look, four):
    for rank in (0, 3):
        with Speaker(four.replace("local-0", f"local-{rank}")) as speaker:
            line = f"<14>1 2030-01-01T00:00:0{rank}.000000Z {rank} story - - - said at {rank}\0"
            speaker.tell(request("log.append", line.encode(), flags=NORESPONSE))
    page = look.dashboard("log")
    page.goto(f"{look.url}/#log?filter=said+at")
    page.reload()
    page.wait_for_selector(".node >> nth=3")
    texts = """() => [...document.querySelectorAll('#panel-log .log-row .text')]
        .filter((each) => each.offsetParent)
        .sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top).map((each) => each.innerText)"""
    eventually(lambda: page.evaluate(texts), ["said at 0", "said at 3"])
    assert page.input_value("#panel-log .filter") == "said at"
    page.click('.node[data-rank="3"]')
    eventually(lambda: page.evaluate(texts), ["said at 3"])
    page.keyboard.press("Escape")
    eventually(lambda: page.evaluate(texts), ["said at 0", "said at 3"])


@pytest.mark.patient
def test_topics_of_many_things_are_one_line(look, four):
    page = look.dashboard("events")
    page.wait_for_selector("#traffic .line")
    for _ in range(3):
        look.publish(f"nfp.job.{uuid.uuid4()}.progress", {})
    eventually(lambda: page.locator("#traffic .line-name[title^='nfp.job.*.progress: 3 seen']").count(), 1)
