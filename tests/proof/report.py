"""What runs have proved: a JSON file for each, and the table of docs/reliability.md made from all of them.

A result file is small and stays in the repository: figures, not logs. One file a seed: a newer run replaces the older.
What was fuzzed stands beside them, as ``fuzz.json``: ``python -m tests.fuzz all --seconds 60 --json`` writes it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from tests.proof.checker import Verdict

RESULTS: Final = Path(__file__).with_name("results")
"""Where result files are kept."""
BEGIN: Final = "<!-- reliability table: begin -->"
END: Final = "<!-- reliability table: end -->"

KINDS: Final = {
    "kill9": "a process killed (kill -9): broker of any level, gateway, wing, client",
    "restart": "a broker or the gateway restarted in order",
    "freeze": "a process frozen and thawed",
    "partition": "the network cut in two, and healed",
    "oneway": "a link that carries one direction only",
    "netem": "delay and loss on every link",
    "slow": "a client that does not read",
    "disk": "a full disk (journal, job store)",
    "clock": "the clock stepped by up to a day",
    "certificate": "the gateway's certificate replaced",
    "key": "a broker's CURVE key replaced",
    "directory": "the directory (Redis) away",
    "rolling": "the oslo proxies restarted one after the other",
    "failover": "a gateway behind the balancer killed under load (kill -9)",
}
"""Words of the table for each kind of fault."""
MESSAGES: Final = {
    "calls": "calls, each with its one answer or documented error",
    "requests served": "requests, none served twice or out of order",
    "stamps": "stamps (userid, roles) seen by services",
    "events": "events numbered by rank 0",
    "events delivered": "deliveries of events",
    "jobs": "NFP jobs, each with its one recorded result",
    "casts": "oslo casts, fan-outs, notifications",
}
"""Words of the table for kinds of messages; see `messages_of`."""


def result(
    played: Mapping[str, Any], verdict: Verdict, *, problems: Iterable[str] = (), machine_s: float
) -> dict[str, Any]:
    """Return what is kept of a run.

    Args:
        played: what it was: seed and seconds of a schedule; scene, dashboards and events a second.
        verdict: the checker's. problems: what the driver saw. machine_s: how long it took.
    """
    problems = list(problems)
    return {
        **played,
        "machine_s": round(machine_s, 1),
        **verdict.as_json(),
        "ok": verdict.ok and not problems,
        "problems": problems,
    }


def keep(told: Mapping[str, Any], folder: Path = RESULTS) -> Path:
    """Write the result of a run into the folder of results; returns its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"seed-{told['seed']}.json"
    path.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    return path


def keep_scenes(told: list[dict[str, Any]], folder: Path = RESULTS) -> Path:
    """Write the results of all scenes (`tests.proof.returns`), in place of those before; returns their file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "returns.json"
    path.write_text(json.dumps(told, indent=1, sort_keys=True) + "\n")
    return path


def load(folder: Path = RESULTS) -> tuple[list[dict[str, Any]], dict[str, Any], list[dict[str, Any]]]:
    """Return the results of all runs, by seed, what was fuzzed ({} when nothing is kept), and those of scenes."""
    runs = [json.loads(path.read_text()) for path in folder.glob("seed-*.json")]
    fuzz, scenes = folder / "fuzz.json", folder / "returns.json"
    return (
        sorted(runs, key=lambda run: run["seed"]),
        json.loads(fuzz.read_text()) if fuzz.exists() else {},
        json.loads(scenes.read_text()) if scenes.exists() else [],
    )


def messages_of(run: Mapping[str, Any]) -> Counter[str]:
    """What a run checked, in the kinds of `MESSAGES`."""
    counts = Counter[str]()
    for kind, count in run["messages"].items():
        head = kind.split(" ")[0]
        if kind in MESSAGES:
            counts[kind] += count
        elif head in ("calls", "events"):
            counts[head] += count
        elif head in ("casts", "fanouts", "notifys"):
            counts["casts"] += count
    counts["stamps"] += run["judged"].get("stamps", 0)
    return counts


def table(
    runs: Iterable[Mapping[str, Any]], fuzz: Mapping[str, Any], scenes: Sequence[Mapping[str, Any]] = ()
) -> str:
    """Return the table of docs/reliability.md, without its markers.

    Raises:
        ValueError: a run failed, or fuzzing found something: such a table would say what is not so.
    """
    runs = list(runs)
    bad = [f"seed {run['seed']}" for run in runs if not run["ok"]]
    bad += [scene["scene"] for scene in scenes if not scene["ok"]]
    if bad:
        raise ValueError(f"runs that failed are no proof: {', '.join(bad)}")
    if fuzz.get("found"):
        raise ValueError(f"fuzzing has {fuzz['found']} findings: mend them first")
    faults, messages = Counter[str](), Counter[str]()
    for run in (*runs, *scenes):
        faults.update(run["faults"])
        messages.update(messages_of(run))
    rows = [("faults survived", f"{sum(faults.values()):,}", "")]
    rows += [("", f"{faults[kind]:,}", words) for kind, words in KINDS.items() if faults[kind]]
    rows += [("messages checked", f"{sum(messages.values()):,}", "")]
    rows += [("", f"{messages[kind]:,}", words) for kind, words in MESSAGES.items() if messages[kind]]
    inputs = {name: row["inputs"] for name, row in fuzz.get("decoders", {}).items()}
    if inputs:
        what = f"into {len(inputs)} decoders, nothing found: {', '.join(sorted(inputs))}"
        rows.append(("inputs fuzzed", f"{sum(inputs.values()):,}", what))
    if scenes:
        rates = sorted(scene["per_s"] for scene in scenes)
        what = "of gateways and rank 0 killed and stopped, before "
        what += f"{scenes[0]['dashboards']} dashboards that come back, "
        what += f"under {rates[len(rates) // 2]:,} events/s (median; {rates[0]:,} the least)"
        rows.append(("events that outlive", f"{len(scenes)} scenes", what))
    hours = sum(run["machine_s"] for run in (*runs, *scenes)) / 3600
    seeds = ", ".join(str(run["seed"]) for run in runs)
    rows += [("seeds", f"{len(runs)}", seeds), ("machine hours", f"{hours:.1f}", "of these runs")]
    lines = [f"| {name} | {figure} | {what} |" for name, figure, what in rows]
    return "\n".join(["| proved | figure | what |", "| --- | ---: | --- |", *lines])


def write_table(page: Path, text: str, marks: tuple[str, str] = (BEGIN, END)) -> bool:
    """Put the table between its markers; returns whether that changed the file.

    Raises:
        ValueError: the markers are not there, or not once each and in order.
    """
    old, (begin, end) = page.read_text(), marks
    if old.count(begin) != 1 or old.count(end) != 1 or old.index(begin) > old.index(end):
        raise ValueError(
            f"{page}: the markers '{begin}' and '{end}' must stand there, once each, in this order"
        )
    head, _, rest = old.partition(begin)
    tail = rest.partition(end)[2]
    new = f"{head}{begin}\n{text}\n{end}{tail}"
    if new != old:
        page.write_text(new)
    return new != old
