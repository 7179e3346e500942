"""One Spark session for the tables, one for all other tests here: it takes 10 to 20 s to come up and half a gigabyte.

Every test of this directory is marked `spark` and `interop`. Without Java or PySpark they are skipped; in CI, which
installs both, such a skip fails.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from gateway.pipeline.warehouse import Warehouse
from tests.live.s3 import Apart, s3_apart

HERE = f"{Path(__file__).parent}{os.sep}"


def missing() -> str:
    """What a Spark session lacks on this machine; empty when nothing."""
    try:
        import pyspark  # noqa: F401
    except ImportError:
        return "PySpark is not installed: the extra spark brings it"
    from gateway.pipeline.session import java_missing

    return java_missing()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if str(item.path).startswith(HERE):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.interop)
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(240))  # the first one waits for the session, too


@pytest.fixture(scope="session")
def java() -> Iterator[None]:
    """Skips where no session can come up. A JVM has the quick compiler alone: half the CPU where rows are few. To us it
    is another Java by that: the classes that are kept are the tests' own.
    """
    if why := missing():
        pytest.skip(why)
    with pytest.MonkeyPatch.context() as changed:
        changed.setenv("JAVA_TOOL_OPTIONS", "-XX:TieredStopAtLevel=1")
        yield


@pytest.fixture(scope="session")
def spark(java: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[object]:
    """The one session: local[2], four shuffle partitions, the data source `headgate` registered."""
    from gateway.pipeline import session

    place = tmp_path_factory.mktemp("spark")
    made = session.session(
        master="local[2]",
        name="headgate tests",
        rows=0,
        conf={
            "spark.sql.shuffle.partitions": "4",
            "spark.driver.memory": "1g",
            "spark.local.dir": str(place),
            "spark.sql.warehouse.dir": str(place / "warehouse"),
        },
    )
    yield made
    session.close(made)
    shutil.rmtree(place, ignore_errors=True)


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    path = tmp_path / "journal"
    path.mkdir()
    return path


@pytest.fixture
def warehouse(tmp_path: Path) -> Warehouse:
    return Warehouse(tmp_path / "warehouse")


@pytest.fixture
def s3() -> Iterator[Apart]:
    with s3_apart() as served:
        yield served
