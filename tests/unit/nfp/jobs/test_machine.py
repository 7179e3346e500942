"""The tables of states: what is not in them raises, and the page with their pictures says what they say."""

from pathlib import Path

import pytest

from broker.nfp.jobs import machine
from broker.nfp.jobs.machine import ATTEMPT, CURRENT, ENTERED, PART, TAKES_SLOT
from broker.nfp.names import Command
from broker.nfp.states import IllegalEvent, following
from broker.nfp.worker.run import RUN
from tests.tables import for_each
from tests.unit.nfp.jobs.bench import Bench, FakePeer, result_body, the

TABLES = {**machine.TABLES, "at its worker": RUN}
PAGE = Path(machine.__file__).with_name("STATES.md")
BEGINNINGS = {
    "job": ["open"],
    "part": ["waiting"],
    "attempt": ["released"],
    "worker": ["expected"],
    "at its worker": ["coming"],
}


def page() -> str:
    """The page of the tables; ``python -m tests.unit.nfp.jobs.test_machine`` writes it."""
    text = "# States of NFP's jobs, their parts, attempts at them and workers\n\n"
    text += "Made of `machine.py` and of `worker/run.py`, which say what the words mean.\n"
    for name, table in TABLES.items():
        text += f"\n## {name.capitalize()}\n\n```mermaid\nstateDiagram-v2\n"
        text += "".join(f"    [*] --> {state}\n" for state in BEGINNINGS[name])
        for state, events in table.items():
            ways: dict[str, list[str]] = {}
            for event, after in events.items():
                ways.setdefault(after, []).append(event)
            text += "".join(
                f"    {state} --> {after}: {', '.join(events)}\n" for after, events in ways.items()
            )
        text += "```\n"
    return text


def test_the_page_shows_the_tables():
    assert PAGE.read_text() == page(), "python -m tests.unit.nfp.jobs.test_machine"


@for_each("name", sorted(TABLES))
def test_every_state_is_reached_and_every_event_leads_to_one(name):
    table, reached = TABLES[name], list(BEGINNINGS[name])
    for state in reached:
        reached += [after for after in table[state].values() if after not in reached]
    assert set(reached) == set(table)


def test_an_event_that_is_not_in_the_table_raises_and_says_what_is():
    assert following(PART, "waiting", "give") == "given"
    with pytest.raises(IllegalEvent, match=r"return while waiting, expected one of give, settle"):
        following(PART, "waiting", "return")
    with pytest.raises(IllegalEvent, match="none"):
        following(PART, "final", "settle")


def test_a_second_result_of_a_part_raises_and_changes_nothing():
    bench = Bench()
    worker, client = bench.register("w1", ours=True), bench.client()
    uuid = bench.post(client)
    bench.finish(worker, the(worker.take(), Command.POST))
    (part,) = bench.dispatcher._jobs.by_uuid[uuid].parts.values()
    before = (part.status, part.body)
    with pytest.raises(IllegalEvent):
        part.settle("w2", 500, b"no")
    assert (part.state, part.status, part.body) == ("final", *before)


# -- every step of an attempt happens: these are the rarer ones ------------------------------------


class Probed:
    """A deployed worker that may have the job from before is asked."""

    def __init__(self) -> None:
        self.bench = bench = Bench()
        self.client = bench.client()
        self.worker = bench.register("w1")
        self.uuid = bench.post(self.client, target="w1")
        self.to = the(self.worker.take(), Command.POST)
        bench.accept(self.worker, self.to)
        bench.lose(self.worker)
        bench.pass_time(5)
        self.comes_back()

    def comes_back(self, room: int | None = None) -> None:
        peer = FakePeer("w1")
        peer.room = room
        self.worker = self.bench.register("w1", peer=peer)
        asked = [packet for packet in self.worker.take() if packet.command is Command.GET]
        self.to = asked[0] if asked else self.to
        self.worker.room = None

    def says(self, code: int) -> None:
        self.bench.answer(self.worker, self.to, code, result_body("w1"))

    def full(self) -> None:
        self.worker.room = 0

    def leaves(self) -> None:
        self.bench.lose(self.worker)
        self.bench.pass_time(5)

    def is_cancelled(self) -> None:
        self.bench.delete(self.client, self.uuid, target="w1")

    def announces(self) -> None:
        self.bench.event(self.worker, self.to, "result_ready")

    @property
    def state(self) -> str:
        """Of its attempt, and of the part where there is none."""
        workers = self.bench.dispatcher._jobs.registry.workers
        attempt = workers["w1"].attempts.get(self.uuid) if "w1" in workers else None
        part = self.bench.dispatcher._jobs.by_uuid[self.uuid].parts["w1"]
        return f"{attempt.state if attempt is not None else '-'} {part.state}"


FORGETS, HAS_IT, IS_DONE = ("says", 404), ("says", 300), ("says", 200)
FULL, LEAVES, CANCELLED, ANNOUNCES = ("full",), ("leaves",), ("is_cancelled",), ("announces",)


@for_each(
    ("acts", "states"),
    [
        ([HAS_IT, IS_DONE], ["accepted given", "- final"]),
        ([IS_DONE], ["- final"]),
        ([CANCELLED, FORGETS], ["stopping final", "- final"]),
        ([CANCELLED, IS_DONE], ["stopping final", "- final"]),
        ([LEAVES, ("comes_back",)], ["- waiting", "probed given"]),
        ([LEAVES, ("comes_back", 0)], ["- waiting", "- waiting"]),
        ([FULL, FORGETS], [None, "- waiting"]),
        ([FORGETS, FORGETS], ["sent given", "sent given"]),
        ([HAS_IT, FORGETS], ["accepted given", "sent given"]),
        ([ANNOUNCES, ANNOUNCES, IS_DONE], ["ready given", "ready given", "- final"]),
        ([ANNOUNCES, HAS_IT], ["ready given", "ready given"]),
        ([ANNOUNCES, CANCELLED, IS_DONE], ["ready given", "- final", "- final"]),
        ([ANNOUNCES, FORGETS], ["ready given", "sent given"]),
        ([ANNOUNCES, LEAVES], ["ready given", "- waiting"]),
        ([CANCELLED, HAS_IT, LEAVES], ["stopping final", "stopping final", "- final"]),
    ],
)
def test_an_attempt_that_was_asked_about_takes_every_step(acts, states):
    stage = Probed()
    assert stage.state == "probed given"
    for (act, *how), state in zip(acts, states, strict=True):
        getattr(stage, act)(*how)
        assert state in (None, stage.state)
    for view in stage.bench.dispatcher.workers(stage.bench.now):
        assert view.busy == (stage.state.split()[0] in TAKES_SLOT)


def test_who_had_a_job_before_and_does_not_know_it_changes_nothing():
    stage = Probed()
    bench, first = stage.bench, stage.worker
    uuid = bench.post(stage.client)
    stage.says(404)
    bench.answer(first, next(p for p in first.take() if p.uuid == stage.uuid), 200, result_body("w1"))
    post = next(packet for packet in first.take() if packet.uuid == uuid)
    bench.lose(first)
    bench.pass_time(5)
    second = bench.register("w2", ours=True)
    assert the(second.take(), Command.POST).uuid == uuid
    back = bench.register("w1")
    bench.answer(back, post, 404, b"{}")
    assert bench.job(uuid).parts[0].worker == "w2"


def test_the_sets_are_of_states_there_are():
    assert ATTEMPT.keys() >= CURRENT | ENTERED | TAKES_SLOT
    assert ENTERED < CURRENT


if __name__ == "__main__":
    PAGE.write_text(page())
