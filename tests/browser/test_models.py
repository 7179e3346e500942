"""The dashboard's models alone, in a page whose clock is the test's, with a gateway that the test plays."""

import pytest

from tests.browser.stage import stop_clock

pytestmark = pytest.mark.patient

PLAYED = """async (model) => {
    window.asked = [];
    window.changes = 0;
    window.ms = 0;
    window.told = {};
    const rpc = async (topic, payload) => {
        asked.push(payload);
        await new Promise((done) => { setTimeout(done, ms); });
        if (told.errno) throw Object.assign(new Error(told.text), { errno: told.errno, text: told.text });
        return JSON.parse(JSON.stringify(told));
    };
    const access = { refusal: async () => window.no ?? '', needs: async () => 'needs a role' };
    const made = await import(`./model/${model.toLowerCase()}.js`);
    window.model = new made[model]({ rpc }, access);
    window.model.addEventListener('change', () => { changes += 1; });
}"""
"""A gateway that answers ``told`` after ``ms``; what it was asked stands in ``asked``."""

RANK = {
    "parent": None,
    "status": "full",
    "since_s": 5,
    "error": "",
    "silent_s": 0,
    "rx": None,
    "tx": None,
    "ms": 1.5,
}
RANK |= {"pending": 1, "links": 2, "outbox_bytes": 0, "drops": {}, "kinds": {"client": 2}}
TOTAL = {"rx": {"request": 4.0}, "ms": 1.5, "drops": {}}
RANKS = {
    "size": 2, "state": "run", "version": "1.0", "headgate": True, "why": "", "hostlist": "node[0-1]", "next": 7,
    "total": TOTAL,
    "ranks": [RANK | {"rank": 1, "parent": 0}, RANK | {"rank": 0, "rx": {"request": 4.0}, "tx": {"request": 1.0}}],
}  # fmt: skip
CALLS = {
    "at": 9.0, "more": 0, "silent": [], "longest_ms": 4.0, "why": "",
    "total": {"calls": 3.0, "errors": 0.0, "failing": 0, "worst": "", "recent": [None, 3.0]},
    "rows": [{"kind": "call", "name": "a.b", "calls": 3.0, "recent": [1.0, 3.0]}],
}  # fmt: skip
DASH = "\u2013"
AGAIN = "() => { model.stop(); model.start(); }"
TIMED_OUT = 110
UNREACHABLE = 113


@pytest.fixture
def page(look):
    opened = look.bench(hurried=True)
    stop_clock(opened)
    return opened


def play(page, model, told):
    """A model that has been started, and its first answer."""
    page.evaluate(PLAYED, model)
    tell(page, told)
    page.evaluate("model.start()")
    wait(page, 1)


def seen(page, what):
    """What an expression is worth; NaN is None."""
    return page.evaluate(f"JSON.parse(JSON.stringify({what}))")


def tell(page, told, ms=0):
    page.evaluate("([answer, late]) => { told = answer; ms = late; }", [told, ms])


def wait(page, seconds):
    """What is due within some seconds happens."""
    for _ in range(4 * seconds):
        page.clock.run_for(250)


def test_the_tree_and_its_figures_are_what_the_gateway_tells(page):
    play(page, "Instance", RANKS)
    told = seen(
        page,
        "model.list.map((r) => [r.rank, r.parent?.rank ?? null, r.host, r.status, r.in, r.ms, r.children.length])",
    )
    assert told == [[0, None, "node0", "full", 4, 1.5, 1], [1, 0, "node1", "full", None, 1.5, 0]]
    assert page.evaluate("[model.root.rank, model.state, model.version, model.types.request.last]") == [
        0,
        "run",
        "1.0",
        4,
    ]
    tell(page, RANKS | {"ranks": [], "next": 7, "size": 1})
    wait(page, 2)
    assert page.evaluate("model.list.map((rank) => rank.rank)") == [0]
    assert page.evaluate("asked.map(({ after }) => after).slice(0, 2)") == [0, 7], "only what has changed"


def test_who_connects_again_asks_for_everything_once_a_second(page):
    play(page, "Instance", RANKS)
    tell(page, RANKS, 700)
    page.evaluate("() => { model.stop(); model.again(); model.start(); }")
    assert page.evaluate("asked.at(-1).after") == 0
    page.evaluate(AGAIN)  # while a question is under way
    wait(page, 2)
    asked, changes = page.evaluate("[asked.length, changes]")
    wait(page, 10)
    assert 8 <= page.evaluate("changes") - changes <= 12
    assert page.evaluate("asked.length") - asked <= 12


def test_a_silent_broker_is_silent_on_and_a_silent_gateway_makes_all_of_them_so(page):
    play(page, "Instance", RANKS)
    silent = RANK | {"rank": 1, "parent": 0, "silent_s": 2.0, "ms": None}
    tell(page, RANKS | {"ranks": [silent], "next": 8})
    wait(page, 1)
    tell(page, RANKS | {"ranks": [], "next": 8})
    wait(page, 3)
    statuses = "model.list.map((rank) => rank.status)"
    assert page.evaluate(statuses) == ["full", "silent"]
    assert 4 <= page.evaluate("model.ranks.get(1).silentS") <= 6
    assert page.evaluate("model.silentS") == 0
    tell(page, RANKS, 60_000)
    wait(page, 4)
    assert page.evaluate(statuses) == ["silent", "silent"]
    assert page.evaluate("model.silentS") >= 2
    assert seen(page, "model.ranks.get(0).in") is None


def test_the_silence_of_a_gateway_that_answers_again_is_nobodys(page):
    play(page, "Instance", RANKS)
    tell(page, {"errno": TIMED_OUT, "text": "no answer"}, 4000)
    wait(page, 5)
    assert page.evaluate("model.silentS") >= 2
    tell(page, RANKS | {"ranks": [], "next": 7})
    wait(page, 5)
    assert page.evaluate("[model.silentS, ...model.list.map((rank) => rank.status)]") == [0, "full", "full"]


def test_a_gateway_without_brokers_knows_nothing_of_now(page):
    play(page, "Instance", RANKS)
    tell(page, {"errno": UNREACHABLE, "text": "upstream lost"})
    wait(page, 4)
    assert seen(page, "[model.silentS, model.ranks.get(0).in, model.total.ms]") == [0, None, None]
    assert page.evaluate("model.list.length") == 2


def test_who_may_not_is_told_so_and_asks_nobody(page):
    page.evaluate("() => { window.no = 'needs the role owner'; }")
    play(page, "Instance", RANKS)
    assert page.evaluate("[model.why, asked.length]") == ["needs the role owner", 0]
    play(page, "Methods", CALLS)
    assert page.evaluate("[model.why, asked.length]") == ["needs the role owner", 0]


def test_calls_are_what_the_gateway_tells_every_second_second(page):
    play(page, "Methods", CALLS)
    page.evaluate(AGAIN)
    wait(page, 3)
    assert page.evaluate("[model.rows[0].name, model.rows[0].series.last, model.total.series.max]") == [
        "a.b",
        3,
        3,
    ]
    before = page.evaluate("asked.length")
    wait(page, 20)
    assert 9 <= page.evaluate("asked.length") - before <= 12
    page.evaluate("model.choose(3)")
    wait(page, 1)
    assert page.evaluate("asked.at(-1)") == {"rank": 3}


def test_what_fails_now_and_then_is_told_without_a_flicker(page):
    play(page, "Methods", CALLS | {"total": CALLS["total"] | {"failing": 2}})
    tell(page, CALLS)
    seen_each_second = []
    for _ in range(12):
        wait(page, 1)
        seen_each_second.append(page.evaluate("model.failing"))
    assert seen_each_second[:6] == [2] * 6
    assert seen_each_second[-1] == 0


def test_where_no_broker_counts_calls_the_page_says_so(page):
    play(page, "Methods", CALLS | {"rows": [], "why": "These brokers do not count calls."})
    assert page.evaluate("model.why") == "These brokers do not count calls."


FIGURE = """async (types) => {
    const { Series } = await import('./lib/ring.js');
    const { Figures } = await import('./panels/figures.js');
    const series = (values) => {
        const made = new Series();
        for (const each of values) made.push(each ?? NaN);
        return made;
    };
    const instance = { list: [], total: { drops: null }, latency: series([]),
        types: Object.fromEntries(Object.entries(types).map(([name, values]) => [name, series(values)])) };
    const box = document.createElement('div');
    const methods = { why: 'not asked', total: { series: { values: [], max: 0 } } };
    new Figures(box).draw(instance, { rate: series([]), total: 0 }, methods);
    return ['Messages/s', 'Events/s'].map((name) => box.querySelector(`[data-figure="${name}"] b`).textContent);
}"""


def test_a_tile_says_the_seconds_of_the_list_beside_it_and_nothing_where_nothing_is_known(page):
    assert page.evaluate(FIGURE, {"request": [99, 4, 8, 4, 8], "event": [None]}) == ["6.0", DASH]
    assert page.evaluate(FIGURE, {"request": [], "event": [None]}) == [DASH, DASH]
