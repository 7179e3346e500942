"""The same job on a cluster: a master and two workers from the pip package, which share nothing but a store; by
spark-submit."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.journal.shipping import Shipper
from gateway.pipeline import verify
from gateway.pipeline.warehouse import Warehouse
from tests.live import s3, segments
from tests.live.cluster import Jvm
from tests.live.cluster import cluster as started
from tests.spark.talk import PEERS, said


@pytest.fixture
def cluster(java, tmp_path: Path) -> Iterator[tuple[str, Jvm]]:
    with started(tmp_path) as running:
        yield running


@pytest.mark.timeout(420)
def test_a_cluster_does_the_same_job(cluster: tuple[str, Jvm], tmp_path: Path) -> None:
    url, master = cluster
    segments.write_many(tmp_path / "journal", "rank0", said(4000), 500, per_block=100, peers=PEERS)
    with s3.s3_apart() as store:
        Shipper(str(tmp_path / "journal"), store.place("journals")).round()
        _job(url, store, tmp_path)
        assert verify.verify(tmp_path / "journal", Warehouse(store.place("warehouse"))).ok
    master.until(r"Registered app headgate pipeline ingest")
    assert len(set(re.findall(r"Launching executor app-\S+/(\d+) on worker", master.log.read_text()))) == 2


def _job(url: str, store: s3.Apart, tmp_path: Path) -> None:
    """``ingest`` by spark-submit; what opens the store is in the environment of the driver alone."""
    import pyspark

    journal, warehouse = (s3.place(store.url, name, key="") for name in ("journals", "warehouse"))
    path = subprocess.run(
        [sys.executable, "-m", "gateway.pipeline", "--path"], capture_output=True, text=True, check=True
    ).stdout.strip()
    root = Path(path).parents[2]
    environ = {
        **os.environ,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": str(root),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "AWS_ACCESS_KEY_ID": "test",
        "AWS_SECRET_ACCESS_KEY": "test",
    }
    settings = {
        "spark.executor.memory": "512m",
        "spark.executor.cores": "1",
        "spark.executorEnv.PYTHONPATH": str(root),
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.log.level": "ERROR",
    }
    submit = [str(Path(pyspark.__file__).parent / "bin" / "spark-submit"), "--master", url]
    submit += [word for key, value in settings.items() for word in ("--conf", f"{key}={value}")]
    words = ["ingest", "--journal", journal, "--warehouse", warehouse, "--json"]
    done = subprocess.run(
        [*submit, path, *words], env=environ, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (run,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert (run["rows_in"], run["rows_out"]) == (4000, 4000)
