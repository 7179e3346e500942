"""Tests of ``tcp`` and ``ipc`` run with both engines, but for those that are about libzmq."""

import pytest

from broker.transport.zeromq import ZeromqTransport

ENGINES = ("loop", "libzmq")
BOTH = ("test_zeromq", "test_zeromq_connections", "test_zeromq_handover", "test_zeromq_large")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    alone = metafunc.definition.get_closest_marker("libzmq_alone") is not None
    if metafunc.module.__name__.rpartition(".")[2] in BOTH and not alone:
        metafunc.parametrize("engine", ENGINES, indirect=True)


@pytest.fixture(autouse=True)
def engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Who speaks ZeroMQ where a test's options do not say."""
    alone = request.node.get_closest_marker("libzmq_alone") is not None
    name: str = getattr(request, "param", "libzmq" if alone else "loop")
    for verb in ("listen", "dial"):
        made = getattr(ZeromqTransport, verb)

        async def with_engine(self, uri, *rest, made=made):
            rest[-1].extra.setdefault("engine", name)
            return await made(self, uri, *rest)

        monkeypatch.setattr(ZeromqTransport, verb, with_engine)
    return name
