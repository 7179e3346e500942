"""oslo.messaging in our own environment, over a port in memory."""

import contextlib
import importlib
import warnings
from collections.abc import Iterator
from typing import Any

import pytest

with warnings.catch_warnings():
    # importing oslo.messaging imports eventlet, which says that it is deprecated; we use it only where we test with it
    warnings.simplefilter("ignore")
    import futurist._thread
    import oslo_messaging
    from oslo_config import cfg
    from oslo_messaging import opts

from broker.oslo import client
from tests.unit.oslo.driver.memory import Network


@pytest.fixture(autouse=True)
def _no_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server of oslo.messaging that ends waits until its threads look up again, after a second."""
    monkeypatch.setattr(futurist._thread.ThreadWorker, "MAX_IDLE_FOR", 0.02)


@pytest.fixture
def conf() -> cfg.ConfigOpts:
    """A configuration of its own, with the options that clients ask for."""
    conf = cfg.ConfigOpts()
    for group, options in opts.list_opts():
        conf.register_opts(options, group=group)
    # what clients ask for and no list of options names; tracing is new in 18.3
    for name in ("metrics", "tracing"):
        with contextlib.suppress(ImportError):
            client = importlib.import_module(f"oslo_messaging._{name}.client")
            conf.register_opts(getattr(client, f"oslo_messaging_{name}"), group=f"oslo_messaging_{name}")
    conf([], project="headgate-test", default_config_files=[], default_config_dirs=[])
    return conf


@pytest.fixture
def network(monkeypatch: pytest.MonkeyPatch) -> Iterator[Network]:
    """What ports are opened on; nothing may be left open."""
    network = Network()
    monkeypatch.setattr(client, "open_session", network.open_session, raising=False)
    yield network
    assert network.open == 0


@pytest.fixture
def transport(conf: cfg.ConfigOpts, network: Network) -> Iterator[Any]:
    """A transport of RPC, cleaned up at the end."""
    transport = oslo_messaging.get_rpc_transport(conf, url="zmq://")
    yield transport
    transport.cleanup()
