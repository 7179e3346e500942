"""An application of oslo.messaging, in its environment: listens, sends and counts, as the lines on stdin tell it.

::

    python -m tests.bench.oslo_side URL

It prints ``{"ready": PID}``, then answers each line of JSON with one. ``do`` says what::

    serve   topic, servers      start an rpc-server for each name          -> {"servers": N}
    hear    topic               start a listener to notifications          -> {"servers": 1}
    forget  run                 count the messages of this run, from now   -> {}
    take    count, within_s     wait until so many were delivered          -> {"got", "twice", "last", "each"}
    reach   topic, within_s     call until somebody answers                -> {"seconds"}
    calls   topic, threads, seconds, size                                  -> {"count", "seconds", "times_us"}
    casts   topic, run, seconds, count, size, fanout [, pause_s]           -> {"count", "began", "each_us"}
    notes   topic, run, seconds, count, size                               -> {"count", "began", "each_us"}
    round   topic, count        call one server after the other            -> {"seconds", "names": {NAME: TIMES}}

Times are of the monotonic clock, which all processes of a machine share. Servers count what was delivered to them.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import oslo_messaging
from oslo_config import cfg

LATE_S = 30.0
TIMES_KEPT = 20_000
QUIET_S = 5.0
"""When nothing more was delivered for so long, the rest is lost."""


class Endpoint:
    """Of one rpc-server, or of a listener to notifications: what it counts belongs to one run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.run = -1
        self.seen: list[int] = []
        self.last = 0.0

    def forget(self, run: int) -> None:
        self.run, self.seen = run, []

    def echo(self, ctxt: dict[str, Any], data: str) -> str:
        return data

    def who(self, ctxt: dict[str, Any]) -> str:
        return self.name

    def note(self, ctxt: dict[str, Any], run: int, number: int, data: str) -> None:
        if run == self.run:
            self.seen.append(number)
            self.last = time.monotonic()

    def info(
        self, ctxt: dict[str, Any], publisher: str, event: str, payload: dict[str, Any], metadata: Any
    ) -> None:
        self.note(ctxt, **payload)


class Side:
    """What the lines say, done."""

    def __init__(self, url: str) -> None:
        cfg.CONF([], project="bench", default_config_files=[])
        self.rpc = oslo_messaging.get_rpc_transport(cfg.CONF, url=url)
        self.notifying = oslo_messaging.get_notification_transport(cfg.CONF, url=url)
        self.endpoints: list[Endpoint] = []
        self.servers: list[Any] = []
        self.notifiers: dict[str, Any] = {}

    # ------------------------------------------------------------ listening

    def serve(self, topic: str, servers: list[str]) -> dict[str, Any]:
        for name in servers:
            endpoint = Endpoint(name)
            target = oslo_messaging.Target(topic=topic, server=name)
            server = oslo_messaging.get_rpc_server(self.rpc, target, [endpoint], executor="threading")
            server.start()
            self.endpoints.append(endpoint)
            self.servers.append(server)
        return {"servers": len(servers)}

    def hear(self, topic: str) -> dict[str, Any]:
        endpoint = Endpoint(topic)
        targets = [oslo_messaging.Target(topic=topic)]
        server = oslo_messaging.get_notification_listener(
            self.notifying, targets, [endpoint], executor="threading"
        )
        server.start()
        self.endpoints.append(endpoint)
        self.servers.append(server)
        return {"servers": 1}

    def forget(self, run: int) -> dict[str, Any]:
        for endpoint in self.endpoints:
            endpoint.forget(run)
        return {}

    def take(self, count: int, within_s: float) -> dict[str, Any]:
        end, before = time.monotonic() + within_s, -1
        while (got := sum(len(one.seen) for one in self.endpoints)) < count and time.monotonic() < end:
            if got > before:
                before, quiet = got, min(end, time.monotonic() + QUIET_S)
            elif time.monotonic() > quiet:
                break
            time.sleep(0.002)
        each = {one.name: len(set(one.seen)) for one in self.endpoints if one.seen}
        return {
            "got": sum(each.values()),
            "twice": sum(len(one.seen) for one in self.endpoints) - sum(each.values()),
            "last": max((one.last for one in self.endpoints), default=0.0),
            "each": each,
        }

    # ------------------------------------------------------------ sending

    def client(self, topic: str, timeout_s: float = LATE_S, **more: Any) -> Any:
        target = oslo_messaging.Target(topic=topic)
        return oslo_messaging.get_rpc_client(self.rpc, target).prepare(timeout=timeout_s, **more)

    def reach(self, topic: str, within_s: float = LATE_S) -> dict[str, Any]:
        began, client = time.monotonic(), self.client(topic, 1.0)
        while True:
            try:
                client.call({}, "who")
            except oslo_messaging.MessagingTimeout:
                if time.monotonic() - began > within_s:
                    raise
            else:
                return {"seconds": time.monotonic() - began}

    def calls(self, topic: str, threads: int, seconds: float, size: int) -> dict[str, Any]:
        client, data, times = self.client(topic), "x" * size, []
        begin = threading.Barrier(threads + 1)
        failures: list[str] = []

        def caller() -> None:
            mine = []
            begin.wait()
            end = time.monotonic() + seconds
            try:
                while (started := time.monotonic()) < end:
                    if client.call({}, "echo", data=data) != data:
                        raise ValueError("another answer than what was sent")
                    mine.append(time.monotonic() - started)
            except Exception as error:
                failures.append(f"{type(error).__name__}: {error}")
            times.extend(mine)

        callers = [threading.Thread(target=caller) for _ in range(threads)]
        for each in callers:
            each.start()
        begin.wait()
        began = time.monotonic()
        for each in callers:
            each.join()
        taken = time.monotonic() - began
        if failures:
            raise RuntimeError(f"{len(failures)} callers failed: {failures[0]}")
        return {
            "count": len(times),
            "seconds": taken,
            "times_us": [round(1e6 * value) for value in times[:TIMES_KEPT]],
        }

    def casts(
        self,
        topic: str,
        run: int,
        size: int,
        count: int,
        seconds: float = 0.0,
        fanout: bool = False,
        pause_s: float = 0.0,
    ) -> dict[str, Any]:
        client, data = self.client(topic, fanout=fanout), "x" * size
        return _flood(
            lambda number: client.cast({}, "note", run=run, number=number, data=data), seconds, count, pause_s
        )

    def notes(self, topic: str, run: int, seconds: float, size: int, count: int) -> dict[str, Any]:
        notifier, data = self.notifier(topic), "x" * size
        return _flood(
            lambda number: notifier.info({}, "bench.note", {"run": run, "number": number, "data": data}),
            seconds,
            count,
            0.0,
        )

    def notifier(self, topic: str) -> Any:
        if topic not in self.notifiers:
            self.notifiers[topic] = oslo_messaging.Notifier(
                self.notifying, publisher_id="bench", driver="messagingv2", topics=[topic]
            )
        return self.notifiers[topic]

    def round(self, topic: str, count: int) -> dict[str, Any]:
        client, began = self.client(topic), time.monotonic()
        names = Counter(client.call({}, "who") for _ in range(count))
        return {"seconds": time.monotonic() - began, "names": names}

    # ------------------------------------------------------------ end

    def end(self) -> None:
        for server in self.servers:
            server.stop()
        for server in self.servers:
            server.wait()
        self.rpc.cleanup()
        self.notifying.cleanup()


def _flood(send: Callable[[int], None], seconds: float, count: int, pause_s: float) -> dict[str, Any]:
    """Send one after the other for ``seconds`` (0: without an end), but no more than ``count``."""
    times, number, began = [], 0, time.monotonic()
    end = began + seconds if seconds else float("inf")
    while (started := time.monotonic()) < end and number < count:
        send(number)
        times.append(time.monotonic() - started)
        number += 1
        if pause_s:
            time.sleep(pause_s)
    return {
        "count": number,
        "began": began,
        "ended": time.monotonic(),
        "each_us": [round(1e6 * value, 1) for value in times[:TIMES_KEPT]],
    }


def main(url: str) -> None:
    logging.basicConfig(level=logging.WARNING)
    side = Side(url)
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        words = json.loads(line)
        try:
            answer = {"ok": getattr(side, words.pop("do"))(**words)}
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
    side.end()


if __name__ == "__main__":
    main(sys.argv[1])
