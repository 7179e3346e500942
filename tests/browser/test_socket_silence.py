"""When a page gives its connection up: its clock is the test's, and so is the gateway."""

import pytest

from tests.browser.stage import stop_clock

pytestmark = pytest.mark.patient

PLAYED = """async () => {
    const { Socket } = await import('./client/socket.js');
    class Played extends EventTarget {
        readyState = 1;
        send(text) { asked.push(JSON.parse(text).type); if (window.answers) this.say({ type: 'pong' }); }
        close(code) { window.code = code; }
        say(object) { this.dispatchEvent(new MessageEvent('message', { data: JSON.stringify(object) })); }
    }
    window.asked = [];
    window.code = 0;
    window.answers = true;
    const real = window.WebSocket;
    window.WebSocket = function () { return window.played = new Played(); };
    const ears = { welcome() {}, message() {}, control() {}, closed() {} };
    new Socket('ws://played', { NAME: 'flux.v1.json', fromSocket: (text) => [JSON.parse(text)] }, null, ears);
    window.WebSocket = real;
    played.say({ type: 'welcome', ping_s: 25 });
}"""


@pytest.fixture
def page(look):
    opened = look.bench(hurried=True)
    stop_clock(opened)
    opened.evaluate(PLAYED)
    return opened


def wait(page, seconds):
    for _ in range(seconds):
        page.clock.run_for(1000)


def test_a_gateway_that_answers_is_asked_in_silence_and_kept(page):
    wait(page, 29)
    assert page.evaluate("asked") == []
    wait(page, 31)
    assert page.evaluate("[asked, code]") == [["ping", "ping"], 0]


def test_one_that_does_not_answer_is_given_up(page):
    page.evaluate("() => { answers = false; }")
    wait(page, 39)
    assert page.evaluate("[asked, code]") == [["ping"], 0]
    wait(page, 2)
    assert page.evaluate("code") == 4003


@pytest.mark.parametrize("answers", [True, False])
def test_a_page_that_was_frozen_asks_before_it_gives_anybody_up(page, answers):
    page.evaluate("answer => { answers = answer; }", answers)
    page.clock.fast_forward("01:00:00")
    assert page.evaluate("[asked, code]") == [["ping"], 0]
    wait(page, 11)
    assert page.evaluate("code") == (0 if answers else 4003)


def test_a_hidden_page_whose_timers_come_once_a_minute_gives_up_who_does_not_answer(page):
    def minute():
        page.clock.fast_forward(60_000)
        return page.evaluate("[asked.length, code]")

    assert [minute() for _ in range(5)] == [[asked, 0] for asked in range(1, 6)]
    page.evaluate("() => { answers = false; }")
    assert [minute(), minute()] == [[6, 0], [6, 4003]]
