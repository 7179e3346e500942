"""C10: when everything is quiet again, memory, descriptors and tasks of every member are what they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from tests.proof.checker.story import Story
from tests.proof.checker.verdict import Verdict

RSS_KIB: Final = 12 * 1024
"""Memory may have grown by so much: the interpreter keeps what it freed. Measured over runs: brokers 2 MiB, NFP 4."""
HELD_KIB: Final = {"gateway": 20 * 1024, "gateway-2": 20 * 1024}
"""What a member holds by design once there was load: the gateway 16 MiB of history for those who come back."""
FDS: Final = 4
TASKS: Final = 3
"""What a reconnection under way may hold."""


def judge(story: Story, verdict: Verdict) -> None:
    """Hold the last look at every member against the first one."""
    before = _looks(story, "before")
    after = _looks(story, "after")
    parties = {conn.who for conn in story.conns.values()}
    for member, was in before.items():
        if member in parties:
            continue
        now = after.get(member)
        if now is None:
            verdict.add(
                "C10", f"{member} was there before the load and is not looked at after it", 0.0, member
            )
            continue
        verdict.judged["members looked at"] += 1
        _compare(member, was, now, verdict)
    if not before:
        verdict.add("C10", "nobody was looked at before the load")


def _looks(story: Story, when: str) -> dict[str, Mapping[str, Any]]:
    """The last look at each member at that time."""
    lines = (line for line in story.driver if line["ev"] == "baseline" and line["when"] == when)
    return {line["member"]: line for line in lines}


def _compare(member: str, was: Mapping[str, Any], now: Mapping[str, Any], verdict: Verdict) -> None:
    limit = was["rss_kib"] + RSS_KIB + HELD_KIB.get(member, 0)
    if now["rss_kib"] > limit:
        what = f"{member} had {was['rss_kib']} KiB and has {now['rss_kib']} KiB; the limit is {limit}"
        verdict.add("C10", what, now["t"], member)
    if now["fds"] > was["fds"] + FDS:
        what = f"{member} had {was['fds']} descriptors and has {now['fds']}"
        verdict.add("C10", what, now["t"], member)
    tasks_was, tasks = was.get("tasks"), now.get("tasks")
    if tasks is not None and tasks_was is not None and tasks > tasks_was + TASKS:
        verdict.add("C10", f"{member} had {tasks_was} tasks and has {tasks}", now["t"], member)
