"""Both kinds of broker."""

import pytest

from broker.nfp.peer import brokers
from tests.unit.nfp.client.fake_broker import FakeBroker


@pytest.fixture(params=[True, False], ids=["pushes", "is asked"])
def broker(request):
    with FakeBroker(push=request.param) as fake:
        yield fake


@pytest.fixture
def ours():
    with FakeBroker(push=True) as fake:
        yield fake


@pytest.fixture
def norfab():
    with FakeBroker(push=False) as fake:
        yield fake


@pytest.fixture(autouse=True)
def state_home(tmp_path, monkeypatch):
    """Where named clients keep their jobs: of one test, for uuids are the same in many."""
    monkeypatch.setenv("XDG_STATE_HOME", f"{tmp_path}-state")


@pytest.fixture(autouse=True)
def hasty(monkeypatch):
    """A client tries again soon."""
    monkeypatch.setattr(brokers, "SOON_S", 0.05)
