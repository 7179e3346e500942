"""``python -m tests.fuzz NAME|all``: fuzz one decoder or every one; exit code 1 when something was found.

With atheris installed inputs are guided by branches (``--engine atheris``, which ``auto`` takes where it is there),
else by lines, slower and with nothing but this repository. What was found is written to ``corpus/NAME/found-...`` and
replayed by ``test_targets`` from then on.
"""

import argparse
import importlib.util
import json
import logging
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fuzz import campaign
from tests.fuzz.campaign import Outcome
from tests.fuzz.targets import CORPUS, FOUND, TARGETS, Target, file_name


def arguments(words: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("name", choices=[*TARGETS, "all"], help="which decoder")
    parser.add_argument(
        "--seconds", type=float, default=10.0, help="for each decoder (default 10); 0: no limit"
    )
    parser.add_argument(
        "--runs", type=int, default=0, help="inputs for each decoder; 0: as many as the time allows"
    )
    parser.add_argument("--seed", type=int, default=0, help="another one gives other inputs")
    parser.add_argument("--engine", choices=["auto", "own", "atheris"], default="auto")
    parser.add_argument("--out", type=Path, default=CORPUS, help="where findings go (default: the corpus)")
    parser.add_argument("--keep", action="store_true", help="add inputs that reached new code to the corpus")
    parser.add_argument(
        "--prune", action="store_true", help="fuzz nothing: remove from the corpus what reaches nothing new"
    )
    parser.add_argument("--json", type=Path, help="write the figures to this file")
    asked = parser.parse_args(words)
    if not asked.runs and not asked.seconds:
        parser.error("--runs or --seconds must limit it")
    return asked


def engine_of(asked: str) -> str:
    """The engine that is there."""
    there = importlib.util.find_spec("atheris") is not None
    if asked == "atheris" and not there:
        sys.exit("tests.fuzz: atheris is not installed: pip install atheris, or --engine own")
    return "atheris" if there and asked != "own" else "own"


def fuzz(target: Target, asked: argparse.Namespace, engine: str) -> Outcome:
    """One campaign; its findings are written."""
    if engine == "own":
        outcome = campaign.run(target, seconds=asked.seconds, runs=asked.runs, seed=asked.seed)
    else:
        outcome = by_atheris(target, asked)
    paths = campaign.write(outcome.findings, asked.out / target.name)
    for path, each in zip(paths, outcome.findings, strict=True):
        print(f"\n{each.what}\n{each.trace}\nkept as {path}\n")
    if asked.keep:
        for data in outcome.fresh:
            (CORPUS / target.name).mkdir(parents=True, exist_ok=True)
            (CORPUS / target.name / file_name(data)).write_bytes(data)
    return outcome


def by_atheris(target: Target, asked: argparse.Namespace) -> Outcome:
    """The same in a process of its own: atheris has to see each module of the product as it is loaded."""
    with tempfile.TemporaryDirectory(prefix="hg-fuzz-") as name:
        folder = Path(name)
        (folder / "corpus").mkdir()
        (folder / "faults").mkdir()
        for data in target.corpus():
            (folder / "corpus" / file_name(data)).write_bytes(data)
        known = {path.name for path in (folder / "corpus").iterdir()}
        words = [f"-seed={asked.seed + 1}", f"-artifact_prefix={folder}/faults/"]
        words += [f"-max_total_time={asked.seconds:.0f}"] if asked.seconds else []
        words += [f"-runs={asked.runs}"] if asked.runs else []
        done = subprocess.run(
            [sys.executable, "-m", "tests.fuzz.guided", target.name, *words, str(folder / "corpus")],
            capture_output=True, text=True, errors="replace", check=False,
        )  # fmt: skip
        faults = [path.read_bytes() for path in sorted((folder / "faults").iterdir())]
        fresh = [path.read_bytes() for path in (folder / "corpus").iterdir() if path.name not in known]
    if done.returncode and not faults:
        sys.exit(f"tests.fuzz: atheris failed at {target.name}:\n{done.stderr[-2000:]}")
    return outcome_of(target, done.stderr, faults, fresh)


def outcome_of(target: Target, said: str, faults: list[bytes], fresh: list[bytes]) -> Outcome:
    """What libFuzzer's words and files come to."""
    words = said.split()
    stats = {
        key: words[at + 1] for at, key in enumerate(words[:-1]) if key.startswith("stat::") or key == "cov:"
    }
    findings = []
    for data in faults:
        small = campaign.shrink(data, lambda one: campaign.fault_of(target, one) != "")
        what = campaign.fault_of(target, small) or "seen under atheris only"
        findings.append(campaign.Finding(small, what, said[-3000:]))
    inputs = int(stats.get("stat::number_of_executed_units:", "0"))
    return Outcome(target.name, inputs, -1, int(stats.get("cov:", "0")), fresh, findings, 0.0)


def prune(target: Target) -> int:
    """Remove what may go from the corpus of a target, findings excepted; how many files stay."""
    files = {
        path.read_bytes(): path
        for path in (CORPUS / target.name).glob("*")
        if not path.name.startswith(FOUND)
    }
    gone = campaign.spare(target, list(files))
    for data in gone:
        files[data].unlink()
    return len(files) - len(gone)


def row(outcome: Outcome) -> str:
    """One line; atheris does not count what was read."""
    read = "" if outcome.read < 0 else str(outcome.read)
    fresh, found = len(outcome.fresh), len(outcome.findings)
    return f"{outcome.name:14} {outcome.inputs:>9} {read:>9} {outcome.lines:>7} {fresh:>5} {found:>5}"


def main(words: list[str] | None = None) -> int:
    asked = arguments(words)
    told = logging.root.manager.disable
    logging.disable(logging.CRITICAL)  # refusals are told in the log, and refusals are what most inputs get
    try:
        return work(asked)
    finally:
        logging.disable(told)


def work(asked: argparse.Namespace) -> int:
    """Do what was asked; returns the exit code."""
    engine = engine_of(asked.engine)
    chosen = list(TARGETS.values()) if asked.name == "all" else [TARGETS[asked.name]]
    if asked.prune:
        for target in chosen:
            print(f"{target.name:14} {prune(target):>5} files")
        return 0
    print(f"{'decoder':14} {'inputs':>9} {'read':>9} {'reached':>7} {'fresh':>5} {'found':>5}   by {engine}")
    outcomes = []
    for target in chosen:
        outcomes.append(fuzz(target, asked, engine))
        print(row(outcomes[-1]), flush=True)
    found = sum(len(each.findings) for each in outcomes)
    inputs = sum(each.inputs for each in outcomes)
    print(f"{'together':14} {inputs:>9} inputs, {found} findings")
    if asked.json:
        rows = {
            each.name: {"inputs": each.inputs, "reached": each.lines, "found": len(each.findings)}
            for each in outcomes
        }
        asked.json.write_text(
            json.dumps({"engine": engine, "inputs": inputs, "found": found, "decoders": rows}, indent=1)
            + "\n"
        )
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
