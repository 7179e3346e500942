"""Runs inside the environment of deployed NorFab: its broker, a worker of it, or a client driven by lines of JSON.

::

    python norfab_side.py broker ENDPOINT FOLDER [KEEPALIVE_MS [MULTIPLIER [WORKERS_JSON]]]
    python norfab_side.py worker ENDPOINT FOLDER BROKER_KEY NAME SERVICE
    python norfab_side.py files  ENDPOINT FOLDER BROKER_KEY NAME SHARED_FOLDER
    python norfab_side.py client ENDPOINT FOLDER BROKER_KEY NAME

Each prints one line of JSON when it is ready. The client then takes a JSON object per line, ``{"do": ...}``, and
answers each with one line. NorFab itself is used as it is; only a service of its own kind is defined here.
"""

import hashlib
import json
import os
import signal
import sys
import threading
import time

from norfab.core.broker import NFPBroker
from norfab.core.client import NFPClient
from norfab.core.inventory import NorFabInventory
from norfab.core.worker import NFPWorker, Task
from norfab.models import Result


def say(**fields):
    print(json.dumps(fields), flush=True)


def inventory(endpoint, folder, key="", workers=None):
    broker = {"endpoint": endpoint}
    if key:
        broker["shared_key"] = key
    return NorFabInventory(data={"broker": broker, "workers": workers or {}}, base_dir=folder)


def leave_on_signals():
    leave = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: leave.set())
    return leave


# -- a service -------------------------------------------------------------------------------------


class DummyWorker(NFPWorker):
    """Tasks that show every kind of message a job may have."""

    def __init__(self, given, endpoint, service, name, leave):
        super().__init__(given, endpoint, service, name, leave, "WARNING")
        self.settings = self.load_inventory()

    @Task(fastapi=False)
    def ping(self, job, n: int = 0) -> Result:
        return Result(task=f"{self.name}:ping", result={"n": n, "worker": self.name})

    @Task(fastapi=False)
    def blob(self, job, size: int = 65536) -> Result:
        return Result(task=f"{self.name}:blob", result="x" * size)

    @Task(fastapi=False)
    def slow(self, job, seconds: float = 1.0, steps: int = 4, marker: str = "") -> Result:
        if marker:
            with open(marker, "a", encoding="utf-8") as file:
                file.write(f"{self.name} {os.getpid()} {job.juuid}\n")
        for step in range(steps):
            job.event(f"step {step}")
            time.sleep(seconds / steps)
        return Result(task=f"{self.name}:slow", result=steps)

    @Task(fastapi=False)
    def fail(self, job) -> Result:
        raise ValueError("this task fails")

    @Task(fastapi=False)
    def ask(self, job, question: str = "who?") -> Result:
        return Result(task=f"{self.name}:ask", result={"answer": job.request_input(question, timeout=20)})


def run_worker(endpoint, folder, key, name, service):
    leave = leave_on_signals()
    worker = DummyWorker(inventory(endpoint, folder, key), endpoint, service, name, leave)
    say(ready=name, inventory=worker.settings)
    worker.work()


def run_files(endpoint, folder, key, name, shared):
    from norfab.workers.filesharing_worker.filesharing_worker import FileSharingWorker

    given = inventory(endpoint, folder, key, {name: [{"service": "filesharing", "base_dir": shared}]})
    worker = FileSharingWorker(given, endpoint, name, leave_on_signals(), threading.Event(), "WARNING")
    say(ready=name)
    worker.work()


# -- the broker ------------------------------------------------------------------------------------


def run_broker(endpoint, folder, keepalive_ms="2500", multiplier="6", workers="{}"):
    ready = threading.Event()
    given = inventory(endpoint, folder, workers=json.loads(workers))
    broker = NFPBroker(
        endpoint, leave_on_signals(), given, "WARNING", int(multiplier), int(keepalive_ms), ready
    )
    path = os.path.join(folder, "__norfab__", "files", "broker", "public_keys", "broker.key")
    with open(path, encoding="utf-8") as file:
        key = next(line.split('"')[1] for line in file if "public-key" in line)
    say(ready=endpoint, key=key, pid=os.getpid())
    broker.mediate()


# -- a client --------------------------------------------------------------------------------------


def many(client, service, task, count, **options):
    began = time.perf_counter()
    futures = [client.submit_job(service, task, **options) for _ in range(count)]
    results = [future.result(timeout=120) for future in futures]
    return {"seconds": time.perf_counter() - began, "results": results}


def interactive(client, service, task, answer, **options):
    """Submit, answer the first input request, return events and the result."""
    future = client.submit_job(service, task, **options)
    seen = []
    for event in future.events(timeout=30):
        seen.append(event)
        if event.get("event_type") == "input_request":
            asked = event["extras"]["input_request"]
            future.send_response(input_id=asked["id"], value=answer)
    return {"events": seen, "result": future.result(timeout=30)}


def fetch(client, url, **options):
    answer = client.fetch_file(url, **options)
    path = answer.get("content")
    digest = None
    if isinstance(path, str) and os.path.isfile(path):
        with open(path, "rb") as file:
            digest = hashlib.md5(file.read(), usedforsecurity=False).hexdigest()
    return {"answer": answer, "md5": digest}


def obey(client, words):
    words = dict(words)
    what = words.pop("do")
    if what == "run":
        return client.run_job(words.pop("service"), words.pop("task"), **words)
    if what == "errors":
        return client.job_db.get_job(words.pop("uuid"))["errors"]
    if what == "many":
        return many(client, words.pop("service"), words.pop("task"), words.pop("count"), **words)
    if what == "sequence":
        service, task, count = words.pop("service"), words.pop("task"), words.pop("count")
        began = time.perf_counter()
        results = [client.run_job(service, task, **words) for _ in range(count)]
        return {"seconds": time.perf_counter() - began, "results": results}
    if what == "interactive":
        return interactive(client, words.pop("service"), words.pop("task"), words.pop("answer"), **words)
    if what == "mmi":
        return client.mmi(words.pop("service"), words.pop("task"), **words)
    if what == "fetch":
        return fetch(client, words.pop("url"), **words)
    raise ValueError(f"no such command: {what}")


def run_client(endpoint, folder, key, name):
    client = NFPClient(inventory(endpoint, folder, key), endpoint, name)
    say(ready=name)
    for line in sys.stdin:
        try:
            say(ok=obey(client, json.loads(line)))
        except Exception as error:
            say(error=f"{type(error).__name__}: {error}")
    client.destroy()


if __name__ == "__main__":
    parts = {"broker": run_broker, "worker": run_worker, "files": run_files, "client": run_client}
    parts[sys.argv[1]](*sys.argv[2:])
