"""Every load for some seconds, held against the bars: victims' p99 and worst, memory; ten seeds of the random ones.

And those seeds that have failed once (``seeds.txt``).
"""

import pytest

from tests.conftest import short_directory
from tests.overload.run import open_arena, possible
from tests.overload.seeds import kept
from tests.overload.table import TABLE, beside, is_random

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
SECONDS = 5.0
SEEDS = range(1, 11)
RUNS = [(name, seed) for name in TABLE for seed in (SEEDS if is_random(name) else [0])] + [
    run for run in kept() if run[1] not in SEEDS
]


@pytest.mark.parametrize(("load", "seed"), RUNS)
def test_the_bars_hold(load, seed):
    if not possible():
        pytest.skip("optional: only root can connect as somebody else")
    with short_directory() as rundir, open_arena(rundir, beside(load)) as arena:
        arena.run("calm", 0.5)  # what is first needed is there
        assert arena.run(load, SECONDS, seed).below() == []
