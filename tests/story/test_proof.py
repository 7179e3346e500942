"""Seven brokers under load and a random schedule of faults, and scenes of events that outlive gateways and rank 0; what
both ends wrote is judged afterwards.
"""

import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import OPTIONAL
from tests.proof import drive, mutants, report, returns, schedule
from tests.proof.__main__ import play, play_scene

pytestmark = [pytest.mark.story, pytest.mark.patient]

SHORT_S = 15.0
LONG_S = 90.0
SEEDS = range(1, 11)
EVENTS_PER_S, DASHBOARDS = 300, 12


def prove(seed: int, seconds: float, folder: Path) -> None:
    """Play one seed. When it fails, its folder stays and is named: logs, schedule and verdict are there."""
    try:
        plan = schedule.make(seed, seconds, kinds=drive.kinds())
        told = play(plan, folder)
    except drive.Impossible as error:
        pytest.skip(f"{OPTIONAL} {error}")
    assert told["problems"] == [], f"see {folder}"
    assert told["violations"] == [], f"see {folder}; python -m tests.proof shrink {folder}/schedule.json"
    assert told["ok"]
    assert told["judged"]["calls live"] > 20 * seconds
    assert sum(told["faults"].values()) == len(plan.faults)


@pytest.mark.timeout(300)
def test_a_short_run_keeps_the_rules(tmp_path):
    prove(7, SHORT_S, tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_ten_seeds_keep_the_rules(tmp_path, seed):
    prove(seed, LONG_S, tmp_path)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", returns.SCENES, ids=lambda name: name.replace(" ", "-"))
def test_events_outlive_gateways_and_rank_0(tmp_path, name):
    told = play_scene(name, tmp_path, per_s=EVENTS_PER_S, dashboards=DASHBOARDS)
    assert told["problems"] == [], f"see {tmp_path}"
    assert told["violations"] == [], f"see {tmp_path}"
    assert told["ok"]
    assert told["judged"]["returns"] >= DASHBOARDS
    assert told["judged"]["events owed to dashboards"] > EVENTS_PER_S * DASHBOARDS


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_product_that_breaks_its_promise_is_found_out(tmp_path, mutant):
    alone = isinstance(mutant.plan, str)
    if not alone and (not shutil.which("unshare") or os.geteuid() != 0):
        pytest.skip(f"{OPTIONAL} needs root and network namespaces")
    broken = mutants.play(mutant, tmp_path)["broken"]
    assert mutant.rule in broken, broken


def test_the_kept_results_are_of_runs_that_passed():
    runs, _, scenes = report.load()
    for run in (*runs, *scenes):
        assert run["ok"], f"{run} is kept and failed"
    if runs:
        assert "faults survived" in report.table(runs, {}, scenes)
    if scenes:
        assert [each["scene"] for each in scenes] == list(returns.SCENES)
