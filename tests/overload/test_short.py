"""The loads that are made of messages, for a moment each: what no busy machine excuses. The bars are in ``test_soak``.

After each one: every call of the victims was answered, no link of theirs and none between brokers ended, no event is
lost, descriptors are back.
"""

import pytest

from tests.conftest import short_directory
from tests.overload.run import open_arena, possible
from tests.overload.table import TABLE, way_of

SECONDS = 0.1


def loads_of(way):
    return [name for name in TABLE if way_of(name) == way]


def broken_by(loads):
    """Load -> what it broke; the first one that breaks something is the last one that is tried."""
    if not possible():
        pytest.skip("optional: only root can connect as somebody else")
    with short_directory() as rundir, open_arena(rundir) as arena:
        for load in loads:
            broken = arena.run(load, SECONDS, seed=1).broken()
            if broken:
                return {load: broken}
    return {}


@pytest.mark.patient
@pytest.mark.parametrize("way", ["unix", "child", "curve"])
def test_guests_cost_others_nothing(way):
    assert broken_by(loads_of(way)) == {}
