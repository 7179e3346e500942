"""The dashboard's models alone, in a page whose clock is the test's, with brokers that the test plays."""

import errno

import pytest

pytestmark = pytest.mark.patient

CALL_RATES = """async (answers) => {
    const { CallRates } = await import('./model/callrates.js');
    const asked = answers.map(() => 0);
    const rpc = async (topic, payload, { nodeid }) => {
        const answer = answers[nodeid][Math.min(asked[nodeid], answers[nodeid].length - 1)];
        asked[nodeid] += 1;
        if (typeof answer === 'number') throw Object.assign(new Error(), { errno: answer });
        const told = { open: 1, errors: {}, buckets: [] };
        const methods = Object.entries(answer).map(([name, calls]) => [name, { ...told, calls }]);
        return { bounds_ns: [], methods: Object.fromEntries(methods), services: {} };
    };
    const instance = { list: answers.map((_, rank) => ({ rank, gone: false })) };
    window.model = new CallRates(instance, { rpc }, { refusal: async () => '' });
    window.asked = asked;
    model.start();
}"""
"""Brokers that give one answer after the other to `broker.calls`, the last for ever: an errno, or calls by method."""

INSTANCE = """async (ms) => {
    const { Instance } = await import('./model/instance.js');
    const answers = { 'overlay.topology': { rank: 0 }, 'overlay.health': { rank: 0, status: 'full' } };
    window.asked = {};
    window.rounds = 0;
    const rpc = async (topic) => {
        asked[topic] = (asked[topic] ?? 0) + 1;
        if (topic.startsWith('broker.')) await new Promise((done) => { setTimeout(done, ms); });
        return answers[topic] ?? {};
    };
    window.model = new Instance({ rpc }, { ask: async () => ({ allowed: true }) });
    model.addEventListener('change', () => { rounds += 1; });
    model.start();
}"""
"""One broker that takes so long to tell its figures, and to answer a ping."""

AGAIN = "() => { model.stop(); model.start(); }"


@pytest.fixture
def page(look):
    return look.bench(hurried=True)


def wait(page, seconds):
    """What is due within some seconds happens."""
    for _ in range(4 * seconds):
        page.clock.run_for(250)


def test_who_connects_again_asks_for_calls_as_before(page):
    page.evaluate(CALL_RATES, [[{"a.b": 1}]])
    page.evaluate(AGAIN)
    wait(page, 3)
    before = page.evaluate("asked[0]")
    wait(page, 20)
    assert 9 <= page.evaluate("asked[0]") - before <= 12


def test_a_broker_that_counts_no_calls_hides_no_other_and_a_silent_one_has_none_open(page):
    counts = [{"a.b": 1}, {"a.b": 3, "constructor": 1}, {"a.b": 5, "constructor": 3}]
    page.evaluate(CALL_RATES, [[errno.ENOSYS], counts, [{"a.b": 1}, errno.ETIMEDOUT]])
    wait(page, 5)
    shown = page.evaluate("[model.why, model.rows().map(({name, open}) => [name, open])]")
    assert shown == ["", [["a.b", 1], ["constructor", 1]]]


def test_where_no_broker_counts_calls_the_page_says_so(page):
    page.evaluate(CALL_RATES, [[errno.ENOSYS], [errno.ETIMEDOUT]])
    wait(page, 1)
    assert page.evaluate("model.why").startswith("These brokers do not count calls")


def test_who_connects_again_asks_for_figures_once_a_second(page):
    page.evaluate(INSTANCE, 700)
    page.evaluate(AGAIN)  # while a round is under way
    wait(page, 2)
    before = page.evaluate("rounds")
    wait(page, 10)
    assert 8 <= page.evaluate("rounds") - before <= 12


def test_the_round_trip_to_a_slow_broker_is_known(page):
    page.evaluate(INSTANCE, 700)
    wait(page, 8)
    assert 700 <= page.evaluate("model.ranks.get(0).ms") < 1200
    assert page.evaluate("asked['broker.stats-get']") >= 3
