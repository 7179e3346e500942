"""Fixtures of the tests against real peers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.oslo import Side, Sides


@pytest.fixture
def sides(rundir: Path) -> Iterator[Sides]:
    """Starts applications; all have left in order at the end."""
    started: list[Side] = []

    def start(role: str, url: str, **words: object) -> Side:
        side = Side(role, url, errors=rundir / f"{role}{len(started)}.err", **words)
        started.append(side)
        return side

    yield start
    try:
        for side in reversed(started):
            side.close()
    finally:
        for side in started:
            side.kill()
