"""All rules over the logs of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from tests.proof import logs
from tests.proof.checker import calls, events, jobs, returns, stamps, usage
from tests.proof.checker.story import Story, Unjudgeable
from tests.proof.checker.verdict import Verdict

LEAST_LIVE: Final = 0.1
"""Least part of the calls that must have been judged in full; fewer prove nothing."""


def check(folder: Path) -> Verdict:
    """Judge a run.

    `Verdict.judged` counts what something was demanded of: ``calls live`` (C5 in full), ``calls near a fault`` (what
    holds whatever happens), ``deliveries live``, ``stamps``, ``jobs live`` and so on.

    Args:
        folder: with the files of `tests.proof.record`.

    Raises:
        FileNotFoundError: there is no run. logs.Malformed, Unjudgeable: it cannot be judged.
    """
    verdict = Verdict()
    files = logs.read(folder)
    if any(line["ev"] == "scene" for line in files[0]):
        returns.judge(files, verdict)
        return verdict
    story = Story(files, verdict)
    verdict.faults = dict(story.trouble.kinds)
    for rule in (calls, events, stamps, usage, jobs):
        rule.judge(story, verdict)
    for kind in story.trouble.unended:
        verdict.add("C0", f"a fault of kind {kind} was never taken away")
    _enough(story, verdict)
    return verdict


def _enough(story: Story, verdict: Verdict) -> None:
    """A run in which next to nothing could be judged must not look like a good one."""
    live, near = verdict.judged["calls live"], verdict.judged["calls near a fault"]
    if not live or live < LEAST_LIVE * (live + near):
        verdict.add("C0", f"only {live} of {live + near} calls had a way that no fault touched")
    if story.ended <= story.began:
        verdict.add("C0", "load ended before it began")


__all__ = ["Unjudgeable", "check"]
