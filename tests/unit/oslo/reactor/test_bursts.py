"""Who reads a burst of messages while its sender is killed lives on: libzmq would abort it in the middle of a message.

See ``bundle``. Who may be aborted is a process of its own; with ``APART=1`` in the environment the sender leaves the
frames of a message apart, which shows what the test is about.
"""

import os
import subprocess
import sys
import textwrap

import pytest

BURST_S = 0.1
PATIENCE_S = 60.0
READER = """
    import os, signal, sys, time, zmq
    from broker.oslo.reactor import Socket, Reactor
    from broker.oslo.reactor.router import RouterSocket
    from broker.oslo.reactor.tuning import tune_local

    kills, burst_s, folder = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
    reader = os.getpid()
    MESSAGE = (b"x" * 40, b"y", b"z" * 50)

    def tuned(sock):
        tune_local(sock)
        return sock

    def send_for_ever(place):
        if "APART" in os.environ:
            sock = tuned(zmq.Context().socket(zmq.ROUTER))
            sock.bind(place)
            rid, *_ = sock.recv_multipart()
            while os.getppid() == reader:
                sock.send_multipart([rid, *MESSAGE])
            os._exit(0)
        reactor = Reactor()
        reactor.open()
        sock = tuned(reactor.context.socket(zmq.ROUTER))
        sock.bind(place)

        def burst(rid):
            for _ in range(200):
                if socket.waiting_for(rid) < 100:
                    socket.send((rid, *MESSAGE))
            reactor.call_soon(burst, rid) if os.getppid() == reader else os._exit(0)

        socket = RouterSocket(reactor, sock, lambda frames, _origin: burst(frames[0]))
        reactor.run()

    reactor = Reactor()
    came = bad = 0

    def take(frames, _origin):
        global came, bad
        came += 1
        bad += tuple(frames) != MESSAGE
        time.sleep(20e-6)  # slower than the sender: there is always more to read

    for number in range(kills):
        place = f"{folder}/{number}"
        child = os.fork()
        if not child:
            send_for_ever(place)
        reactor.open()
        socket = Socket(reactor, tuned(reactor.context.socket(zmq.DEALER)), take)
        socket.sock.connect(place)
        socket.send([b"hi"])
        before, end = came, time.monotonic() + 10
        while came == before and time.monotonic() < end:
            reactor.call_later(0.01, lambda: None)
            reactor.turn()
        end = time.monotonic() + burst_s
        while time.monotonic() < end + burst_s / 2:
            if child and time.monotonic() > end:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                child = 0
            reactor.call_later(0.01, lambda: None)
            reactor.turn()
        socket.close()
        reactor.close()  # no thread of libzmq may be there when we fork
        print(number + 1, came - before, bad, flush=True)
"""


@pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.patient)])
def test_who_reads_a_burst_survives_the_end_of_its_sender(rundir, kills):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(READER), str(kills), str(BURST_S), f"ipc://{rundir}"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )
    rows = [list(map(int, line.split())) for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr, len(rows)) == (0, "", kills)
    assert min(came for _number, came, _bad in rows) > 100, rows
    assert not any(bad for _number, _came, bad in rows), rows
