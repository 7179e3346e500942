"""Asking the brokers: one that is silent delays nobody, what happened is marked, what is unknown is not asked again."""

import asyncio
import errno

from broker.errors import RpcError
from gateway.trends import collector as module
from gateway.trends.collector import CALLS, SHAPE_EVERY, STATS, TURNS, Collector
from gateway.trends.rings import Rings
from tests.tables import for_each

WORDS = ("state-machine.get", "attr.get")


class Clock:
    """Time that stands still between two readings."""

    def __init__(self):
        self.now = 1000.5

    def __call__(self):
        return self.now


class Answer:
    def __init__(self, told):
        self.told = told

    def json(self):
        return self.told


class Brokers:
    """Two brokers, of which one may be silent, lost, or of another make."""

    def __init__(self):
        self.joined, self.reason, self.size, self.joins = True, "", 2, 1
        self.rank = 0
        self.silent: set[int] = set()
        self.given_up = asyncio.Event()
        """When the questions to who is silent have waited for their time."""
        self.lost: set[int] = set()
        self.unknown: set[tuple[str, int]] = set()
        self.odd: dict[int, dict] = {}
        self.questions: list[tuple[str, int]] = []
        self.requests = 0

    @property
    def asked(self):
        return self if self.joined else None

    async def rpc(self, topic, payload=None, *, nodeid=0, timeout_s=None):
        self.questions.append((topic, nodeid))
        if (topic, nodeid) in self.unknown:
            raise RpcError(errno.ENOSYS)
        if nodeid in self.lost:
            raise RpcError(errno.EHOSTUNREACH, "no way there")
        if nodeid in self.silent:
            await self.given_up.wait()
            raise TimeoutError
        if nodeid in self.odd:
            return Answer({**self.told(topic, payload or {}), **self.odd[nodeid]})
        return Answer(self.told(topic, payload or {}))

    def told(self, topic, payload):
        self.requests += 10
        return {
            STATS: {"rx": {"request": self.requests}, "drops": {"late": self.requests}}
            if payload.get("detail")
            else {},
            CALLS: {"bounds_ns": [1], "services": {}, "methods": {}},
            "overlay.topology": {"rank": 0, "children": [{"rank": 1, "children": []}]},
            "overlay.health": {
                "rank": 0,
                "status": "full",
                "duration": 1.0,
                "children": [{"rank": 1, "status": "full"}],
            },
            "state-machine.get": {"state": "run"},
            "attr.get": {"value": "node[0-1]"},
        }[topic]

    def asked_for(self, topic):
        return sum(each == topic for each, _rank in self.questions)


def collector(brokers, loop_time, *, charts=True):
    rings = Rings()
    kept = rings if charts else None
    return rings, Collector(kept, brokers, lambda: {"sessions": 3.0}, lambda: 1e9 + loop_time(), loop_time)


def time():
    return asyncio.get_running_loop().time


async def test_figures_of_all_brokers_and_of_the_gateway():
    brokers, clock = Brokers(), Clock()
    rings, collecting = collector(brokers, clock)
    for _ in range(2):
        await collecting.collect()
        clock.now += 0.01
    assert {"sessions", "open", "in", "in:request", "in:0", "in:1", "ms:0", "ms:1"} <= set(rings.tracks)
    assert rings.read(int(1e9 + clock()), 10, ["dropped"])["series"]["dropped"][-1] > 0
    assert brokers.questions.count((CALLS, 0)) == 1, "a large question, every other time"
    assert brokers.asked_for("overlay.topology") == 0, "nobody looks"
    assert not rings.marks


async def test_while_somebody_looks_the_tree_and_its_health_are_known_too():
    brokers = Brokers()
    _rings, collecting = collector(brokers, time())
    collecting.note_watcher()
    for _ in range(SHAPE_EVERY):
        await collecting.collect()
    assert brokers.asked_for("overlay.topology") == 1
    assert brokers.questions.count(("overlay.health", 0)) == SHAPE_EVERY / 2
    assert brokers.questions.count(("overlay.health", 1)) == 0, "its parent tells of it"
    answer = collecting.ranks.answer(0, time()(), True)
    assert answer["state"] == "run"
    assert [(row["rank"], row["parent"], row["status"]) for row in answer["ranks"]] == [
        (0, None, "full"),
        (1, 0, "full"),
    ]
    assert collecting.overlay.hostlist == "node[0-1]"


async def test_who_looks_first_is_told_how_calls_fare_now():
    brokers = Brokers()
    _rings, collecting = collector(brokers, time())
    await collecting.collect()
    collecting.note_watcher()
    for asked in (2, 2, 3):
        await collecting.collect()
        assert brokers.questions.count((CALLS, 0)) == asked


async def test_a_tree_that_is_not_told_is_asked_for_again_and_says_why():
    brokers = Brokers()
    _rings, collecting = collector(brokers, time())
    brokers.unknown = {("overlay.topology", 0), ("attr.get", 0), ("state-machine.get", 0)}
    collecting.note_watcher()
    await collecting.collect()
    assert collecting.overlay.why.startswith("The brokers do not tell their tree")
    brokers.unknown = {("overlay.health", 0)}
    for _ in range(2):
        await collecting.collect()
    assert (collecting.overlay.why, len(collecting.ranks.answer(0, 0.0, True)["ranks"])) == ("", 2)


async def test_one_that_is_silent_delays_nobody_and_is_marked(monkeypatch):
    monkeypatch.setattr(module, "ROUND_S", 0.02)
    brokers = Brokers()
    rings, collecting = collector(brokers, time())
    brokers.silent = {1}
    await collecting.collect()
    assert "ms:0" in rings.tracks
    assert "ms:1" not in rings.tracks
    await collecting.collect()
    assert brokers.questions.count((STATS, 1)) == 1, "it owes an answer still"
    brokers.given_up.set()
    await asyncio.sleep(0.01)
    brokers.silent = set()
    await collecting.collect()
    assert [mark.text for mark in rings.marks] == ["rank 1 does not answer", "rank 1 answers again"]
    await collecting.stop()


async def test_a_lost_broker_and_a_lost_upstream_are_marked_once():
    brokers = Brokers()
    rings, collecting = collector(brokers, time())
    brokers.lost = {1}
    for _ in range(3):
        await collecting.collect()
    brokers.joined, brokers.reason = False, "the link ended"
    for _ in range(2):
        await collecting.collect()
    assert collecting.ranks.ranks == {}
    brokers.joined, brokers.lost = True, set()
    await collecting.collect()
    assert [mark.text for mark in rings.marks] == [
        "rank 1 does not answer",
        "the gateway lost its broker: the link ended",
        "the gateway has its broker again",
        "rank 1 answers again",
    ]


async def test_what_a_broker_does_not_count_it_is_not_asked_again_before_the_next_join():
    brokers = Brokers()
    rings, collecting = collector(brokers, time())
    brokers.unknown = {(CALLS, 0)}
    for _ in range(4):
        await collecting.collect()
    assert (brokers.questions.count((CALLS, 0)), brokers.questions.count((CALLS, 1))) == (1, 2)
    assert collecting.why == "", "the other one tells"
    brokers.unknown.add((CALLS, 1))
    await collecting.collect()
    assert collecting.why.startswith("These brokers do not count calls")
    brokers.joined = False
    await collecting.collect()
    brokers.joined = True
    for _ in range(2):
        await collecting.collect()
    assert brokers.questions.count((CALLS, 0)) == 2
    assert "in" in rings.tracks


async def test_a_link_that_was_lost_and_is_back_between_two_rounds_is_another_one():
    brokers = Brokers()
    rings, collecting = collector(brokers, time())
    brokers.unknown = {(CALLS, 0), (CALLS, 1)}
    for _ in range(2):
        await collecting.collect()
    assert collecting.why
    brokers.joins, brokers.unknown = 2, set()
    for _ in range(2):
        await collecting.collect()
    assert collecting.why == ""
    assert [mark.text for mark in rings.marks] == ["the gateway has its broker again"]


@for_each(
    "odd",
    [
        {"rx": 7, "methods": 7},
        {"rx": [1], "services": {"calc": 7}},
        {"drops": 5, "bounds_ns": "abc"},
        {"rx": {"request": -1}, "methods": {"calc.add": {"calls": -1, "open": 0, "errors": {}}}},
        {"rx": {"request": 10**400}, "methods": {"calc.add": {"calls": 1, "open": "x", "errors": {}}}},
        {"peers": [7], "methods": {"calc.add": {"calls": 1, "open": 0, "errors": {"x": 1}}}},
    ],
)
async def test_an_odd_answer_of_one_broker_is_told_and_costs_the_others_nothing(odd):
    brokers = Brokers()
    rings, collecting = collector(brokers, time())
    brokers.odd = {1: odd}
    collecting.note_watcher()
    for _ in range(4):
        await collecting.collect()
        await asyncio.sleep(0.01)
    answer = collecting.ranks.answer(0, time()(), True)
    rows = {row["rank"]: row for row in answer["ranks"]}
    assert (rows[1]["error"], rows[1]["rx"]) == ("its answer is odd", None)
    assert rows[0]["rx"] is not None
    assert set(answer["total"]["drops"]) == {"late"}
    assert {"in:0", "calls"} <= set(rings.tracks)
    assert collecting.calls.answer(None, True)["longest_ms"] == 1e-6


@for_each(
    "odd",
    [
        {"children": [{"rank": 1, "children": [{"rank": 0}]}]},
        {"children": [{"rank": "x"}]},
        {"rank": -1},
        {"children": 7},
    ],
)
async def test_a_tree_that_is_none_is_not_walked(odd):
    brokers = Brokers()
    _rings, collecting = collector(brokers, time())
    collecting.note_watcher()
    brokers.odd = {0: odd | {"status": "lost"}}
    async with asyncio.timeout(20):
        for _ in range(2):
            await collecting.collect()
    assert collecting.overlay.why == "The brokers tell their tree in another way."
    assert collecting.ranks.answer(0, time()(), True)["ranks"] == []
    await collecting.stop()


async def test_a_root_that_answers_no_object_has_its_health_told_all_the_same():
    brokers = Brokers()
    _rings, collecting = collector(brokers, time())
    collecting.note_watcher()
    told = brokers.told
    brokers.told = lambda topic, payload: ["odd"] if topic in WORDS else told(topic, payload)
    await collecting.collect()
    await collecting.stop()
    assert (collecting.ranks.state, collecting.overlay.hostlist) == ("", "")
    assert [row["status"] for row in collecting.ranks.answer(0, time()(), True)["ranks"]] == ["full", "full"]


async def test_odd_health_is_not_told():
    brokers = Brokers()
    _rings, collecting = collector(brokers, time())
    collecting.note_watcher()
    await collecting.collect()
    for odd in ({"status": ["lost"]}, {"duration": "x"}, {"children": [7]}):
        brokers.odd = {0: odd}
        await collecting.collect()
        await collecting.collect()
    assert [row["status"] for row in collecting.ranks.answer(0, time()(), True)["ranks"]] == ["full", "full"]


@for_each("size", [2 * TURNS, 2 * TURNS + 2])
async def test_of_many_brokers_each_has_its_turn(size):
    brokers = Brokers()
    _rings, collecting = collector(brokers, time())
    brokers.size = size
    for _ in range(6):
        before = brokers.asked_for(STATS)
        await collecting.collect()
        assert brokers.asked_for(STATS) - before == TURNS
    for topic in (STATS, CALLS):
        assert {rank for each, rank in brokers.questions if each == topic} == set(range(size))


async def test_a_size_that_cannot_be_takes_no_memory():
    brokers = Brokers()
    _rings, collecting = collector(brokers, time())
    brokers.size = 10**15
    await collecting.collect()
    assert brokers.asked_for(STATS) == TURNS


async def test_it_goes_on_after_a_fault(monkeypatch, caplog):
    brokers = Brokers()
    rings, collecting = collector(brokers, time())
    brokers.size = None
    monkeypatch.setattr(module, "LOOK_S", 0.1)
    collecting.note_watcher()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(collecting.run(), name="collect")
        while "collecting figures failed" not in caplog.text:
            await asyncio.sleep(0.01)
        brokers.size = 2
        while "in" not in rings.tracks:
            await asyncio.sleep(0.01)
        task.cancel()
    await collecting.stop()


@for_each("charts", [True, False])
async def test_who_looks_after_a_while_sees_what_is_true_now(charts):
    brokers = Brokers()
    rings, collecting = collector(brokers, time(), charts=charts)
    async with asyncio.TaskGroup() as group:
        task = group.create_task(collecting.run(), name="collect")
        await asyncio.sleep(0.05)
        before = brokers.asked_for(STATS)
        assert before == (2 if charts else 0), "without charts nobody is asked while nobody looks"
        await asyncio.gather(*(collecting.wait_fresh() for _ in range(9)))
        assert len(collecting.ranks.answer(0, time()(), True)["ranks"]) == 2
        assert brokers.asked_for(STATS) == before + 2, "for all who look, once"
        task.cancel()
    await collecting.stop()
    assert bool(rings.tracks) is charts
