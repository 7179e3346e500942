"""What a person does with the dashboard, in a real browser against a real gateway and a tree of four."""

import re

import pytest

from tests.browser.stage import hurry, press
from tests.live.brokers import eventually

FLOOD = """async ({url, token, count, perTick}) => {
    const {connect} = await import(url + '/client.js');
    const flux = connect(url + '/v1/ws', {token});
    await flux.ready;
    const began = performance.now();
    let sent = 0;
    while (sent < count) {
        const late = Math.ceil((performance.now() - began) / 20) * perTick;
        const due = Math.min(count, late, sent + 200); // a slow machine does not exceed the calls that may wait
        const burst = [];
        for (; sent < due; sent += 1) burst.push(flux.publish('flood.event', {number: sent, text: 'x'.repeat(60)}));
        await Promise.all(burst);
        await new Promise(done => setTimeout(done, 20));
    }
    flux.close();
    return (performance.now() - began) / 1000;
}"""


def value(page, figure):
    return page.text_content(f'[data-figure="{figure}"] .figure-value').strip()


@pytest.mark.smoke
def test_a_login_link_leads_to_the_tree_of_four_and_works_once(look):
    link = look.link()
    page = look.page()
    page.goto(link)
    page.wait_for_url(f"{look.url}/#*")
    page.wait_for_selector(".node >> nth=3")
    eventually(lambda: value(page, "Brokers"), "4 / 4")
    assert page.locator(".node[data-status=full]").count() == 4
    assert "once" not in page.url
    again = look.page()
    again.goto(link)
    again.wait_for_selector("#login-more:not([hidden])")
    assert "did not take this link" in again.text_content("#login-text")
    cookie = page.context.cookies()[0]
    assert (cookie["name"], cookie["httpOnly"], cookie["sameSite"]) == ("headgate", True, "Strict")


def test_without_a_login_it_says_how_to_get_one(look):
    page = look.page()
    page.goto(look.url)
    page.wait_for_selector("#login:not([hidden])")
    page.wait_for_selector("#login .command:has-text('headgate login link')")
    assert page.locator("#board").is_hidden()
    page.fill("#token", "hgt_wrong")
    page.click("#login button[type=submit]")
    page.wait_for_selector("#login .wrong:not(:empty)")
    assert "Refused" in page.text_content("#login .wrong")


@pytest.mark.patient
def test_logging_out_ends_the_login(look):
    page = look.page()
    page.goto(look.link())
    page.click("#logout")
    page.wait_for_selector("#login:not([hidden])")
    page.reload()
    page.wait_for_selector("#login:not([hidden])")
    assert page.locator("#board").is_hidden()


@pytest.mark.patient
def test_rates_and_round_trips_are_live(look):
    page = look.dashboard()
    eventually(lambda: bool(re.fullmatch(r"[1-9][0-9.]*k?", value(page, "Messages/s"))))
    eventually(lambda: bool(re.fullmatch(r"[0-9.]+ (ms|s)", value(page, "Round trip"))))
    line = "#traffic .line:has-text('request') .spark-line"
    before = page.get_attribute(line, "d")
    eventually(lambda: page.get_attribute(line, "d") != before)
    assert page.locator("#traffic .line:has-text('rank ')").count() == 4
    eventually(lambda: page.locator("#traffic .line:has-text('heartbeat.pulse')").count(), 1)


@pytest.mark.patient
def test_choosing_a_broker_shows_its_links_and_its_traffic(look):
    page = look.dashboard()
    page.click('.node[data-rank="1"]')
    page.wait_for_selector("#rank-detail dd:has-text('1 child')")
    assert page.text_content("#traffic-note") == "rank 1 only"
    page.click("#traffic-all")
    assert page.text_content("#traffic-note") == "all brokers"


@pytest.mark.smoke
def test_the_event_console_shows_filters_and_pauses(look):
    page = look.dashboard()
    page.wait_for_selector(".event-row:has-text('heartbeat.pulse')")
    number = look.publish("test.console", {"hello": "there"})
    row = page.locator(f".event-row:has-text('test.console'):has-text('{number}')")
    row.wait_for()
    row.click()
    assert '"hello": "there"' in page.text_content("#panel-events .entry-text")
    page.fill("#panel-events .filter", "test.")
    page.wait_for_selector(".event-row:has-text('heartbeat.pulse')", state="hidden")
    page.click("#panel-events .toggle:has-text('Pause')")
    look.publish("test.console", {"behind": "the pause"})
    page.wait_for_selector("#panel-events .count:has-text('paused')")
    eventually(lambda: "0 new" not in page.text_content("#panel-events .count"))
    assert page.locator(".event-row:visible").count() == 1
    page.click("#panel-events .toggle:has-text('Resume')")
    eventually(lambda: page.locator(".event-row:visible").count(), 2)


@pytest.mark.patient
def test_a_thousand_events_a_second_stay_smooth_and_bounded(look):
    """Nothing is lost, the page draws a few dozen rows, and it goes on answering."""
    page = look.dashboard()
    page.wait_for_selector(".event-row")
    other = look.bench()
    page.bring_to_front()
    page.evaluate(
        """() => {
            window.longest = 0;
            let last = performance.now();
            const beat = () => {
                const now = performance.now();
                window.longest = Math.max(window.longest, now - last);
                last = now;
                setTimeout(beat, 10);
            };
            beat();
        }"""
    )
    given = {"url": look.url, "token": look.gateway.tokens["ada"], "count": 4000, "perTick": 20}
    other.evaluate(FLOOD, given)
    eventually(lambda: topic_count(page, "flood.event"), 4000, 20)
    assert page.locator("#panel-events .row").count() < 80
    assert page.locator("*").count() < 3000
    assert (
        page.evaluate("window.longest") < 5000
    )  # it hangs on no burst; how smooth it is depends on the machine
    kept = page.text_content("#panel-events .count")
    assert "kept" in kept
    page.fill("#panel-events .filter", "flood.")
    eventually(lambda: "4,000 of" in page.text_content("#panel-events .count"))


def topic_count(page, topic):
    said = page.locator(f"#traffic .line-name[title^='{topic}:']")
    if said.count() == 0:
        return 0
    text = said.get_attribute("title").split(": ")[1].split(" ")[0]
    return int(float(text.removesuffix("k")) * 1000) if text.endswith("k") else int(text)


@pytest.mark.patient
def test_the_list_keeps_ten_thousand_and_no_more(look):
    """The ring of the console, filled far beyond its size, in the browser itself."""
    page = look.bench()
    kept = page.evaluate(
        """async url => {
            const {EventLog} = await import(url + '/model/eventlog.js');
            const log = new EventLog();
            for (let number = 0; number < 25000; number += 1) {
                log.event({topic: 't' + number % 1000, sequence: number, size: 4000, payload: 'x'});
            }
            const entries = [...log.ring];
            return [entries.length, entries[0].event.sequence, log.topics.size, log.total,
                    entries.reduce((sum, entry) => sum + entry.event.size, 0) <= 32 * 2 ** 20,
                    entries.at(-1).event.payload];
        }""",
        look.url,
    )
    assert kept == [10_000, 15_000, 512, 25_000, True, "x"]


@pytest.mark.smoke
def test_a_call_and_its_history(look):
    page = look.dashboard("call")
    page.click("#panel-call button.primary")
    page.wait_for_selector(".outcome[data-mood=good]")
    assert '"value": "4"' in page.text_content(".answer")
    page.fill("#call-topic", "no-such.method")
    page.press("#call-payload", "Control+Enter")
    page.wait_for_selector(".outcome[data-mood=bad]:has-text('ENOSYS (38)')")
    page.fill("#call-payload", "{not json")
    assert page.locator("#call-payload[aria-invalid]").count() == 1
    page.reload()
    page.wait_for_selector(".past:has-text('no-such.method')")
    page.click(".past:has-text('attr.get')")
    assert page.input_value("#call-topic") == "attr.get"


@pytest.mark.patient
def test_a_streaming_call_and_its_cancel(look):
    page = look.dashboard("call")
    page.fill("#call-topic", "log.dmesg")
    page.fill("#call-rank", "0")
    page.fill("#call-payload", '{"follow": true}')
    page.check("#call-streaming")
    page.click("#panel-call button.primary")
    append(look, "streamed to the form")
    page.wait_for_selector(".response:has-text('streamed to the form')")
    page.click("#panel-call button:has-text('Cancel')")
    page.wait_for_selector(".outcome:has-text('Cancelled after')")
    assert page.locator("#panel-call button:has-text('Cancel')").is_disabled()


def append(look, text):
    """One log line at rank 0; a payload that is text, so not by HTTP with JSON."""
    page = look.client()
    page.evaluate(
        """async ({url, token, line}) => {
            const flux = client.connect(url + '/v1/ws', {token});
            await flux.rpc('log.append', line, {nodeid: 0});
            flux.close();
        }""",
        {
            "url": look.url,
            "token": look.gateway.tokens["ada"],
            # later than whatever the brokers have logged: lines are shown by their times
            "line": f"<48>1 2030-01-02T03:04:05.678901Z 0 browser-test 7 - - {text}",
        },
    )


@pytest.mark.patient
def test_the_log_follows(look):
    page = look.dashboard("log")
    append(look, "one line for the log view")
    page.wait_for_selector(".log-row:has-text('one line for the log view')")
    row = page.locator(".log-row:has-text('one line for the log view')")
    assert row.locator(".severity").text_content() == "info"
    assert row.locator(".app").text_content() == "browser-test"
    page.fill("#panel-log .filter", "no line has this")
    eventually(lambda: page.locator(".log-row:visible").count(), 0)


@pytest.mark.patient
def test_sessions_services_and_ending_one(look):
    page = look.dashboard("sessions", hurried=True)
    guest = look.guest()
    mine = page.locator("#panel-sessions tr:has-text('this page')")
    mine.wait_for()
    row = page.locator("#panel-sessions tr:has-text('bob (1002)')")
    hurry(page, lambda: row.count() > 0)
    service = page.locator("#panel-sessions section:has-text('Services of clients') td:has-text('heartbeat')")
    hurry(page, lambda: service.count() > 0)
    press(row.first.get_by_text("End", exact=True))
    guest.wait_for_selector("#link-state:has-text('disconnected')")
    guest.wait_for_selector("body[data-link=open]")
