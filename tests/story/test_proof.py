"""Seven brokers under load and a random schedule of faults; both ends' logs are judged afterwards."""

import json
import os
import shutil
from pathlib import Path

import pytest

from tests.conftest import OPTIONAL
from tests.proof import drive, mutants, report, schedule
from tests.proof.__main__ import play

pytestmark = [pytest.mark.story, pytest.mark.patient]

SHORT_S = 15.0
LONG_S = 90.0
SEEDS = range(1, 11)


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


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", mutants.MUTANTS, ids=lambda mutant: mutant.name.replace(" ", "-"))
def test_a_product_that_breaks_its_promise_is_found_out(tmp_path, mutant):
    if not shutil.which("unshare") or os.geteuid() != 0:
        pytest.skip(f"{OPTIONAL} needs root and network namespaces")
    broken = mutants.play(mutant, tmp_path)["broken"]
    assert mutant.rule in broken, broken


def test_the_kept_results_are_of_runs_that_passed():
    runs, _ = report.load()
    for run in runs:
        assert run["ok"], f"seed {run['seed']} is kept and failed"
        assert json.dumps(run)
    if runs:
        assert "faults survived" in report.table(runs, {})
