"""The least that a call between three processes costs with pyzmq: DEALER, ROUTER and ROUTER, DEALER, an echo.

::

    python -m tests.bench.oslo_raw relay  FOLDER             prints {"port": N}; TCP for the client, IPC for the server
    python -m tests.bench.oslo_raw server FOLDER             prints {"ready": true}
    python -m tests.bench.oslo_raw client PORT               prints {"ready": true}

The client takes ``{"seconds": S, "size": N}`` a line and answers ``{"count", "seconds", "times_us"}``. All end with
their stdin. A message has two frames, as ours: one of 100 bytes and the body.
"""

import json
import os
import sys
import threading
import time

import zmq

ENVELOPE = b"e" * 100


def say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


def end_with_stdin() -> None:
    def watch() -> None:
        sys.stdin.read()
        os._exit(0)

    threading.Thread(target=watch, daemon=True).start()


def relay(folder: str) -> None:
    context = zmq.Context()
    outside, inside = context.socket(zmq.ROUTER), context.socket(zmq.ROUTER)
    port = outside.bind_to_random_port("tcp://127.0.0.1")
    inside.bind(f"ipc://{folder}/inside")
    say(port=port)
    end_with_stdin()
    server = inside.recv_multipart()[0]
    poller = zmq.Poller()
    poller.register(outside, zmq.POLLIN)
    poller.register(inside, zmq.POLLIN)
    while True:
        for sock, _events in poller.poll():
            if sock is outside:
                client, envelope, body = outside.recv_multipart()
                inside.send_multipart([server, envelope, client, body])
            else:
                _server, envelope, client, body = inside.recv_multipart()
                outside.send_multipart([client, envelope, body])


def server(folder: str) -> None:
    sock = zmq.Context().socket(zmq.DEALER)
    sock.connect(f"ipc://{folder}/inside")
    sock.send(b"here")
    say(ready=True)
    end_with_stdin()
    while True:
        sock.send_multipart(sock.recv_multipart())


def client(port: str) -> None:
    sock = zmq.Context().socket(zmq.DEALER)
    sock.connect(f"tcp://127.0.0.1:{port}")
    say(ready=True)
    for line in sys.stdin:
        words = json.loads(line)
        body, times, began = b"x" * words["size"], [], time.monotonic()
        while (started := time.monotonic()) < began + words["seconds"]:
            sock.send_multipart([ENVELOPE, body])
            sock.recv_multipart()
            times.append(time.monotonic() - started)
        say(
            count=len(times),
            seconds=time.monotonic() - began,
            times_us=[round(1e6 * value) for value in times],
        )
    sock.close(0)


if __name__ == "__main__":
    {"relay": relay, "server": server, "client": client}[sys.argv[1]](*sys.argv[2:])
