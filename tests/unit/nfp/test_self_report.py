"""Figures of this process: what is there, and that reading them takes little of the time."""

import socket

import pytest

from broker.nfp import self_report
from broker.nfp.self_report import ProcessStats


def test_the_figures():
    read = ProcessStats().read(12.7)
    assert set(read) == {
        "cpu_percent", "memory_rss_mbyte", "uptime_seconds", "open_file_descriptors", "tcp_sockets", "threads",
    }  # fmt: skip
    assert read["uptime_seconds"] == 12
    assert read["memory_rss_mbyte"] > 1
    assert read["threads"] >= 1
    assert read["cpu_percent"] >= 0
    assert ProcessStats().read()["uptime_seconds"] == 0


def test_tcp_sockets_are_counted():
    before = ProcessStats().read()
    with socket.create_server(("127.0.0.1", 0)), socket.socket(socket.AF_UNIX):
        after = ProcessStats().read()
    assert after["tcp_sockets"] == before["tcp_sockets"] + 1


def test_with_many_descriptors_the_long_walk_is_left_out(monkeypatch):
    monkeypatch.setattr(self_report, "_LISTED_MAX", 2)
    read = ProcessStats().read()
    assert read["tcp_sockets"] is None
    assert read["open_file_descriptors"] > 2


@pytest.mark.parametrize(("took_s", "fresh_after_s"), [(0.0, 1.0), (0.05, 5.0)])
def test_what_takes_long_to_read_is_told_longer(monkeypatch, took_s, fresh_after_s):
    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    clock, walks = Clock(), []

    def walk(descriptors):
        walks.append(clock.now)
        clock.now += took_s
        return 7

    process = ProcessStats()
    monkeypatch.setattr(self_report, "time", clock)
    monkeypatch.setattr(self_report, "_tcp_sockets", walk)
    process._stale_at = 0.0
    process.read()
    done = clock.now
    clock.now = done + fresh_after_s - 0.01
    assert process.read()["tcp_sockets"] == 7
    assert len(walks) == 1
    clock.now = done + fresh_after_s + 0.01
    process.read()
    assert len(walks) == 2
