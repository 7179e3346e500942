"""Both kinds of broker."""

import pytest

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
