"""The blocking client: the same names from ordinary threads, against a tiny broker in another thread."""

import errno
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import broker.client.blocking as blocking
from broker.client import Limits
from broker.errors import LinkBroken, LinkClosed, LinkEnded, LinkRefused, Overrun, RpcError
from broker.identity import Role
from broker.loopthread import LoopThread
from broker.wire import message as wire
from tests.unit.client import tiny_broker

pytestmark = pytest.mark.interpreter


@pytest.fixture
def uri(rundir):
    with tiny_broker.running(f"local://{rundir}/s") as tiny:
        yield (address := f"local://{rundir}/s")
    assert not tiny.links, address


def threads():
    return [t.name for t in threading.enumerate() if t.name.startswith("headgate client")]


def test_calls(uri):
    before = len(threads())
    with blocking.connect(uri) as h:
        assert (h.size(), h.rank(), h.attr("size")) == (4, 0, "4")
        assert h.rpc("attr.get", {"name": "rank"}).json()["value"] == "0"
        with pytest.raises(RpcError, match="nobody"):
            h.rpc("no.one")
        assert h.rpc("odd.hang", noresponse=True) is None
        with pytest.raises(TimeoutError, match=r"odd.hang"):
            h.rpc("odd.hang", timeout_s=0.01)
        h.log("info", "hello")
        assert h.request(wire.request("attr.get", b'{"name":"size"}\0')).result(5).errnum == 0
        for ask in (h.rpc, h.stream, h.attr):
            with pytest.raises(ValueError, match="is no rank"):
                ask("broker.ping", nodeid=wire.NODEID_UPSTREAM)
        h.send(wire.request("attr.get", b'{"name":"size"}\0'))
        assert h.ended is None
    assert isinstance(h.ended, LinkClosed)
    h.close()
    with pytest.raises(LinkClosed):
        h.size()
    assert len(threads()) == before


def test_errors_at_connect_leave_no_thread(rundir):
    before = len(threads())
    with pytest.raises(LinkBroken):
        blocking.connect(f"local://{rundir}/nobody", retries=0)
    with tiny_broker.running(f"local://{rundir}/s", lambda peer: errno.EPERM), pytest.raises(LinkRefused):
        blocking.connect(f"local://{rundir}/s")
    assert len(threads()) == before


def test_events(uri):
    with blocking.connect(uri) as h, h.subscribe("a.") as events:
        for n in range(600):  # more than one visit to the loop's thread fetches
            h.publish_nowait("a.x", {"n": n})
        assert h.publish("a.y", "last", private=True) == 601
        got = []
        for event in events:
            got.append(event)
            if event.topic == "a.y":
                break
        assert [e.json()["n"] for e in got[:-1]] == list(range(600))
        assert [e.sequence for e in got] == list(range(1, 602))
        assert got[-1].private
        with pytest.raises(TimeoutError, match=r"0.01 s"):
            events.next(timeout_s=0.01)
        h.publish_nowait("a.z")
        assert events.next(timeout_s=5).topic == "a.z"
        assert h.publish("a.z", delivered=False) == 0
        assert h.publish("a.z", delivered=True) == 604
        assert [events.next(timeout_s=5).sequence for _ in range(2)] == [603, 604]
        assert events.lost == 0


def test_overrun_is_raised_between_the_events(uri):
    with blocking.connect(uri, limits=Limits(event_msgs=3)) as h, h.subscribe("") as events:
        h.publish("a")
        for _ in range(5):
            h.publish("b")
        assert [events.next().sequence for _ in range(3)] == [1, 2, 3]
        with pytest.raises(Overrun) as caught:
            events.next(timeout_s=5)
        assert caught.value.lost == 3
        h.publish("c")
        assert events.next(timeout_s=5).topic == "c"


def test_services_run_functions_in_threads(uri):
    def where(request):
        return threading.current_thread().name

    def add(request):
        numbers = request.json()
        return {"sum": numbers["a"] + numbers["b"], "user": request.userid}

    def fail(request):
        raise FileNotFoundError(errno.ENOENT, "gone")

    def by_hand(request):
        assert not request.done
        assert request.matchtag
        assert not request.streaming
        with pytest.raises(ValueError, match="success"):
            request.respond_error(0)
        request.respond("by hand")

    def by_hand_error(request):
        request.respond_error(errno.ESRCH, "no such job")

    methods = {
        "where": where, "add": (add, Role.USER), "fail": fail, "by_hand": by_hand, "by_hand_error": by_hand_error,
    }  # fmt: skip
    with blocking.connect(uri) as provider, blocking.connect(uri) as h:
        with provider.service("calc", methods) as calc:
            assert calc.name == "calc"

            @calc.method("late")
            def late(request):
                return "late"

            assert h.rpc("calc.add", {"a": 1, "b": 2}).json() == {"sum": 3, "user": 7}
            name = h.rpc("calc.where").text
            assert name.startswith("service calc")
            assert name != threading.current_thread().name
            assert h.rpc("calc.late").text == "late"
            assert h.rpc("calc.by_hand").text == "by hand"
            for topic, errnum, text in (
                ("calc.fail", errno.ENOENT, "gone"), ("calc.by_hand_error", errno.ESRCH, "no such job"),
                ("calc.none", errno.ENOSYS, "Unknown service method"),
            ):  # fmt: skip
                with pytest.raises(RpcError, match=text) as caught:
                    h.rpc(topic)
                assert caught.value.errno == errnum
            with pytest.raises(RpcError) as caught:
                h.serve("calc", {})
            assert caught.value.errno == errno.EEXIST
        with pytest.raises(RpcError, match="nobody"):
            h.rpc("calc.add")


def test_services_stream_from_generators(uri):
    closed = threading.Event()

    def count(request):
        try:
            n = 0
            while True:
                yield str(n)
                n += 1
        finally:
            closed.set()

    def three(request):
        yield from ("a", "b", "c")

    with (
        blocking.connect(uri) as provider,
        blocking.connect(uri) as h,
        provider.service("calc", {"count": count, "three": three}),
    ):
        with pytest.raises(RpcError, match="STREAMING") as caught:
            h.rpc("calc.three")
        assert caught.value.errno == errno.EPROTO
        with h.stream("calc.three") as stream:
            assert [response.text for response in stream] == ["a", "b", "c"]
            assert list(stream) == []
        with h.stream("calc.count") as stream:
            got = [stream.next(timeout_s=5).text for _ in range(3)]
            stream.cancel()
            got += [response.text for response in stream]
            assert got == [str(n) for n in range(len(got))]
        assert closed.wait(5)


def test_several_threads_share_a_handle(uri):
    with blocking.connect(uri) as h, h.service("echo", {"run": lambda request: request.payload}):
        wrong = []

        def work(name):
            for n in range(50):
                data = b"%s %d" % (name, n)
                if h.rpc("echo.run", data, timeout_s=10).payload != data:
                    wrong.append(data)

        workers = [threading.Thread(target=work, args=(b"thread %d" % n,)) for n in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert not wrong


def test_lost_link_raises_everywhere(uri):
    with blocking.connect(uri) as h, h.subscribe("a") as events:
        with pytest.raises(LinkEnded):
            h.rpc("odd.hangup")
        with pytest.raises(LinkEnded):
            events.next()
        with pytest.raises(LinkEnded):
            h.size()
        with pytest.raises(LinkEnded):
            h.publish_nowait("a")


def test_waiting_call_ends_when_another_thread_closes(uri):
    h = blocking.connect(uri)
    closer = threading.Timer(0.05, h.close)
    closer.start()
    with pytest.raises(LinkClosed):
        h.rpc("odd.hang")
    closer.join()


def test_call_on_the_loops_own_thread_is_refused_instead_of_hanging():
    thread = LoopThread()

    def nested():
        with pytest.raises(RuntimeError, match="own thread"):
            thread.call(print)

    thread.call(nested)
    thread.stop()
    thread.stop()


def test_interrupt_leaves_cleanly(uri):
    code = """
        import sys
        import broker.client.blocking as blocking
        from tests.unit.client import tiny_broker
        try:
            with blocking.connect(sys.argv[1]) as h, h.subscribe("") as events:
                print("waiting", flush=True)
                h.rpc("odd.hang")
        except KeyboardInterrupt:
            print("interrupted", type(h.ended).__name__, flush=True)
    """
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), uri],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": os.getcwd()},
    )  # fmt: skip
    assert process.stdout.readline() == "waiting\n"
    time.sleep(0.1)  # let it reach the call
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert (out, err, process.returncode) == ("interrupted LinkClosed\n", "", 0)
