"""The charts of the last day: what a gateway collects of real brokers, who may have it, and what outlives a restart."""

import json
import stat
import urllib.error
import urllib.request
from typing import Any

import pytest

from tests.live.brokers import eventually
from tests.live.gateways import GatewayProcess, gateway_process

pytestmark = pytest.mark.story

KEPT = "[history]\ncharts_file = true\n"
RANGE = {"range_s": 60}


def series(gateway: GatewayProcess, asked: dict[str, Any], user: str = "ada") -> dict[str, Any]:
    """What ``gateway.series`` answers."""
    headers = {**gateway.bearer(user), "Content-Type": "application/json"}
    url = f"{gateway.urls[0]}/v1/rpc/gateway.series"
    request = urllib.request.Request(url, json.dumps(asked).encode(), headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


def last(answer: dict[str, Any], name: str) -> float | None:
    return next((value for value in reversed(answer["series"].get(name, [])) if value is not None), None)


def marks(gateway: GatewayProcess) -> list[str]:
    return [text for _time, text in series(gateway, RANGE)["marks"]]


@pytest.mark.patient
def test_a_day_outlives_a_restart_where_it_is_asked_for(rundir, broker):
    for began in (1, 2):
        with gateway_process(rundir, broker.uri, KEPT) as gateway:
            eventually(lambda: (last(series(gateway, RANGE), "in") or 0) > 0)
            answer = series(gateway, {"range_s": 60, "figures": ["ms", "open"]})
            assert set(answer["series"]) == {"ms:0", "open"}
            assert last(answer, "ms:0") > 0
            assert (answer["count"], answer["step"]) == (60, 1)
            assert marks(gateway) == ["the gateway began"] * began
            assert gateway.stop() == 0
        assert stat.S_IMODE((rundir / "state" / "trends.bin").stat().st_mode) == 0o600


def test_who_may_have_them_and_what_may_be_asked(rundir, broker):
    with gateway_process(rundir, broker.uri) as gateway:
        with pytest.raises(urllib.error.HTTPError) as refused:
            series(gateway, RANGE, "bob")
        assert refused.value.code == 403
        for wrong in (
            {"range_s": 1},
            {"range_s": 10**9},
            {"range_s": True},
            {"figures": "ms"},
            {"figures": [3]},
        ):
            with pytest.raises(urllib.error.HTTPError) as refused:
                series(gateway, wrong)
            assert refused.value.code == 400
            refused.value.close()
        assert not (rundir / "state" / "trends.bin").exists()


@pytest.mark.patient
def test_without_charts_there_are_none(rundir, broker):
    with (
        gateway_process(rundir, broker.uri, "[history]\ncharts = false\n") as gateway,
        pytest.raises(urllib.error.HTTPError) as refused,
    ):
        series(gateway, RANGE)
    assert b"history.charts" in refused.value.read()
