"""The proof by hand.

    python -m tests.proof run --seed 3 --seconds 60 [--kinds kill9,rolling] [--keep DIR] [--record]
                                                                               play a random schedule and judge it
    python -m tests.proof returns [WORD] [--per-s 2000] [--dashboards 50] [--keep DIR] [--record]
                                                                               play the scenes of events that outlive
    python -m tests.proof replay FILE [--keep DIR]                             play a schedule of a file
    python -m tests.proof shrink FILE [--out FILE] [--tries N]                 the smallest part that still fails
    python -m tests.proof check DIR                                            judge the logs of a run again
    python -m tests.proof mutants [WORD]                                       break the product, see whether it shows
    python -m tests.proof table [--page docs/reliability.md]                           what the kept results prove

Exit codes: 0 the rules hold, 1 one is broken, 2 wrong usage, 4 the run cannot be judged, 5 this machine cannot do it.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.proof import drive, logs, mutants, report, returns, schedule
from tests.proof.checker import Verdict, check
from tests.proof.checker.judge import Unjudgeable
from tests.proof.schedule import Schedule
from tests.proof.shrink import shrink

SHOWN = 12
"""Violations that are printed."""


def main(words: Sequence[str] | None = None) -> int:
    """Do what the command line says; returns the exit code."""
    asked = _parser().parse_args(words)
    try:
        return int(asked.do(asked))
    except (logs.Malformed, Unjudgeable, FileNotFoundError) as error:
        say(f"cannot be judged: {error}")
        return 4
    except drive.Impossible as error:
        say(f"not on this machine: {error}")
        return 5
    except ValueError as error:
        say(f"error: {error}")
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.proof", description="Proof under faults.")
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    run = verbs.add_parser("run", help="play a random schedule and judge it")
    run.add_argument("--seed", type=int, required=True)
    run.add_argument("--seconds", type=float, default=60.0, help="of load (default 60)")
    run.add_argument("--kinds", help="of faults, with commas between (default: all that this machine can do)")
    run.add_argument(
        "--record", action="store_true", help="keep the result for the table of docs/reliability.md"
    )
    run.set_defaults(do=_run)
    scenes = verbs.add_parser(
        "returns", help="play the scenes of events that outlive a gateway, and judge them"
    )
    scenes.add_argument("word", nargs="?", default="", help="only those with this in their name, or this one")
    scenes.add_argument("--per-s", type=int, default=2000, help="events a second (default 2000)")
    scenes.add_argument("--dashboards", type=int, default=50, help="how many (default 50)")
    scenes.add_argument("--record", action="store_true", help="keep the results for the table")
    scenes.set_defaults(do=_returns)
    replay = verbs.add_parser("replay", help="play the schedule of a file and judge it")
    replay.add_argument("file", type=Path)
    replay.set_defaults(do=_replay)
    smaller = verbs.add_parser("shrink", help="find the smallest part of a schedule that still fails")
    smaller.add_argument("file", type=Path)
    smaller.add_argument("--out", type=Path, help="where to write it (default: FILE with -small)")
    smaller.add_argument("--tries", type=int, default=2, help="how often a schedule may pass (default 2)")
    smaller.set_defaults(do=_shrink)
    judged = verbs.add_parser("check", help="judge the logs of a run again")
    judged.add_argument("folder", type=Path)
    judged.add_argument("--json", action="store_true", help="print everything as JSON")
    judged.set_defaults(do=_check)
    broken = verbs.add_parser("mutants", help="break the product in a copy, and see whether that is found")
    broken.add_argument("word", nargs="?", default="", help="only those with this in their name")
    broken.set_defaults(do=_mutants)
    table = verbs.add_parser("table", help="make the reliability table from the kept results")
    table.add_argument("--page", type=Path, help="write it between its markers there, instead of printing it")
    table.add_argument("--results", type=Path, default=report.RESULTS)
    table.set_defaults(do=_table)
    for verb in (run, scenes, replay):
        verb.add_argument(
            "--keep", type=Path, metavar="DIR", help="keep logs and schedule in this new folder"
        )
    return parser


def say(text: str) -> None:
    """A line for the person who looks on."""
    print(text, file=sys.stderr, flush=True)


# ----------------------------------------------------------------- verbs


def _run(asked: argparse.Namespace) -> int:
    kinds = asked.kinds.split(",") if asked.kinds else drive.kinds()
    plan = schedule.make(asked.seed, asked.seconds, kinds=kinds)
    told = play(plan, asked.keep)
    if asked.record and told["ok"]:
        say(f"kept as {report.keep(told)}")
    return 0 if told["ok"] else 1


def _returns(asked: argparse.Namespace) -> int:
    whole = asked.word in returns.SCENES
    names = [asked.word] if whole else [name for name in returns.SCENES if asked.word in name]
    if not names:
        raise ValueError(f"no scene with {asked.word!r}; there are {', '.join(returns.SCENES)}")
    told = []
    for name in names:
        say(name)
        folder = asked.keep if whole or asked.keep is None else asked.keep / name.replace(" ", "-")
        told.append(play_scene(name, folder, per_s=asked.per_s, dashboards=asked.dashboards))
    ok = all(each["ok"] for each in told)
    if asked.record and ok:
        say(f"kept as {report.keep_scenes(told)}")
    return 0 if ok else 1


def _replay(asked: argparse.Namespace) -> int:
    told = play(Schedule.from_json(asked.file.read_text()), asked.keep)
    return 0 if told["ok"] else 1


def _shrink(asked: argparse.Namespace) -> int:
    def fails(plan: Schedule) -> bool:
        say(
            f"trying {len(plan.faults)} faults in {plan.seconds:g} s: {'; '.join(str(f) for f in plan.faults)}"
        )
        return any(not play(plan, None, leave=False)["ok"] for _ in range(asked.tries))

    small = shrink(Schedule.from_json(asked.file.read_text()), fails)
    out = asked.out or asked.file.with_name(f"{asked.file.stem}-small.json")
    out.write_text(small.to_json())
    say(f"{len(small.faults)} faults still fail: {out}")
    return 0


def _check(asked: argparse.Namespace) -> int:
    verdict = check(asked.folder)
    if asked.json:
        print(json.dumps(verdict.as_json(), indent=1))
    else:
        show(verdict, [])
    return 0 if verdict.ok else 1


def _mutants(asked: argparse.Namespace) -> int:
    unseen = 0
    for mutant in (each for each in mutants.MUTANTS if asked.word in each.name):
        with tempfile.TemporaryDirectory(prefix="proof-mutant-") as place:
            broken = mutants.play(mutant, Path(place))["broken"]
        found = mutant.rule in broken
        unseen += not found
        say(f"{'found ' if found else 'UNSEEN'} {mutant.rule:3} {mutant.name}: {broken}")
    return 1 if unseen else 0


def _table(asked: argparse.Namespace) -> int:
    runs, fuzz, scenes = report.load(asked.results)
    if not runs:
        raise ValueError(f"no results in {asked.results}: make some with 'run --record'")
    text = report.table(runs, fuzz, scenes)
    if asked.page is None:
        print(text)
    else:
        say(f"{asked.page}: {'renewed' if report.write_table(asked.page, text) else 'was up to date'}")
    return 0


# ----------------------------------------------------------------- one run


def play(plan: Schedule, keep: Path | None, *, leave: bool = True) -> dict[str, Any]:
    """Play a schedule, judge it, say how it went; returns what `report.result` makes of it.

    Args:
        plan: what to play.
        keep: folder for the logs; made if need be, must not hold a run. None: they are thrown away, unless it fails.
        leave: False throws them away then, too.
    """
    played = {"seed": plan.seed, "seconds": plan.seconds}
    return _judged(lambda folder: drive.run(plan, folder, say=say), played, keep, leave=leave)


def play_scene(name: str, keep: Path | None, *, per_s: int, dashboards: int) -> dict[str, Any]:
    """The same with one of ``returns.SCENES``; see there."""

    def driven(folder: Path) -> list[str]:
        problems, played["per_s"] = returns.play(name, folder, per_s=per_s, dashboards=dashboards, say=say)
        return problems

    played: dict[str, Any] = {"scene": name, "dashboards": dashboards}
    return _judged(driven, played, keep)


def _judged(
    driven: Callable[[Path], list[str]], played: dict[str, Any], keep: Path | None, *, leave: bool = True
) -> dict[str, Any]:
    folder = keep or Path(tempfile.mkdtemp(prefix="proof-"))
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    problems = driven(folder)
    verdict = check(folder)
    told = report.result(played, verdict, problems=problems, machine_s=time.monotonic() - began)
    (folder / "result.json").write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    show(verdict, problems)
    if keep is None and (told["ok"] or not leave):
        shutil.rmtree(folder, ignore_errors=True)
    else:
        say(f"logs and result: {folder}")
    return told


def show(verdict: Verdict, problems: Sequence[str]) -> None:
    """What was found, for people."""
    for name, counts in (
        ("faults", verdict.faults),
        ("messages", verdict.messages),
        ("judged", verdict.judged),
    ):
        say(f"{name}: {', '.join(f'{count} {kind}' for kind, count in sorted(counts.items())) or 'none'}")
    for text in problems:
        say(f"PROBLEM {text}")
    for violation in verdict.violations[:SHOWN]:
        say(f"BROKEN {violation}")
    if verdict.broken:
        say(f"broken: {', '.join(f'{rule} {count} times' for rule, count in sorted(verdict.broken.items()))}")
    say("the rules hold" if verdict.ok and not problems else "FAILED")


if __name__ == "__main__":
    sys.exit(main())
