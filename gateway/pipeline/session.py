"""A Spark session that our jobs run in.

What a plain session gets wrong for them, and what is set here instead (a value of the caller's or of ``spark-submit``
goes before):

* workers run ``python3`` of the path, which may lack pyarrow: ``PYSPARK_PYTHON`` is this interpreter;
* a local session listens on the machine's address and draws a web page: 127.0.0.1, no page;
* times depend on the machine's time zone: UTC;
* a source that takes filters fails every query unless ``spark.sql.python.filterPushdown.enabled``: on;
* timestamps are written as INT96: microseconds;
* above 32 files a job of its own looks whether they are there: the log says so, and 10 000 are looked at here;
* workers of a cluster do not know what opens the store: they get it (``STORE_ACCESS``), not on a command line;
* Spark's words go to the terminal: into a file, whose end is told when the session does not come up.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline.errors import Missing, PipelineError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_FLOOR: Final = 17
"""Class files of Spark 4 are of version 61."""
_GET_JAVA: Final = "on Debian: apt install openjdk-17-jre-headless"
_LOOK_S: Final = 30.0
"""How long ``java -version`` may take on a loaded machine."""
_END_S: Final = 20.0
"""How long a JVM may take to end before it is killed."""
_LOG_TAIL_BYTES: Final = 2000

DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.streaming.minBatchesToRetain": "100",
}
"""What a job of ours runs with unless told otherwise."""
STORE_ACCESS: Final = (
    "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_REGION", "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
)  # fmt: skip
"""Of the environment; where none is set, workers look where AWS's libraries do."""
_LOCAL: Final = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "8",  # Spark's 200 are for a cluster, and stay there
}
_LOCAL_MASTER: Final = re.compile(r"local(-cluster)?(\[|$)|spark://(127\.0\.0\.1|localhost)[:,]")


def java_missing(environ: Mapping[str, str] = os.environ) -> str:
    """What is wrong with the Java of this machine; empty when it will do."""
    home = environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java", path=environ.get("PATH"))
    if java is None:
        return f"Java {JAVA_FLOOR} or later: none found on the path, and JAVA_HOME is not set; {_GET_JAVA}"
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_LOOK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"Java {JAVA_FLOOR} or later: {java} does not run ({error}); {_GET_JAVA}"
    seen = re.search(r'version "(?:1\.)?(\d+)', said.stderr + said.stdout)
    if seen is None or int(seen.group(1)) < JAVA_FLOOR:
        version = seen.group(1) if seen else "of unknown version"
        return f"Java {JAVA_FLOOR} or later: {java} is {version}; {_GET_JAVA}"
    return ""


def require() -> None:
    """Raise unless PySpark, pyarrow and Java are there.

    Raises:
        ModuleNotFoundError: a package is not.
        Missing: Java is not; it says how to get it.
    """
    for name in ("pyspark", "deltalake", "pyarrow", "numpy"):
        import_module(name)
    if "PYSPARK_GATEWAY_PORT" not in os.environ and (why := java_missing()):
        raise Missing(why)


def session(
    master: str | None = None,
    name: str = "headgate pipeline",
    conf: Mapping[str, str] | None = None,
    *,
    verbose: bool = False,
) -> SparkSession:
    """A session with the source ``headgate`` registered.

    Args:
        master: ``local[2]``, ``spark://HOST:PORT``, ``yarn``, ...; None: what ``spark-submit`` says, else ``local[*]``.
        name: of the application, as Spark shows it.
        conf: settings of Spark that go before ours.
        verbose: Spark's words go to stderr.

    Raises:
        Missing: PySpark or Java is not there.
        PipelineError: it does not come up; with the end of what Spark said.
    """
    require()
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])
    wanted = {**_wanted(master), **(conf or {}), "spark.app.name": name}
    launch = SparkConf(loadDefaults=False)
    for key, value in wanted.items():
        launch.set(key, value)
    with _words(verbose) as log:
        try:
            gateway = launch_gateway(launch, {} if log is None else {"stdout": log, "stderr": log})
            SparkContext._ensure_initialized(gateway=gateway)
            settings = SparkConf()  # what spark-submit was told is in it
            for key, value in wanted.items():
                settings.setIfMissing(key, value) if key in DEFAULTS else settings.set(key, value)
            for key in os.environ.keys() & STORE_ACCESS:
                settings.setIfMissing(f"spark.executorEnv.{key}", os.environ[key])
            context = SparkContext(conf=settings, gateway=gateway)
        except Exception as error:
            raise PipelineError(f"no Spark session: {first_line(error)}{_tail(log)}") from error
    context.setLogLevel("WARN" if verbose else "ERROR")
    made = SparkSession(context)
    from gateway.pipeline.source import HeadgateSource

    made.dataSource.register(HeadgateSource)
    return made


def _wanted(master: str | None) -> dict[str, str]:
    wanted = dict(DEFAULTS)
    if master is None and "PYSPARK_GATEWAY_PORT" not in os.environ:
        master = "local[*]"
    if master is not None:
        wanted["spark.master"] = master
        if _LOCAL_MASTER.match(master):
            wanted |= _LOCAL
    return wanted


@contextlib.contextmanager
def _words(verbose: bool) -> Iterator[Any]:
    """Where the JVM's words go: an unlinked file, or the terminal (None)."""
    if verbose:
        yield None
        return
    with tempfile.TemporaryFile() as log:
        yield log


def _tail(log: Any) -> str:
    if log is None:
        return ""
    end = log.seek(0, os.SEEK_END)
    log.seek(max(0, end - _LOG_TAIL_BYTES))
    text = log.read().decode("utf-8", "replace").strip()
    return f"\n{text}" if text else ""


def close(spark: SparkSession) -> None:
    """Stop the session and end its JVM, unless that is ``spark-submit``'s."""
    from pyspark import SparkContext

    gateway = spark.sparkContext._gateway
    spark.stop()
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process.stdin.close()
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


_OURS: Final = re.compile(
    r"(?:gateway\.pipeline\.errors\.|gateway\.delta\.|broker\.journal\.[\w.]*|broker\.errors\.)(\w+): (.+)",
    re.MULTILINE,
)
_CALLED: Final = re.compile(r"^An error occurred while calling .*\n: (?:[\w$]+\.)+")
"""What py4j puts in front of a Java exception's name."""
_LINE_MAX: Final = 400


def first_line(error: BaseException) -> str:
    """What a person should read of an error that came through Spark: our own text, else its first line."""
    text = str(error)
    if ours := _OURS.findall(text):
        return str(ours[-1][1]).strip()
    lines = [line for line in _CALLED.sub("", text).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:_LINE_MAX]


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turns what Spark raises into a PipelineError of one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise PipelineError(first_line(error)) from error
