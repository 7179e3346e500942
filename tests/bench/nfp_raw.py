"""Peers of NFP that do nothing but speak it, in deployed NorFab's dialect, so that the broker is what is measured.

::

    python -m tests.bench.nfp_raw worker ENDPOINT KEY NAME SIZE
    python -m tests.bench.nfp_raw client ENDPOINT KEY NAME JOBS WINDOW SIZE
    python -m tests.bench.nfp_raw crowd  ENDPOINT KEY NAME COUNT

A job is the whole dialogue of deployed peers: POST, 202, POST, 201, "starting", "completed", GET, 200, each relayed.
``SIZE`` bytes go in with the POST and come back with the result. Each prints one line of JSON: a worker and a crowd
when they are ready, a client when all its jobs are done.
"""

import json
import sys
import time
from collections import deque

import zmq

SERVICE = b"bench"
CLIENT, WORKER = b"NFPC01", b"NFPW01"
READY, KEEPALIVE, POST, RESPONSE, GET, EVENT = (b"0x%02d" % number for number in (1, 2, 4, 5, 6, 8))
KEEPALIVE_S = 2.0
LATE_S = 60.0
"""A client gives up when nothing came for so long: what is open then is lost."""


def dealer(context: zmq.Context, endpoint: str, key: str, name: str) -> zmq.Socket:
    sock = context.socket(zmq.DEALER)
    sock.linger = 0
    sock.sndhwm = sock.rcvhwm = 0
    sock.identity = name.encode()
    if key:
        public, secret = zmq.curve_keypair()
        sock.curve_publickey, sock.curve_secretkey, sock.curve_serverkey = public, secret, key.encode()
    sock.connect(endpoint)
    return sock


def event(name: str, uuid: bytes, kind: str, message: str) -> bytes:
    about = {
        "worker": name,
        "service": SERVICE.decode(),
        "uuid": uuid.decode(),
        "event_type": kind,
        "message": message,
        "task": "echo",
        "status": "running",
        "resource": [],
        "severity": "INFO",
        "timestamp": "01-Jan-2026 00:00:00.000",
    }
    return json.dumps(about, separators=(",", ":")).encode()


def worker(endpoint: str, key: str, name: str, size: str) -> None:
    sock = dealer(zmq.Context(), endpoint, key, name)
    sock.send_multipart([b"", WORKER, READY, SERVICE])
    print(json.dumps({"ready": name}), flush=True)
    result = json.dumps({name: {"result": "x" * int(size), "failed": False}}).encode()
    due = time.monotonic() + KEEPALIVE_S
    while True:
        if time.monotonic() >= due:
            sock.send_multipart([b"", WORKER, KEEPALIVE, SERVICE])
            due = time.monotonic() + KEEPALIVE_S
        if not sock.poll(200):
            continue
        _empty, _header, command, client, *rest = sock.recv_multipart()
        if command == POST:
            uuid = rest[1]
            head = [b"", WORKER, EVENT, client, b"", uuid, b"200"]
            sock.send_multipart([b"", WORKER, RESPONSE, client, b"", uuid, b"201", b'{"status":"ACCEPTED"}'])
            sock.send_multipart([*head, event(name, uuid, "progress", "starting")])
            sock.send_multipart([*head, event(name, uuid, "result_ready", "completed")])
        elif command == GET:
            sock.send_multipart([b"", WORKER, RESPONSE, client, b"", rest[1], b"200", result])


class Jobs:
    """A client that keeps ``window`` jobs in flight until ``jobs`` are done."""

    def __init__(self, sock: zmq.Socket, jobs: int, window: int, size: int) -> None:
        self.sock, self.jobs, self.window = sock, jobs, window
        self.body = json.dumps(
            {"task": "echo", "kwargs": {"data": "x" * size}, "args": [], "timeout": 600}
        ).encode()
        self.begun: dict[bytes, float] = {}
        self.times: list[float] = []
        self.stem = f"{time.time_ns():x}"
        self.number = 0

    def post(self) -> None:
        if self.number < self.jobs:
            uuid = f"{self.stem}{self.number:08x}".encode()
            self.number += 1
            self.begun[uuid] = time.perf_counter()
            self.sock.send_multipart([b"", CLIENT, POST, SERVICE, b"any", uuid, self.body])

    def run(self) -> dict[str, object]:
        began = time.perf_counter()
        for _ in range(self.window):
            self.post()
        while self.begun and self.sock.poll(int(LATE_S * 1000)):
            self.take(self.sock.recv_multipart())
        seconds = time.perf_counter() - began
        self.times.sort()
        done = len(self.times)
        return {
            "jobs": done,
            "lost": self.jobs - done,
            "seconds": seconds,
            "per_s": done / seconds,
            "p50_us": self.times[done // 2] * 1e6 if done else 0.0,
            "p99_us": self.times[done * 99 // 100] * 1e6 if done else 0.0,
        }

    def take(self, frames: list[bytes]) -> None:
        _empty, _header, command, _service, uuid, status, body = frames
        if uuid not in self.begun:
            return
        if command == EVENT and b'"result_ready"' in body:
            name = json.dumps([json.loads(body)["worker"]]).encode()
            self.sock.send_multipart([b"", CLIENT, GET, SERVICE, name, uuid, b'{"task":"echo"}'])
        elif command == RESPONSE and status[:3] == b"200":
            self.times.append(time.perf_counter() - self.begun.pop(uuid))
            self.post()
        elif command == RESPONSE and status[:1] in b"45":
            raise SystemExit(f"job {uuid.decode()}: {status.decode()} {body[:200]!r}")


def client(endpoint: str, key: str, name: str, jobs: str, window: str, size: str) -> None:
    sock = dealer(zmq.Context(), endpoint, key, name)
    Jobs(sock, int(window), int(window), 16).run()  # what is done once is done now
    print(json.dumps(Jobs(sock, int(jobs), int(window), int(size)).run()), flush=True)


def crowd(endpoint: str, key: str, name: str, count: str) -> None:
    """Idle workers of another service, with keepalives as regular as a real one's."""
    context = zmq.Context()
    context.max_sockets = int(count) + 10
    names = [f"{name}-{number}" for number in range(int(count))]
    waiting: deque[zmq.Socket] = deque()
    for number, each in enumerate(names):
        sock = dealer(context, endpoint, key, each)
        sock.send_multipart([b"", WORKER, READY, b"crowd"])
        waiting.append(sock)
        if number % 100 == 99:
            time.sleep(0.2)  # the handshakes of so many at once are not what is measured
    print(json.dumps({"ready": len(names)}), flush=True)
    while True:
        began = time.monotonic()
        for sock in waiting:
            sock.send_multipart([b"", WORKER, KEEPALIVE, b"crowd"])
            while sock.poll(0):
                sock.recv_multipart()
            time.sleep(KEEPALIVE_S * 2 / len(waiting))
        time.sleep(max(0.0, KEEPALIVE_S * 2 - (time.monotonic() - began)))


if __name__ == "__main__":
    {"worker": worker, "client": client, "crowd": crowd}[sys.argv[1]](*sys.argv[2:])
