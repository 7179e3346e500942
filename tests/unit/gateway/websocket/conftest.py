"""The house of these tests: the real endpoint behind a server of aiohttp's test tools."""

import contextlib

import pytest

from tests.unit.gateway.websocket import house as houses


@pytest.fixture
async def open_house(aiohttp_server):
    """Open a house with limits, TLS, sessions or an identity of the test's own; it is closed behind the test."""
    async with contextlib.AsyncExitStack() as stack:
        yield lambda **more: stack.enter_async_context(houses.house(aiohttp_server, **more))


@pytest.fixture
async def house(open_house):
    return await open_house()
