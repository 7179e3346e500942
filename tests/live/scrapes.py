"""A program as Prometheus sees it: scraped at times that the test names, and held against the alert rules."""

import http.client
import socket
import time
from pathlib import Path
from typing import Any

import yaml

from tests.live.promql import Scrape, evaluate, missed, scraped

RULES: dict[str, str] = {
    rule["alert"]: rule["expr"]
    for group in yaml.safe_load(
        (Path(__file__).parents[2] / "deploy" / "monitoring" / "alerts.yaml").read_text()
    )["groups"]
    for rule in group["rules"]
}
"""Alert -> expression."""
APART_S = 60.0
"""Seconds between two scrapes, as the rules see them; no test waits for them."""


class _Connection(http.client.HTTPConnection):
    def __init__(self, place: Path) -> None:
        super().__init__("localhost", timeout=20)
        self._place = place

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._place))


def page(place: Path) -> str:
    """What ``/metrics`` at the UNIX socket ``place`` says.

    Raises:
        OSError: nobody answers there.
    """
    connection = _Connection(place)
    try:
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()
    finally:
        connection.close()


class Prometheus:
    """Scrapes one program.

    Args:
        place: its UNIX socket (``metrics_listen``). job: as the rules name it.
    """

    def __init__(self, place: Path, job: str) -> None:
        self._place = place
        self._target = {"job": job, "instance": place.name}
        self._scrapes: list[Scrape] = []

    def scrape(self) -> None:
        """Ask once more, ``APART_S`` after the last time as far as the rules can tell."""
        at_s = APART_S * len(self._scrapes)
        try:
            found = scraped(page(self._place), at_s, **self._target)
        except (OSError, http.client.HTTPException):
            found = missed(at_s, **self._target)
        self._scrapes.append(found)

    def fires(self, alert: str) -> bool:
        """Whether the condition of the rule is true at the last scrape."""
        return bool(evaluate(RULES[alert], self._scrapes, now=time.time()))

    def fired(self, alert: str) -> bool:
        """Scrape again; whether the condition is true now. What was scraped first stays the beginning."""
        self._scrapes[1:] = []
        self.scrape()
        return self.fires(alert)

    def value(self, name: str, **labels: Any) -> float:
        """The sum of the series of this name and with these labels, at the last scrape."""
        series = self._scrapes[-1].series.get(name, {})
        return sum(value for each, value in series.items() if labels.items() <= dict(each).items())
