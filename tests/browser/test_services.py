"""Are my calls working? What the dashboard says of every method, of calls that fail, and of one broker's."""

import contextlib
import errno
import threading
from collections.abc import Iterator

import pytest

from broker.wire.message import REQUEST, RESPONSE, request, response
from tests.live.brokers import eventually
from tests.live.speaker import Speaker, provide

PANEL = "#panel-services"


@contextlib.contextmanager
def calling(four: str) -> Iterator[None]:
    """Calls that work, entering at rank 3, and calls that fail, entering at rank 1, until the end of the block."""
    leave = threading.Event()

    def work() -> None:
        with (
            Speaker(four) as provider,
            Speaker(four.replace("local-0", "local-3")) as good,
            Speaker(four.replace("local-0", "local-1")) as bad,
        ):
            provide(provider, "stock")
            number = 0
            while not leave.wait(0.02):
                number += 1
                for caller, topic, errnum in ((good, "stock.get", 0), (bad, "stock.put", errno.ENOSPC)):
                    caller.tell(request(topic, matchtag=number % 1000 + 1))
                    asked = provider.take(lambda seen: seen.type == REQUEST)
                    said = b"the shelf is full\0" if errnum else None
                    provider.tell(response(asked, said, errnum=errnum))
                    caller.take(lambda seen: seen.type == RESPONSE)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        leave.set()
        thread.join()


CELLS = """([panel, method]) => {
    const row = [...document.querySelectorAll(`${panel} tbody tr`)].find((each) => each.cells[0].innerText === method);
    return Object.fromEntries([...row?.cells ?? []].map((cell) => [cell.dataset.name, cell.innerText]));
}"""


def cells(page, method: str) -> dict[str, str]:
    """The row of a method, all of it at one moment."""
    return page.evaluate(CELLS, [PANEL, method])


@pytest.mark.patient
def test_calls_that_fail_are_seen_at_once_and_say_why(look, four):
    with calling(four):
        page = look.dashboard("services")
        page.wait_for_selector(f"{PANEL} td[data-mood=bad]")
        eventually(lambda: float(cells(page, "stock.get").get("calls/s", "0")) > 0)
        put, get = cells(page, "stock.put"), cells(page, "stock.get")
        # one call at a time, counted when it begins, its error when it ends: one of them may lie between two looks
        assert abs(float(put["errors/s"]) - float(put["calls/s"])) <= 1
        eventually(lambda: float(cells(page, "stock.put").get("errors/s", "0")) > 0)
        assert (put["rank"], get["rank"], get["errors/s"], get["last error"]) == ("0", "0", "0", "")
        assert put["errors since start"].startswith("ENOSPC ")
        assert put["last error"].endswith("the shelf is full")
        assert get["p50"].endswith("ms")
        assert get["p99"].endswith("ms")
        eventually(lambda: page.inner_text("#tab-services").split(), ["Services", "1", "failing"])
        eventually(lambda: page.get_attribute('[data-figure="Calls/s"]', "data-mood"), "bad")
        first = page.locator(f"{PANEL} tbody tr").first
        assert first.locator("td").first.inner_text() == "stock.put"
        eventually(lambda: page.locator("#traffic .line:has-text('stock.get')").count(), 1)

        page.click('.node[data-rank="3"]')
        eventually(lambda: cells(page, "stock.put") == {} and cells(page, "stock.get") != {})
        assert page.inner_text("#tab-services").split() == ["Services", "1", "failing"], (
            "of all brokers, whoever is chosen"
        )
        page.click("#traffic-all")
        eventually(lambda: cells(page, "stock.put") != {})


@pytest.mark.patient
def test_events_stand_beside_calls_and_a_kind_can_be_chosen(look, four):
    with calling(four):
        page = look.dashboard("services")
        look.publish("story.news", {})
        eventually(lambda: cells(page, "story.news").get("kind"), "event")
        eventually(lambda: cells(page, "stock.get").get("kind"), "call")
        page.select_option(f"{PANEL} select", "event")
        assert cells(page, "stock.get") == {}
        page.wait_for_timeout(2500)  # another answer
        assert (cells(page, "stock.get"), cells(page, "story.news")["errors/s"]) == ({}, "0")
        page.select_option(f"{PANEL} select", "")
        assert cells(page, "stock.get") != {}


@pytest.mark.patient
def test_what_the_page_asks_itself_is_not_there(look):
    page = look.dashboard("services")
    page.wait_for_selector(f"{PANEL} table, {PANEL} .empty")
    page.wait_for_timeout(2500)  # a round of its own questions
    shown = page.locator(f"{PANEL} tbody td:first-child").all_inner_texts()
    own = ("broker.", "overlay.", "attr.", "state-machine.", "nfp.services.list")
    assert [name for name in shown if name.startswith(own) or name.endswith(".disconnect")] == []


@pytest.mark.patient
def test_the_call_form_offers_what_was_called_and_what_clients_provide(look, four):
    offered = "() => [...document.querySelectorAll('#call-topics option')].map((each) => each.value)"
    with calling(four), Speaker(four.replace("local-0", "local-2")) as idle:
        provide(idle, "shelf")
        page = look.dashboard("call")
        eventually(lambda: {"attr.get", "stock.get"} <= set(page.evaluate(offered)))
        assert "shelf." not in page.evaluate(offered)

        def asked():
            page.evaluate("document.activeElement.blur()")
            page.focus("#call-topic")
            return page.evaluate(offered)

        eventually(lambda: "shelf." in asked())  # rank 2 announces it when it has settled
        assert "stock." not in page.evaluate(offered), "its methods are known"
