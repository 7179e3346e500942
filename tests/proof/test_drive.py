"""The last look at the own logs of members: what a broker says it lost is written down, a traceback is a problem."""

from types import SimpleNamespace

import pytest

from tests.proof.drive import Run
from tests.proof.layout import RANKS
from tests.proof.logs import path_of, read_file
from tests.proof.record import Writer
from tests.proof.schedule import Schedule
from tests.proof.world import World

pytestmark = pytest.mark.tools


def test_what_members_say_themselves_goes_into_the_log(tmp_path):
    world = World.__new__(World)  # no namespaces: only what the members wrote is looked at
    lines = {"broker-1": ["broker: lost events 7-9"], "broker-3": ["Traceback (most recent call last):"]}
    world.members = {
        f"broker-{rank}": SimpleNamespace(
            log=f"{rank}.log", lines=lambda rank=rank: lines.get(f"broker-{rank}", [])
        )
        for rank in RANKS
    }
    world.load = {}
    with Writer(tmp_path, "driver") as log:
        run = Run(world, Schedule(1, 0.0, ()), log, say=lambda words: None)
        run._read_logs()
    (line,) = (line for line in read_file(path_of(tmp_path, "driver")) if line["ev"] == "told")
    assert (line["rank"], line["first"], line["last"]) == (1, 7, 9)
    assert run.problems == ["1 tracebacks in 3.log"]
