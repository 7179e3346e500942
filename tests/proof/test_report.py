"""What is kept of runs, and the table made from it."""

import json
import shutil

import pytest

from tests.proof import report
from tests.proof.__main__ import main
from tests.proof.checker import Verdict, check
from tests.proof.scene import busy
from tests.proof.test_checker_passes import lively

pytestmark = pytest.mark.tools


def told(seed=1, ok=True, **more):
    verdict = Verdict()
    verdict.messages.update(
        {"calls unix": 90, "calls ws": 10, "events unix": 5, "casts oslo": 3, "notifys oslo": 4}
    )
    verdict.messages.update({"requests served": 99, "events delivered": 50, "answers": 100, "gaps told": 2})
    verdict.judged.update({"stamps": 80, "calls live": 70})
    verdict.faults = {"kill9": 2, "freeze": 1}
    if not ok:
        verdict.add("C5", "broken")
    return report.result({"seed": seed, "seconds": 60.0}, verdict, machine_s=90.0, **more)


def rows(text):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_the_table_adds_up_all_runs(tmp_path):
    fuzz = {"found": 0, "decoders": {"framing": {"inputs": 1000}, "hello": {"inputs": 500}}}
    found = rows(report.table([told(1), told(2)], fuzz))
    figures = {name: figure for name, figure, _ in found if name}
    assert figures == {
        "faults survived": "6",
        "messages checked": "682",
        "inputs fuzzed": "1,500",
        "seeds": "2",
        "machine hours": "0.1",
    }
    below = {what.split(":")[0].split(",")[0]: figure for name, figure, what in found if not name}
    assert below["a process killed (kill -9)"] == "4"
    assert below["calls"] == "200"
    assert below["oslo casts"] == "14"
    assert below["stamps (userid"] == "160"
    assert ["seeds", "2", "1, 2"] in found


def test_every_kind_of_fault_has_words():
    from tests.proof import schedule

    assert set(report.KINDS) == set(schedule.KINDS)


def test_without_fuzzing_there_is_no_row_of_it():
    assert "fuzzed" not in report.table([told()], {})


def test_scenes_of_events_that_outlive_are_added():
    verdict = Verdict(faults={"kill9": 2})
    verdict.messages.update({"events dashboards": 1000, "events delivered": 50_000})
    played = {"dashboards": 50, "scene": "one"}
    scenes = [report.result({**played, "per_s": per_s}, verdict, machine_s=36.0) for per_s in (2001, 1998)]
    found = rows(report.table([told(1)], {}, scenes))
    assert ["events that outlive", "2 scenes"] in [row[:2] for row in found]
    (what,) = (row[2] for row in found if row[0] == "events that outlive")
    assert "2,001 events/s (median; 1,998 the least)" in what
    assert "50 dashboards" in what
    assert found[0][:2] == ["faults survived", "7"]
    assert ["", "2,005", report.MESSAGES["events"]] in found


def test_a_failed_run_is_no_proof():
    with pytest.raises(ValueError, match="seed 3"):
        report.table([told(1), told(3, ok=False)], {})
    with pytest.raises(ValueError, match="all gateways"):
        report.table([told(1)], {}, [{"scene": "all gateways", "ok": False}])


def test_what_fuzzing_found_has_to_be_mended_first():
    with pytest.raises(ValueError, match="2 findings"):
        report.table([told(1)], {"found": 2, "decoders": {}})


def test_what_the_driver_saw_makes_a_run_fail():
    assert told()["ok"]
    assert not told(problems=["broker-3 ended by itself"])["ok"]


def test_results_are_kept_by_seed(tmp_path):
    for seed in (12, 2):
        report.keep(told(seed), tmp_path)
    report.keep(told(2, problems=["again"]), tmp_path)
    (tmp_path / "fuzz.json").write_text('{"found": 0, "decoders": {}}')
    assert report.keep_scenes([{"scene": "all"}], tmp_path).name == "returns.json"
    runs, fuzz, scenes = report.load(tmp_path)
    assert scenes == [{"scene": "all"}]
    assert [run["seed"] for run in runs] == [2, 12]
    assert runs[0]["problems"] == ["again"]
    assert fuzz == {"found": 0, "decoders": {}}


def test_nothing_kept_is_nothing_proved(tmp_path):
    assert report.load(tmp_path) == ([], {}, [])


def test_the_table_goes_between_its_markers_and_nowhere_else(tmp_path):
    readme = tmp_path / "README.md"
    readme.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    assert report.write_table(readme, "| new |")
    assert readme.read_text() == f"before\n{report.BEGIN}\n| new |\n{report.END}\nafter\n"
    assert not report.write_table(readme, "| new |")


def test_a_readme_without_markers_is_left_alone(tmp_path):
    readme = tmp_path / "README.md"
    for text in ("", report.BEGIN, f"{report.END}\n{report.BEGIN}", report.BEGIN * 2 + report.END):
        readme.write_text(text)
        with pytest.raises(ValueError, match="markers"):
            report.write_table(readme, "| new |")
        assert readme.read_text() == text


# -- the command line ----------------------------------------------------------------------------------


@pytest.fixture
def run(tmp_path):
    scene, conns = busy()
    lively(scene, conns)
    return scene.end().save(tmp_path / "run")


def test_check_judges_a_folder(run, capsys):
    assert main(["check", str(run)]) == 0
    assert "the rules hold" in capsys.readouterr().err


def test_check_as_json(run, capsys):
    assert main(["check", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == check(run).as_json()


def test_check_says_what_is_broken(run, capsys):
    path = run / "party-b.jsonl"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if '"serve"' not in line) + "\n")
    assert main(["check", str(run)]) == 1
    said = capsys.readouterr().err
    assert "BROKEN C9" in said
    assert "FAILED" in said


def test_check_of_nothing(tmp_path, capsys):
    assert main(["check", str(tmp_path)]) == 4
    assert "cannot be judged" in capsys.readouterr().err


def test_table_of_a_folder_of_results(tmp_path, capsys):
    results = tmp_path / "results"
    report.keep(told(), results)
    assert main(["table", "--results", str(results)]) == 0
    assert "faults survived" in capsys.readouterr().out
    readme = tmp_path / "README.md"
    readme.write_text(f"{report.BEGIN}\n{report.END}\n")
    assert main(["table", "--results", str(results), "--page", str(readme)]) == 0
    assert "faults survived" in readme.read_text()
    shutil.rmtree(results)
    assert main(["table", "--results", str(results)]) == 2


def test_replay_wants_a_schedule(tmp_path, capsys):
    path = tmp_path / "x.json"
    path.write_text("{}")
    assert main(["replay", str(path)]) == 2
    assert "no schedule" in capsys.readouterr().err
