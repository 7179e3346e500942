"""One broker of its own for each story."""

import pytest

from tests.live.brokers import one_broker


@pytest.fixture
def broker(rundir):
    with one_broker(rundir) as running:
        yield running
