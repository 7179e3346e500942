"""What the tricks are made of: servers, clients, patience."""

import threading
import time
import uuid
from contextlib import contextmanager

import oslo_messaging
from oslo_config import cfg

CONF = cfg.CONF
PATIENCE_S = 40.0
QUIET_S = 0.5
"""So long nothing more may come, where too much would be wrong."""
URLS = {}


def begin(servers, clients):
    """Where servers and clients live."""
    URLS.update(servers=servers, clients=clients)
    CONF([], project="tricks", default_config_files=[], default_config_dirs=[])


def until(true, what="it"):
    end = time.monotonic() + PATIENCE_S
    while not true():
        assert time.monotonic() < end, f"{what} did not become so within {PATIENCE_S} s"
        time.sleep(0.01)


def until_they_are(value, expected):
    """Wait until ``value()`` is that, and see that it stays."""
    end = time.monotonic() + PATIENCE_S
    while value() != expected:
        assert time.monotonic() < end, f"saw {value()}, expected {expected}"
        time.sleep(0.01)
    assert same_for_a_while(value) == expected


def same_for_a_while(value):
    """``value`` now; it must not change."""
    before = value()
    time.sleep(QUIET_S)
    after = value()
    assert after == before, f"{before} became {after}"
    return before


def new(name):
    return f"{name}-{uuid.uuid4().hex[:8]}"


@contextmanager
def transport(url=None, **words):
    made = oslo_messaging.get_rpc_transport(CONF, url=url or URLS["clients"], **words)
    try:
        yield made
    finally:
        made.cleanup()


class OwnError(Exception):
    """Of a module that a client may allow, or not."""


class Endpoint:
    """Keeps what it was asked."""

    def __init__(self, name):
        self.name = name
        self.seen = []
        self.contexts = []
        self.server = None

    def note(self, ctxt, n):
        self.contexts.append(ctxt)
        self.seen.append(n)
        return self.name

    def echo(self, ctxt, value):
        return value

    def slow(self, ctxt, seconds, n=0):
        self.seen.append(n)
        time.sleep(seconds)
        return n

    def fail(self, ctxt, how):
        raise {"own": OwnError, "key": KeyError}[how]("as asked")


@contextmanager
def server(topic, name, exchange=None, url=None, endpoint=None, pool_size=None):
    endpoint = endpoint or Endpoint(name)
    with transport(url or URLS["servers"]) as mine:
        target = oslo_messaging.Target(topic=topic, server=name, exchange=exchange)
        made = oslo_messaging.get_rpc_server(mine, target, [endpoint])
        made.start(override_pool_size=pool_size)
        endpoint.server = made
        try:
            yield endpoint
        finally:
            made.stop()
            made.wait()


def client(mine, topic, timeout=PATIENCE_S, **words):
    address = {key: words.pop(key) for key in ("exchange", "server", "fanout") if key in words}
    target = oslo_messaging.Target(topic=topic, **address)
    return oslo_messaging.get_rpc_client(mine, target, timeout=timeout, **words)


def raised(kind, call, *arguments, **words):
    """What ``call`` raises, and how long it took."""
    began = time.monotonic()
    try:
        result = call(*arguments, **words)
    except kind as error:
        return error, time.monotonic() - began
    raise AssertionError(f"{kind.__name__} was not raised, but came back: {result!r}")


def in_threads(count, work):
    """Run ``work(number)`` in so many threads; all of them end."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert not any(thread.is_alive() for thread in threads)
