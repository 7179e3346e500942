"""The directory service under real applications: records, its death, a second one, Redis (Z11 to Z17)."""

import contextlib
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.live.oslo import Proxy, Side, Sides, counted, executions, new_host, nodes, until
from tests.live.redis_server import redis_server

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]


@contextlib.contextmanager
def apart(folder: Path, **config: object) -> Iterator[tuple[Proxy, Proxy]]:
    """One node whose directory is a process of its own: (directory, pipelines)."""
    directory = Proxy(folder, run=["directory"], **config)
    pipelines = Proxy(folder, host=directory.host, run=["call", "fanout", "notify", "cast"], **config)
    try:
        yield directory, pipelines
    finally:
        pipelines.kill()
        directory.kill()


def listeners(proxy: Proxy) -> int:
    return counted(proxy.status("call"), "listeners")


def test_records_follow_start_stop_and_kill(rundir: Path, sides: Sides) -> None:
    """Z11."""
    with nodes(rundir, 2) as (near, far):
        first = sides("server", far.url, topic="t", server="a")
        second = sides("server", far.url, topic="t", server="b")
        client = sides("client", near.url)
        until(
            lambda: {client.result("call", topic="t", method="who")[0] for _ in range(4)} == {"a", "b"},
            what="both",
        )
        assert listeners(far) == 2, "Z11: directory: host and topic of each listener"
        topics = [node.status("call")["topics"] for node in (near, far)]
        assert topics == [{}, {"openstack/t": 2}], "Z11: directory: host and topic of each listener"
        second.kill()  # SIGKILL: the proxy sees the process end
        until(lambda: listeners(far) == 1, 5, "the killed one gone")
        answered = {client.result("call", topic="t", method="who")[0] for _ in range(6)}
        assert answered == {"a"}, "Z11: directory: host and topic of each listener"
        first.close()
        until(lambda: listeners(far) == 0, 5, "all gone")
        answer = client.ask("call", topic="t", method="who", timeout=60, at_least_once=True)
        assert answer["error"] == "MessageUndeliverable", "Z11: directory: host and topic of each listener"


def test_the_option_goes_before_the_hosts_of_the_url(rundir: Path, sides: Sides) -> None:
    """Z12: a list; a client without a proxy of its own asks them, and finds nothing without the option."""
    with nodes(rundir, 2) as (one, two):
        sides("server", two.url, topic="t", server="s")
        nowhere = rundir / "nowhere"
        addresses = f"{one.host}:9500,{two.host}:9500"
        wrong = new_host()
        url = f"zmq://{wrong}:1?rpc_zmq_ipc_dir={nowhere}&fanout_ds_address={addresses}"
        client = sides("client", url)
        assert client.result("call", topic="t", method="who")[0] == "s", "Z12: `fanout_ds_address`"
        without = sides("client", f"zmq://{wrong}:1?rpc_zmq_ipc_dir={nowhere}")
        answer = without.ask("call", topic="t", method="who", timeout=2)
        assert answer["error"] == "MessagingTimeout", "Z12: `fanout_ds_address`"


@pytest.mark.parametrize("dead", [0, pytest.param(1, marks=pytest.mark.between)])
def test_one_of_two_directories_is_enough(rundir: Path, sides: Sides, dead: int) -> None:
    """Z13, embedded: two directories alone, two nodes that announce to both."""
    directories = [Proxy(rundir / f"d{n}", run=["directory"]) for n in range(2)]
    addresses = [f"tcp://{each.host}:9500" for each in directories]
    try:
        with nodes(rundir, 2, directories=addresses) as (near, far):
            sides("server", far.url, topic="t", server="a")
            client = sides("client", near.url)
            assert client.result("call", topic="t", method="who")[0] == "a"
            directories[dead].kill()
            sides("server", far.url, topic="t2", server="b")
            assert client.result("call", topic="t2", method="who")[0] == "b", (
                "Z13: directory alone or in several copies; Redis"
            )
            directories[dead].start()
            directories[1 - dead].kill()
            sides("server", far.url, topic="t3", server="c")
            assert client.result("call", topic="t3", method="who", timeout=20)[0] == "c", (
                "Z13: directory alone or in several copies; Redis"
            )
            assert client.result("call", topic="t", method="who")[0] == "a"
    finally:
        for each in directories:
            each.kill()


def test_redis_shares_the_records_and_its_death_is_survived(rundir: Path, sides: Sides) -> None:
    """Z13, Z16 with Redis: known hosts are called while it is away; it is filled again when it is back, empty."""
    log = rundir / "log"
    with contextlib.ExitStack() as stack:
        redis, port = stack.enter_context(redis_server(rundir))
        near, far = stack.enter_context(
            nodes(rundir, 2, directories=[], redis=[f"redis://127.0.0.1:{port}/0"])
        )
        sides("server", far.url, topic="t", server="s", log=str(log))
        client = sides("client", near.url)
        assert client.result("call", topic="t", method="note", args={"n": 1})[0] == "s"
        redis.kill()
        redis.wait()
        for number in range(2, 5):
            client.result("call", topic="t", method="note", args={"n": number})
            client.result("cast", topic="t", fanout=True, method="note", args={"n": number})
        until(lambda: len(executions(log)) == 7, what="calls and fan-outs without Redis")
        time.sleep(6)  # longer than a lease: known hosts stay known
        answer = client.result("call", topic="t", method="note", args={"n": 5})
        assert answer == ["s", 5], "Z16: its state is cached"
        stack.enter_context(redis_server(rundir, port))
        sides("server", far.url, topic="new", server="n")
        assert client.result("call", topic="new", method="who", timeout=20)[0] == "n", (
            "Z13: directory alone or in several copies; Redis"
        )
        assert client.result("call", topic="t", method="who")[0] == "s"


@pytest.mark.parametrize("green", [False, True])
def test_an_application_without_a_proxy_reads_redis_itself(rundir: Path, sides: Sides, green: bool) -> None:
    """Nodes announce to Redis; the client's machine has none of them. What is known stays known when Redis dies."""
    log = rundir / "log"
    with contextlib.ExitStack() as stack:
        dead, first = stack.enter_context(redis_server(rundir))
        _alive, second = stack.enter_context(redis_server(rundir))
        urls = [f"redis://127.0.0.1:{port}/0" for port in (first, second)]
        (node,) = stack.enter_context(nodes(rundir, 1, directories=[], redis=urls))
        sides("server", node.url, topic="t", server="s", log=str(log))
        sides("listener", node.url, topic="n", log=str(log))
        url = f"zmq+redis://127.0.0.1:{first},127.0.0.1:{second}/0?rpc_zmq_ipc_dir={rundir}/nowhere"
        client = sides("client", url, green=green)
        assert client.result("call", topic="t", method="note", args={"n": 1})[0] == "s"
        client.result("cast", topic="t", method="note", args={"n": 2})
        client.result("cast", topic="t", fanout=True, method="note", args={"n": 3})
        client.result("notify", topic="n")
        until(lambda: len(executions(log)) == 4, what="each of them once")
        dead.kill()
        dead.wait()
        sides("server", node.url, topic="t2", server="u")
        assert client.result("call", topic="t2", method="who", timeout=20)[0] == "u"
        assert client.result("call", topic="t", method="who")[0] == "s"
        assert client.close() == 0
        option = f"zmq://?rpc_zmq_ipc_dir={rundir}/nowhere&fanout_ds_address=redis://127.0.0.1:{second}/0"
        other = sides("client", option, green=green)
        assert other.result("call", topic="t", method="who")[0] == "s"


def test_two_redis_servers_one_is_enough(rundir: Path, sides: Sides) -> None:
    """Z13 with Redis: written to all, read from whichever answers."""
    with contextlib.ExitStack() as stack:
        one, first = stack.enter_context(redis_server(rundir))
        _two, second = stack.enter_context(redis_server(rundir))
        urls = [f"redis://127.0.0.1:{port}/0" for port in (first, second)]
        near, far = stack.enter_context(nodes(rundir, 2, directories=[], redis=urls))
        sides("server", far.url, topic="t", server="s")
        client = sides("client", near.url)
        assert client.result("call", topic="t", method="who")[0] == "s"
        one.kill()
        one.wait()
        sides("server", far.url, topic="t2", server="u")
        assert client.result("call", topic="t2", method="who", timeout=20)[0] == "u", (
            "Z13: directory alone or in several copies; Redis"
        )


def test_calls_do_not_ask_the_directory(rundir: Path, sides: Sides) -> None:
    """Z15: a thousand calls, nothing asked; a stopped directory does not matter to known servers."""
    with apart(rundir / "n") as (directory, node):
        sides("server", node.url, topic="t", server="s")
        client = sides("client", node.url)
        client.result("call", topic="t", method="echo")

        def asked() -> int:
            told = directory.status("directory")
            return counted(told, "hellos") + counted(told, "announced")

        before = asked()
        assert before, "what is counted has these names"
        done = client.result("load", topic="t", during=3, threads=4)
        assert len(done["ok"]) > 300, done
        assert not done["error"]
        assert not done["timeout"]
        assert asked() == before, "Z15: direct patterns do not ask it"
        directory.signal(signal.SIGSTOP)
        began = time.monotonic()
        answers = [client.result("call", topic="t", method="echo", args={"value": n}) for n in range(20)]
        assert answers == list(range(20)), "Z15: direct patterns do not ask it"
        assert time.monotonic() - began < 20
        directory.signal(signal.SIGCONT)


def fanned_out(client: Side, log: Path) -> int:
    """Send one fan-out more; how many lines there are in the log."""
    client.result("cast", topic="t", fanout=True, method="note", args={"n": 3})
    time.sleep(0.3)
    return len(executions(log))


def test_known_nodes_stay_known_without_a_directory(rundir: Path, sides: Sides) -> None:
    """Z16: fan-outs and calls go on; a directory that comes back empty is told everything again."""
    log = rundir / "log"
    with apart(rundir / "n") as (directory, node):
        sides("server", node.url, topic="t", server="s", log=str(log))
        client = sides("client", node.url)
        client.result("cast", topic="t", fanout=True, method="note", args={"n": 0})
        until(lambda: len(executions(log)) == 1, what="the first")
        directory.kill()
        time.sleep(6)  # longer than a lease
        client.result("cast", topic="t", fanout=True, method="note", args={"n": 1})
        client.result("call", topic="t", method="note", args={"n": 2})
        until(lambda: len(executions(log)) == 3, what="fan-out and call without directory")
        ran = sorted(line.split()[2] for line in executions(log))
        assert ran == ["0", "1", "2"], "Z16: its state is cached"
        directory.start()
        fresh = sides("client", node.url)
        assert fresh.result("call", topic="t", method="who", timeout=20)[0] == "s"
        # the pipelines announce one after the other: what finds nobody is dropped, and counted
        until(lambda: fanned_out(fresh, log) > 3, 20, "a fan-out of one who knew nothing")


def test_a_fan_out_without_any_directory_fails_visibly(rundir: Path, sides: Sides) -> None:
    """Z17: no directory was ever reached and nothing is known: an error within seconds, no hang."""
    url = f"zmq://{new_host()}:9500?rpc_zmq_ipc_dir={rundir}/nowhere&rpc_zmq_ready_timeout=1"
    client = sides("client", url)
    answer = client.ask("cast", topic="t", fanout=True, method="note", args={"n": 1}, retry=0)
    assert answer["error"] == "MessageDeliveryFailure", "Z17: without it and without cache: a visible failure"
    assert "directory" in answer["text"], "Z17: without it and without cache: a visible failure"
    assert answer["took"] < 15
    answer = client.ask("call", topic="t", method="who", timeout=2)
    assert answer["error"] == "MessagingTimeout"
    assert answer["took"] < 10
