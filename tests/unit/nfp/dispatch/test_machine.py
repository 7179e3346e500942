"""The tables of states: what is not in them raises, and the page with their pictures says what they say."""

from pathlib import Path

import pytest

from broker.nfp.dispatch import machine
from broker.nfp.dispatch.machine import (
    ATTEMPT,
    CURRENT,
    ENTERED,
    PART,
    TABLES,
    TAKES_SLOT,
    IllegalEvent,
    following,
)
from broker.nfp.names import Command
from tests.tables import for_each
from tests.unit.nfp.dispatch.bench import Bench, the

PAGE = Path(machine.__file__).with_name("STATES.md")
BEGINNINGS = {"job": ["open"], "part": ["waiting"], "attempt": ["released"], "worker": ["expected"]}


def page() -> str:
    """The page of the tables; ``python -m tests.unit.nfp.dispatch.test_machine`` writes it."""
    text = "# States of NFP's jobs, their parts, attempts at them and workers\n\n"
    text += "Made of `machine.py`, which says what the words mean.\n"
    for name, table in TABLES.items():
        text += f"\n## {name.title()}\n\n```mermaid\nstateDiagram-v2\n"
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
    assert PAGE.read_text() == page(), "python -m tests.unit.nfp.dispatch.test_machine"


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


def test_the_sets_are_of_states_there_are():
    assert ATTEMPT.keys() >= CURRENT | ENTERED | TAKES_SLOT
    assert ENTERED < CURRENT


if __name__ == "__main__":
    PAGE.write_text(page())
