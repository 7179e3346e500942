"""``/metrics`` of a node's proxy, whether its rooms are one process or five."""

import os
import signal

import pytest

from broker.cli.oslo.metrics import metrics_served
from broker.errors import ConfigError
from broker.settings import loads
from tests.live.scrapes import page
from tests.unit.cli.test_oslo_processes import eventually, proxies, proxy


def all_answer(place):
    text = page(place)
    for room in ("directory", "call", "fanout", "notify", "cast"):
        assert f'headgate_oslo_room_up{{room="{room}"}} 1' in text
    assert 'headgate_oslo_received_messages_total{pipeline="call"} 0' in text


@pytest.mark.patient
def test_all_rooms_of_one_process_are_told(rundir):
    place = rundir / "m"
    with proxy(rundir, "--set", f"oslo.metrics_listen=unix://{place}"):
        all_answer(place)


@pytest.mark.patient
def test_the_rooms_of_other_processes_are_told(rundir):
    place = rundir / "m"
    with proxies(rundir, "--set", f"oslo.metrics_listen=unix://{place}") as running:
        all_answer(place)
        os.kill(running["call"].pid, signal.SIGSTOP)
        try:
            assert 'headgate_oslo_room_up{room="call"} 0' in page(place)
        finally:
            os.kill(running["call"].pid, signal.SIGCONT)
        eventually(lambda: 'headgate_oslo_room_up{room="call"} 1' in page(place))


def test_a_place_that_cannot_be_is_said_at_the_start(rundir):
    with (
        pytest.raises(ConfigError, match=r"oslo\.metrics_listen"),
        metrics_served("unix:///no/such/m", str(rundir)),
    ):
        raise AssertionError


def test_off_loopback_needs_a_word():
    with pytest.raises(ConfigError, match=r"oslo\.metrics_insecure"):
        loads('[oslo]\nmetrics_listen = "http://0.0.0.0:9466"\n')
    loads('[oslo]\nmetrics_listen = "http://0.0.0.0:9466"\nmetrics_insecure = true\n')
