"""Gateways in the loop of pytest: the product's pages behind aiohttp's test client, or whole with their listeners."""

import contextlib

import pytest

from gateway.web import admission
from tests.live import gateways
from tests.unit.gateway.identity import doorway
from tests.unit.gateway.web import site as sites


@pytest.fixture
async def open_site(rundir, aiohttp_client):
    """Open the pages of a gateway with further settings."""
    async with contextlib.AsyncExitStack() as stack:
        yield lambda extra="": stack.enter_async_context(sites.site(rundir, aiohttp_client, extra))


@pytest.fixture
async def site(open_site):
    return await open_site()


@pytest.fixture
async def open_live(rundir):
    """Start a gateway with further settings: where the listener itself is looked at, or programs connect."""
    async with contextlib.AsyncExitStack() as stack:
        yield lambda extra="": stack.enter_async_context(gateways.live(rundir, extra))


@pytest.fixture
async def live(open_live):
    return await open_live()


@pytest.fixture
async def open_door():
    """Open a door with settings; it is closed behind the test."""
    async with contextlib.AsyncExitStack() as stack:
        yield lambda settings, **more: stack.enter_async_context(doorway.open_door(settings, **more))


@pytest.fixture(scope="session")
def rich(tmp_path_factory):
    """A warehouse with everything a history shows, that nobody writes to."""
    from tests.live import warehouse  # loads pyarrow

    return warehouse.rich(tmp_path_factory.mktemp("rich"))


@pytest.fixture(scope="session")
def bare(tmp_path_factory):
    """A warehouse with all its tables and nothing in them, to be copied: to make them takes longer than most tests."""
    from gateway.pipeline.warehouse import Warehouse  # loads deltalake

    made = Warehouse(tmp_path_factory.mktemp("bare") / "w")
    made.ready()
    return made.root


@pytest.fixture
def short_grace(monkeypatch):
    """A stranger has less time for its first word."""
    monkeypatch.setattr(admission, "GRACE_S", 0.05)
