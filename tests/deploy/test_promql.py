"""The evaluator of alert rules: what Prometheus says of the same figures."""

import pytest

from tests.live.promql import evaluate, missed, scraped

pytestmark = pytest.mark.tools

FIRST = """
# TYPE up_s gauge
up_s 5
# TYPE lost_total counter
lost_total{code="4002"} 3
lost_total{code="4003"} 10
# TYPE ends gauge
ends 1000
"""
SECOND = """
# TYPE up_s gauge
up_s 4
# TYPE lost_total counter
lost_total{code="4002"} 33
lost_total{code="4003"} 4
lost_total{code="4004"} 7
# TYPE ends gauge
ends 1000
"""
SCRAPES = [scraped(FIRST, 0.0, job="a"), scraped(SECOND, 60.0, job="a")]


EXPRESSIONS = [
    ("up_s", [4]),
    ("up_s == 4", [4]),
    ("up_s != 4", []),
    ("nothing > 0", []),
    ('up{job="a"} == 1', [1]),
    ('up{job="b"} == 1', []),
    ("up_s > 2.5e8", []),
    ("up_s < ends", [4]),
    ("ends - time() < 14 * 86400", [100]),
    ("ends - time() < 14 * 5", []),
    ("up_s + up_s > 7", [8]),
    ('increase(lost_total{code="4002"}[10m])', [30]),
    ('increase(lost_total{code=~"4002|4003"}[10m])', [30, 4]),  # the second began anew
    ("increase(lost_total[10m])", [30, 4]),  # the third was seen once
    ("increase(lost_total[30s])", []),
    ("rate(lost_total[5m]) > 0.05", [0.1]),
    ("sum by (job) (increase(lost_total[10m])) > 20", [34]),
    ("sum by (job, code) (lost_total) > 20", [33]),
    ("(up_s) * 2", [8]),
]


def test_expressions():
    found = [list(evaluate(expression, SCRAPES, now=900.0).values()) for expression, _values in EXPRESSIONS]
    assert found == [pytest.approx(values) for _expression, values in EXPRESSIONS]


def test_nobody_answered():
    assert evaluate('up{job="a"} == 0', [*SCRAPES, missed(120.0, job="a")]) != {}
    assert evaluate("up_s == 4", [*SCRAPES, missed(120.0, job="a")]) == {}


def test_what_is_not_understood_is_said():
    for expression in ("up_s and up_s", "up_s)", "up_s / 2", "max(up_s)"):
        with pytest.raises(AssertionError):
            evaluate(expression, SCRAPES)
