"""``/metrics`` of a node's proxy, whether its rooms are one process or five."""

import os
import signal

import pytest

from broker.cli.oslo.metrics import MetricsThread
from broker.errors import ConfigError
from broker.settings import loads
from tests.live.scrapes import page
from tests.unit.cli.test_oslo_processes import eventually, proxy, rooms


@pytest.mark.patient
@pytest.mark.parametrize("words", [(), ("--split",)])
def test_all_rooms_of_the_node_are_told(rundir, words):
    place = rundir / "m"
    with proxy(rundir, *words, "--set", f"oslo.metrics_listen=unix://{place}") as (process, _said):
        text = page(place)
        for room in ("directory", "call", "fanout", "notify", "cast"):
            assert f'headgate_oslo_room_up{{room="{room}"}} 1' in text
        assert 'headgate_oslo_received_messages_total{pipeline="call"} 0' in text
        if words:
            pid = rooms(process.pid)[1]
            os.kill(pid, signal.SIGSTOP)
            try:
                assert 'headgate_oslo_room_up{room="call"} 0' in page(place)
            finally:
                os.kill(pid, signal.SIGCONT)
            eventually(lambda: 'headgate_oslo_room_up{room="call"} 1' in page(place))


def test_a_place_that_cannot_be_is_said_at_the_start(rundir):
    with (
        pytest.raises(ConfigError, match=r"oslo\.metrics_listen"),
        MetricsThread("unix:///no/such/m", str(rundir)),
    ):
        raise AssertionError


def test_off_loopback_needs_a_word():
    with pytest.raises(ConfigError, match=r"oslo\.metrics_insecure"):
        loads('[oslo]\nmetrics_listen = "http://0.0.0.0:9466"\n')
    loads('[oslo]\nmetrics_listen = "http://0.0.0.0:9466"\nmetrics_insecure = true\n')
