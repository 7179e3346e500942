"""The way of a job, as the docstring of the package tells it: what it names is there, and is called in that order."""

import asyncio
import importlib
import inspect
import re
import sys
import threading
from contextlib import asynccontextmanager, contextmanager
from operator import attrgetter
from pathlib import Path

import pytest

import broker.nfp
from broker.nfp.client import NfpClient
from broker.nfp.norfab.client import Inventory, NFPClient
from broker.nfp.worker import Worker
from tests.live.nfp import running, section, workers_of

FILES_MAX = 10
"""A reader follows the whole way in no more of them."""
PATIENCE_S = 20.0
HOME = f"{Path(broker.__file__).parent}/"
FUNCTIONS = 327
FILES = 53
WARM = 3
ROUNDS = 3
REST_S = 0.1


def steps():
    """(module, name within it) of each line."""
    told = broker.nfp.__doc__.split("in the order of what is called::")[1].split("Leaves")[0]
    lines = re.findall(r"^    ([a-z_.]+)\.([A-Z]\w+\.\w+|\w+) {2,}\S", told, re.MULTILINE)
    return [(f"broker.nfp.{module}", name) for module, name in lines]


def test_every_step_is_there_and_says_what_it_does():
    found = steps()
    assert len(found) >= 10
    assert len({module for module, _ in found}) <= FILES_MAX
    for module, name in found:
        step = attrgetter(name)(importlib.import_module(module))
        assert inspect.getdoc(step), name


@asynccontextmanager
async def at_work(rundir):
    """A broker and a worker in this loop; the broker's address."""
    async with running(section(rundir, files="", curve=False)) as nfp:
        (endpoint,) = nfp.endpoints
        worker = Worker("lab", name="w1", broker=endpoint, server_key="", state_dir=rundir / "w1")
        worker.task(name="add", idempotent=True)(add)
        working = asyncio.get_running_loop().create_task(worker.run(), name="worker")
        while not workers_of(nfp):
            await asyncio.sleep(0.01)
        yield endpoint
        worker.stop()
        await working


async def add(a, b):
    return a + b


@contextmanager
def profiled(look):
    """In every thread that begins in the block, and in this one."""
    threading.setprofile(look)
    sys.setprofile(look)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


@pytest.mark.smoke
def test_a_job_takes_these_steps(rundir, monkeypatch):
    monkeypatch.setenv("HEADGATE_NFP_DIR", str(rundir / "peers"))
    called = []
    wanted = {step for step in steps() if importlib.import_module(step[0]).__file__.endswith(".py")}

    def look(frame, event, _argument):
        if event == "call":
            step = frame.f_globals.get("__name__", ""), frame.f_code.co_qualname
            if step in wanted:
                called.append(step)

    def script(endpoint):
        client = NFPClient(Inventory(data={"broker": {"zmq_auth": False}}), endpoint, "script")
        try:
            return client.run_job("lab", "add", args=[1, 2], workers="any", timeout=PATIENCE_S)
        finally:
            client.destroy()

    async def story():
        async with at_work(rundir) as endpoint:
            with profiled(look):
                return await asyncio.to_thread(script, endpoint)

    results = asyncio.run(story())
    assert results["w1"]["result"] == 3
    at = iter(called)  # other packets come in between
    assert [step for step in steps() if step in wanted and step not in at] == []


@pytest.mark.smoke
def test_a_warm_job_touches_no_more_functions_than_it_has_to(rundir, monkeypatch):
    """In client, broker and worker together: the bar of simplicity of the wing."""
    monkeypatch.setenv("HEADGATE_NFP_DIR", str(rundir / "peers"))
    touched = set()

    def look(frame, event, _argument):
        if event == "call" and frame.f_code.co_filename.startswith(HOME):
            touched.add(frame.f_code)

    async def story():
        rounds = []
        async with at_work(rundir) as endpoint, NfpClient(broker=endpoint, server_key="") as client:
            for number in range(WARM + ROUNDS):
                await asyncio.sleep(REST_S)
                touched.clear()
                with profiled(look if number >= WARM else None):
                    await client.run("lab", "add", args=[1, number], target="any")
                    await asyncio.sleep(REST_S)  # the worker is told that its result is safe
                rounds.append(set(touched))
        return rounds[WARM:]

    least = min(asyncio.run(story()), key=len)
    names = sorted(f"{code.co_filename.removeprefix(HOME)} {code.co_qualname}" for code in least)
    files = {name.partition(" ")[0] for name in names}
    said = "\n".join([f"{len(names)} functions in {len(files)} files:", *names])
    assert len(names) <= FUNCTIONS, said
    assert len(files) <= FILES, said
