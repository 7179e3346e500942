"""What a session is told: a cluster keeps Spark's own idea of how many partitions it has work for."""

import pytest

from gateway.pipeline import session

SHUFFLE = "spark.sql.shuffle.partitions"


@pytest.mark.parametrize(
    ("master", "partitions"),
    [
        (None, "8"),
        ("local[2]", "8"),
        ("local-cluster[2,1,1024]", "8"),
        ("spark://127.0.0.1:7077", "8"),
        ("spark://master:7077", None),
        ("yarn", None),
    ],
)
def test_few_partitions_on_one_machine_only(master, partitions, monkeypatch):
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert session._wanted(master).get(SHUFFLE) == partitions


def test_under_spark_submit_all_is_what_it_says(monkeypatch):
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert {SHUFFLE, "spark.master"}.isdisjoint(session._wanted(None))
