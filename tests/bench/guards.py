"""What guards on a path cost: stderr that nobody waits for, who listens at a local socket, the hook before an event."""

import asyncio
import logging
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from statistics import median
from typing import Any

from broker import outlet, trust
from tests.bench.targets import Row
from tests.bench.web_contenders import Apart
from tests.bench.web_deflate import measured
from tests.bench.works import Bench

TIMES = 2000
PAUSE_S = 0.0005  # between two lines: a log is no burst. It is in both figures


class Yes(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        self.wfile.write(b'HTTP/1.0 200 OK\r\n\r\n{"allow": true}')


class Hooked(Apart):
    """Ours, with a hook that allows everything."""

    def configured(self) -> str:
        hook = HTTPServer(("127.0.0.1", 0), Yes)
        threading.Thread(target=hook.serve_forever, daemon=True).start()
        with open(super().configured(), "a") as file:
            file.write(f'[access]\nhook_url = "http://127.0.0.1:{hook.server_port}"\nhook_cache_s = 3600\n')
        return file.name


def measure(bench: Bench) -> list[Row]:
    """Microseconds of CPU with a guard and without, in turns, and the median of what one is to the other."""
    rows = [Row("guard_outlet"), Row("guard_trust"), Row("guard_filter")]
    with tempfile.TemporaryDirectory() as folder, Apart() as plain, Hooked() as hooked:
        works: list[tuple[Callable[..., float], list[Any]]] = [
            (lines, [outlet.Outlet, lambda stream: stream]),
            (lambda connect: dials(f"{folder}/socket", connect), [trust.connect, socket.socket.connect]),
            (lambda gateway: asyncio.run(measured(gateway, ""))[1], [hooked, plain]),
        ]
        for row, (work, both) in zip(rows, works, strict=True):
            pairs = [[work(each) for each in both] for _ in range(bench.rounds)]
            row.settle([ours / other for ours, other in pairs])
            row.figures = {"headgate": "{:.1f} / {:.1f} µs".format(*map(median, zip(*pairs, strict=True)))}
    return rows


def lines(make: Callable[[Any], Any]) -> float:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as reader:
        log = logging.getLogger("bench")
        log.handlers, log.propagate = [logging.StreamHandler(make(reader.stdin))], False
        began = time.process_time()  # of all threads
        for number in range(TIMES):
            log.warning("a line of usual length, number %d of some", number)
            time.sleep(PAUSE_S)
        reader.kill()
        return 1e6 * (time.process_time() - began) / TIMES


def dials(path: str, connect: Callable[[socket.socket, str], None]) -> float:
    with socket.socket(socket.AF_UNIX) as listener:
        Path(path).unlink(missing_ok=True)
        listener.bind(path)
        listener.listen(TIMES)
        began = time.process_time()
        for _ in range(TIMES):
            with socket.socket(socket.AF_UNIX) as sock:
                connect(sock, path)
        return 1e6 * (time.process_time() - began) / TIMES
