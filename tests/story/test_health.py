"""Probes of a tree and of what stands before it: live depends on nobody, ready on what a process has joined."""

import asyncio
import resource
import signal
import subprocess
import sys
import time

import pytest

from broker.cli.health import ask_broker
from broker.wire.message import request, response
from tests.live.brokers import eventually, one_broker, tree
from tests.live.gateways import gateway_process
from tests.live.speaker import Speaker, is_request, provide
from tests.live.verbs import headgate

pytestmark = pytest.mark.story

WELL, ILL, NOBODY = 0, 1, 3


def health(*words):
    """Exit code and what was said."""
    done = headgate("health", *words)
    return done.returncode, done.stdout + done.stderr


def codes(option, place, *more):
    """(live, ready) of whoever is at ``place``."""
    return tuple(health(question, option, place, *more)[0] for question in ("--live", "--ready"))


def at(rank):
    """The same of a broker."""
    questions = ("live", "ready")
    return tuple(asyncio.run(ask_broker(rank.uri, question, 2.0)).code for question in questions)


@pytest.mark.patient
def test_the_loss_of_a_parent_takes_readiness_not_life(rundir):
    with tree(rundir, 3) as running:
        root, child, other = running.ranks
        assert codes("--uri", root.uri) == codes("--uri", child.uri) == at(other) == (WELL, WELL)
        root.kill()
        eventually(lambda: at(child), (WELL, ILL))
        eventually(lambda: at(other), (WELL, ILL))
        code, said = health("--uri", child.uri)
        assert (code, "state join" in said) == (ILL, True)
        assert codes("--uri", root.uri) == (NOBODY, NOBODY)
        root.start()
        for rank in running.ranks:
            eventually(lambda rank=rank: at(rank), (WELL, WELL), timeout=20)


@pytest.mark.patient
def test_a_frozen_broker_fails_both_probes_in_time_and_its_children_live(rundir):
    with tree(rundir, 3) as running:
        root, child, _ = running.ranks
        root.signal(signal.SIGSTOP)
        began = time.monotonic()
        code, said = health("--live", "--uri", root.uri, "--timeout", "0.5")
        assert (code, "no answer within 0.5 s" in said) == (ILL, True)
        assert health("--uri", root.uri, "--timeout", "0.5")[0] == ILL
        assert time.monotonic() - began < 12
        assert health("--live", "--uri", child.uri)[0] == WELL
        root.signal(signal.SIGCONT)
        eventually(lambda: at(root), (WELL, WELL))


def test_a_draining_broker_lives_and_is_not_ready_by_socket_and_by_http(rundir):
    """Whoever restarts what is not live must not end a drain; whoever sends traffic must stop."""
    url = f"unix://{rundir}/metrics"
    extra = f'[broker]\ndrain_s = 30\nmetrics_listen = "{url}"\n'
    with one_broker(rundir, extra) as broker, Speaker(broker.uri) as caller, Speaker(broker.uri) as provider:
        assert at(broker) == codes("--url", url) == (WELL, WELL)
        provide(provider, "svc")
        caller.tell(request("svc.do", b"", matchtag=7))
        open_call = provider.take(is_request)
        broker.signal(signal.SIGTERM)
        eventually(lambda: any("state shutdown" in line for line in broker.lines()))
        assert at(broker) == codes("--url", url) == (WELL, ILL)
        assert "503 leaving: rank 0 of 1, state shutdown, tree full" in health("--url", url)[1]
        provider.tell(response(open_call, b""))
        assert broker.wait() == 0
        assert at(broker) == codes("--url", url) == (NOBODY, NOBODY)


@pytest.mark.patient
def test_a_gateway_lives_without_its_broker(rundir, broker):
    with gateway_process(rundir, broker.uri) as running:
        (url,) = running.urls
        eventually(lambda: codes("--url", url), (WELL, WELL))
        broker.kill()
        eventually(lambda: codes("--url", url), (WELL, ILL))
        assert "503 not joined: upstream is away" in health("--url", url)[1]
        broker.start()
        eventually(lambda: codes("--url", url), (WELL, WELL), timeout=20)
        assert running.stop() == 0
    assert codes("--url", url) == (NOBODY, NOBODY)


@pytest.mark.patient
def test_a_probe_costs_less_than_a_second(broker):
    """As a container engine asks it: a process of its own. What it works, not what it waits on a busy machine."""
    command = [sys.executable, "-m", "broker.cli.main", "health", "--uri", broker.uri]
    took = []
    for _ in range(3):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        assert subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode == WELL
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        took.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    assert min(took) < 1, took
