"""Real listeners of oslo.messaging that are away find what was kept for them, over a ``kill -9`` of the proxy, too."""

from pathlib import Path

import pytest

from tests.live.oslo import Sides, executions, nodes, until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]


def test_a_listener_that_comes_back_finds_what_came_meanwhile(rundir: Path, sides: Sides) -> None:
    log = rundir / "log"
    backlog = {"topics": ["n.*"], "path": str(rundir / "backlog.db")}
    with nodes(rundir, 2, backlog=backlog) as (near, far):
        # One thread: oslo.messaging's pool of 64 promises no order of the endpoints, whatever order the messages have.
        words = {"topic": "n", "pool": "audit", "log": str(log), "threads": 1}
        listener = sides("listener", far.url, **words)
        notifier = sides("client", near.url)
        notifier.result("notify", topic="n", numbers=[0])
        until(lambda: len(executions(log)) == 1, what="the first")
        listener.close()
        until(lambda: far.status("notify")["listeners"] == 0, what="its end")
        notifier.result("notify", topic="n", numbers=list(range(1, 11)))
        until(lambda: far.status("notify")["backlog"]["messages"] == 10, what="ten that are kept")
        far.kill()
        far.start()
        assert far.status("notify")["backlog"]["messages"] == 10
        sides("listener", far.url, **words)
        until(lambda: len(executions(log)) == 11, what="all of them")
        assert [line.split('"n": ')[1].rstrip("}") for line in executions(log)] == [str(n) for n in range(11)]
        assert far.status("notify")["backlog"]["messages"] == 0
