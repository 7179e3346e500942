"""The product made wrong on purpose, in a copy: whether the load shows it and the checker sees it.

A proof that cannot fail proves nothing. Each mutant breaks one promise in one place; a run of its copy must break the
rule that guards it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

from tests.proof.schedule import Fault, Schedule

ROOT: Final = Path(__file__).resolve().parents[2]
COPIED: Final = (
    "broker",
    "gateway",
    "tests/proof",
    "tests/netlab.py",
    "tests/live",
    "tests/unit/gateway/identity",
    "pyproject.toml",
)
RUN_S: Final = 240.0
SMALL: Final = ("--per-s", "300", "--dashboards", "12")
"""Enough of a scene."""

QUIET: Final = Schedule(0, 8.0, ())
LONG_QUIET: Final = Schedule(0, 16.0, ())
"""Longer than an event may be on its way (``checker.events.ARRIVES_S``)."""
ROOT_KILLED: Final = Schedule(0, 14.0, (Fault(1, "kill9", 2.0, 1.0, ("broker-0",), (0,)),))
MIDDLE_KILLED: Final = Schedule(0, 16.0, (Fault(1, "kill9", 3.0, 2.0, ("broker-1",), (1,)),))
PROXIES_RESTARTED: Final = Schedule(0, 14.0, (Fault(1, "rolling", 3.0, 1.0, ("oslo-1", "oslo-2")),))


class Mutant(NamedTuple):
    """One promise broken.

    Attributes:
        name: for people. rule: that has to be found broken.
        file, old, new: what is replaced, once.
        plan: a schedule, or the name of a scene (`tests.proof.returns`).
    """

    name: str
    rule: str
    file: str
    old: str
    new: str
    plan: Schedule | str = QUIET


class Outdated(Exception):
    """The product's text is another one by now: the mutant has to follow."""


MUTANTS: Final = (
    Mutant(
        "an event now and then reaches nobody here",
        "C8",
        "broker/routing/events.py",
        "        for port in ports:\n            port.send(message)\n",
        "        for port in ports if self.sequence % 50 else ():\n            port.send(message)\n",
        LONG_QUIET,
    ),
    Mutant(
        "a request now and then goes out twice",
        "C2",
        "broker/routing/router.py",
        "        decision.target.send(message)\n",
        "        if self.counters.requests % 200 == 0:\n"
        "            parts = message.front, message.topic_part, message.payload_part, message.head, message.tag\n"
        "            decision.target.send(type(message)(*parts))\n"
        "        decision.target.send(message)\n",
    ),
    Mutant(
        "private events reach everybody",
        "C9",
        "broker/routing/events.py",
        "    return (\n        port.owner\n",
        "    return True or (\n        port.owner\n",
    ),
    Mutant(
        "LOCAL crosses the tree",
        "C9",
        "broker/ingress/stamping.py",
        "if self.tree_hop:\n            return _CRED.pack(userid, rolemask & NOT_LOCAL)",
        "if self.tree_hop:\n            return _CRED.pack(userid, rolemask)",
    ),
    Mutant(
        "guests keep the stamp that they claim",
        "C9",
        "broker/ingress/stamping.py",
        "        if not self.pass_through:\n            return _CRED.pack(self.cred.userid, own)\n",
        "",
    ),
    Mutant(
        "web clients keep the stamp that they claim",
        "C9",
        "gateway/sessions/decisions.py",
        "session.stamp, head[13:]))\n    decision = Decision(act,",
        "head[5:13], head[13:]))\n    decision = Decision(act,",
    ),
    Mutant(
        "a broker keeps to itself which events it missed",
        "C7",
        "broker/node/overlay/overlay.py",
        'log.error("lost events %d-%d", last + 1, now - 1)',
        "pass",
        ROOT_KILLED,
    ),
    Mutant(
        "a gateway keeps to itself most of what it missed",
        "C7",
        "gateway/upstream/numbering.py",
        "            self._tell(changed, None if changed else missed)\n        self._take(fresh)\n",
        "            self._tell(changed, None if changed else missed)\n        self._take(fresh[-1:])\n",
        MIDDLE_KILLED,
    ),
    Mutant(
        "calls to a lost broker are not answered",
        "C1",
        "broker/routing/departure.py",
        "answered = _answer_waiting(router, port, reason)",
        "answered = 0",
        MIDDLE_KILLED,
    ),
    Mutant(
        "events stay in memory",
        "C10",
        "broker/routing/events.py",
        "        children = self._children\n        for child in children:\n",
        "        self._matches.found[bytes(8 + self.sequence)] = (bytearray(100_000),)  # type: ignore\n"
        "        children = self._children\n        for child in children:\n",
    ),
    Mutant(
        "a proxy that is restarted says that nobody listens any more",
        "C12",
        "broker/oslo/proxy/pipeline.py",
        "        if returns:\n            self._announcer.away()\n",
        "        if not returns:\n            self._announcer.away()\n",
        PROXIES_RESTARTED,
    ),
    Mutant(
        "rank 0 forgets an event now and then",  # of which the gateway thinks that it cannot know
        "C14",
        "broker/wire/event_history.py",
        "        self._newest.append(frame)\n",
        "        if sequence % 50:\n            self._newest.append(frame)\n",
        "all gateways killed",
    ),
    Mutant(
        "a gateway replays twice",
        "C7",
        "gateway/sessions/resume.py",
        "            session.send_run(run)\n",
        "            session.send_run(run)\n" * 2,
        "all gateways killed",
    ),
    Mutant(
        "a replay leaves out an event now and then",
        "C13",
        "gateway/sessions/resume.py",
        "            self._runs[key] = Run(mine) if mine else None\n",
        "            self._runs[key] = Run(mine[:-1] or mine) if mine else None\n",
        "all gateways killed",
    ),
    Mutant(
        "a replay shows to one what another may have",
        "C9",
        "gateway/sessions/resume.py",
        "rights = who.roles, who.userid, who.shared, access",
        "rights = ()",
        "all gateways killed",
    ),
    Mutant(
        "a replay shows what is private",
        "C9",
        "gateway/sessions/resume.py",
        "            and may_see(self.session.principal, message)\n",
        "",
        "all gateways killed",
    ),
    Mutant(
        "a replay shows what a rule denies",
        "C9",
        "gateway/sessions/resume.py",
        "            and self.session.sees_topic(topic)\n",
        "",
        "all gateways killed",
    ),
    Mutant(
        "a gateway claims to have recovered everything",
        "C13",
        "gateway/sessions/resume.py",
        '                "recovered": recovered,',
        '                "recovered": True,',
        "all gateways killed, and nothing kept",
    ),
    Mutant(
        "numbers are given twice",
        "C13",
        "broker/node/event_numbers.py",
        '        self._write(LAST_AT, sequence.to_bytes(4, "little"))\n',
        '        self._write(LAST_AT, (sequence * 9 // 10).to_bytes(4, "little"))\n',
        "rank 0 with a journal killed",
    ),
)


def make(mutant: Mutant, place: Path) -> None:
    """Copy the product and the proof into ``place``, with the mutant in it.

    Raises:
        Outdated: what it replaces stands there not once.
    """
    for name in COPIED:
        source, target = ROOT / name, place / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__", "results", "*.so"))
        else:
            shutil.copy(source, target)
    path = place / mutant.file
    text = path.read_text()
    if text.count(mutant.old) != 1:
        raise Outdated(f"{mutant.name}: {mutant.file} holds its text {text.count(mutant.old)} times")
    path.write_text(text.replace(mutant.old, mutant.new))


def play(mutant: Mutant, place: Path) -> dict[str, Any]:
    """Play the mutant's schedule in its copy; returns the result as `report.result` makes it.

    Raises:
        Outdated: see `make`. RuntimeError: there is no result; the text says what was said.
    """
    make(mutant, place)
    plan, kept = place / "plan.json", place / "run"
    if isinstance(mutant.plan, Schedule):
        plan.write_text(mutant.plan.to_json())
        asked = ["replay", str(plan)]
    else:
        asked = ["returns", mutant.plan, *SMALL]
    words = [sys.executable, "-m", "tests.proof", *asked, "--keep", str(kept)]
    done = subprocess.run(
        words, cwd=place, capture_output=True, text=True, errors="replace", timeout=RUN_S, check=False
    )
    try:
        told: dict[str, Any] = json.loads((kept / "result.json").read_text())
    except FileNotFoundError:
        raise RuntimeError(f"exit code {done.returncode}: {done.stderr[-2000:]}") from None
    return told
