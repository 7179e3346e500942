"""One broker of its own for each story that changes it; for attacks that leave all as it was, one stage for all."""

from collections.abc import Iterator

import pytest

from tests.live.brokers import one_broker
from tests.live.stage import Stage, open_stage


@pytest.fixture
def broker(rundir):
    with one_broker(rundir) as running:
        yield running


@pytest.fixture(scope="session")
def stage() -> Iterator[Stage]:
    with open_stage() as running:
        yield running
