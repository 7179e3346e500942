"""What one call touches in client, proxy and server together: the bar of simplicity of the wing."""

import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter(
        "ignore"
    )  # importing oslo.messaging imports eventlet, which says that it is deprecated
    import oslo_messaging

import broker
from tests.live.oslo_raw import Node
from tests.unit.oslo.client.nodes import whole_node

HOME = f"{Path(broker.__file__).parent}/"
FUNCTIONS = 100
FILES = 28
WARM = 20
ROUNDS = 3
REST_S = 0.25
"""Credit of the calls before is given back by then."""


class Profile:
    """The functions of this project that are called, in all threads, while ``on``."""

    def __init__(self) -> None:
        self.on = False
        self.called: set[CodeType] = set()

    def __call__(self, frame: FrameType, event: str, _argument: object) -> None:
        if self.on and event == "call" and frame.f_code.co_filename.startswith(HOME):
            self.called.add(frame.f_code)


@contextmanager
def profiled() -> Iterator[Profile]:
    profile = Profile()
    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        yield profile
    finally:
        threading.setprofile(None)
        sys.setprofile(None)


class Endpoint:
    def echo(self, _context: object, word: str) -> str:
        return word


def test_a_warm_call_touches_no_more_functions_than_it_has_to(rundir: Path, conf: Any) -> None:
    url = f"zmq:///?rpc_zmq_ipc_dir={rundir / 's'}"
    rounds = []
    with profiled() as profile, Node(whole_node(rundir / "s")):
        transport = oslo_messaging.get_rpc_transport(conf, url=url)
        target = oslo_messaging.Target(topic="t", server="s")
        server = oslo_messaging.get_rpc_server(transport, target, [Endpoint()])
        server.start()
        client = oslo_messaging.get_rpc_client(transport, oslo_messaging.Target(topic="t"))
        for _ in range(WARM):
            assert client.call({}, "echo", word="x") == "x"
        for _ in range(ROUNDS):
            time.sleep(REST_S)
            profile.called = set()
            profile.on = True
            assert client.call({}, "echo", word="x") == "x"
            profile.on = False
            rounds.append(profile.called)
        server.stop()
        server.wait()
        transport.cleanup()
    least = min(rounds, key=len)
    names = sorted(f"{code.co_filename.removeprefix(HOME)} {code.co_qualname}" for code in least)
    files = {name.partition(" ")[0] for name in names}
    said = "\n".join([f"{len(names)} functions in {len(files)} files:", *names])
    assert len(names) <= FUNCTIONS, said
    assert len(files) <= FILES, said
