import pytest

from broker.oslo.reactor import Reactor


@pytest.fixture
def said():
    return []


@pytest.fixture
def reactor(said):
    reactor = Reactor(say=lambda level, text, values: said.append(text % values))
    reactor.open()
    yield reactor
    reactor.close()
    assert not [line for line in said if "in the thread of the sockets" in line]


@pytest.fixture
def closing():
    """Whatever is put here is closed in the end, the last first; callables are called."""
    things = []
    yield things
    for thing in reversed(things):
        thing() if callable(thing) else thing.close()
