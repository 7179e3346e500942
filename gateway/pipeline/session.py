"""A Spark session that our jobs run in.

What a plain session gets wrong for them, and what is set here instead (a value of the caller's or of ``spark-submit``
goes before):

* workers run ``python3`` of the path, which may lack pyarrow: ``PYSPARK_PYTHON`` is this interpreter;
* a local session listens on the machine's address and draws a web page: 127.0.0.1, no page;
* times depend on the machine's time zone: UTC;
* timestamps are written as INT96: microseconds;
* above 32 files a job of its own looks whether they are there: the log says so, and 10 000 are looked at here;
* workers of a cluster do not know what opens the store: they get it (``STORE_ACCESS``), not on a command line;
* of the code that statements become 100 pieces are kept, and a step of gold alone has more: 1 000;
* jobs wait for those before them, a stream's batch for minutes of gold: pools share the cores (``gold.TAG``);
* Spark's words go to the terminal: into a file, whose end is told when the session does not come up;
* a JVM loads and checks thousands of classes: they are kept (``archive``), and few rows are compiled for a quick start.
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from gateway.pipeline import archive
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
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.compression.codec": "zstd",
    "spark.sql.sources.parallelPartitionDiscovery.threshold": "10000",
    "spark.sql.streaming.minBatchesToRetain": "100",
    "spark.sql.codegen.cache.maxEntries": "1000",
    "spark.scheduler.mode": "FAIR",
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


SMALL_ROWS: Final = 1_000_000
"""Up to so many the time goes into starting and compiling: with the quick compiler (C1) and collector alone a batch of
300 rows takes 0.6 of the CPU, one of 800 000 still 0.7. Of more each row takes more.
"""
_SMALL: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:ReservedCodeCacheSize=240m"
"""The quick compiler alone has 48 MiB for code, which Spark fills: then it forgets code and compiles it again."""
_LARGE: Final = "-XX:+UseParallelGC"
"""G1, which a JVM takes by itself, costs a batch of millions of rows a seventh more CPU."""
_COLLECTOR: Final = re.compile(r"-XX:\+Use\w+GC\b")
_SAID: Final = ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
"""What a JVM reads besides its command line."""
_OPTIONS: Final = "spark.driver.extraJavaOptions"


def java_missing(environ: Mapping[str, str] = os.environ) -> str:
    """What is wrong with the Java of this machine; empty when it will do."""
    return _java(environ)[1]


def _java(environ: Mapping[str, str]) -> tuple[str, str]:
    """What the Java of this machine says of itself, and what is wrong with it."""
    home = environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java", path=environ.get("PATH"))
    floor = f"Java {JAVA_FLOOR} or later"
    if java is None:
        return "", f"{floor}: none found on the path, and JAVA_HOME is not set; {_GET_JAVA}"
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_LOOK_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"{floor}: {java} does not run ({error}); {_GET_JAVA}"
    said = done.stderr + done.stdout
    seen = re.search(r'version "(?:1\.)?(\d+)', said)
    if seen is None or int(seen.group(1)) < JAVA_FLOOR:
        version = seen.group(1) if seen else "of unknown version"
        return said, f"{floor}: {java} is {version}; {_GET_JAVA}"
    return f"{os.path.realpath(java)}\n{said}", ""


def require() -> str:
    """Raise unless PySpark, pyarrow and Java are there; what Java says of itself.

    Raises:
        ModuleNotFoundError: a package is not.
        Missing: Java is not; it says how to get it.
    """
    for name in ("pyspark", "deltalake", "pyarrow", "numpy"):
        import_module(name)
    if "PYSPARK_GATEWAY_PORT" in os.environ:
        return ""
    said, why = _java(os.environ)
    if why:
        raise Missing(why)
    return said


def session(
    master: str | None = None,
    name: str = "headgate pipeline",
    conf: Mapping[str, str] | None = None,
    *,
    rows: int | None = None,
    keep: bool = False,
    verbose: bool = False,
) -> SparkSession:
    """A session with the source ``headgate`` registered.

    Args:
        master: ``local[2]``, ``spark://HOST:PORT``, ``yarn``, ...; None: what ``spark-submit`` says, else ``local[*]``.
        name: of the application, as Spark shows it.
        conf: settings of Spark that go before ours.
        rows: about how many it is for, where that is known; few are compiled for a quick start.
        keep: its classes are kept where none are yet; ``close`` has to end it, which takes some seconds more then.
        verbose: Spark's words go to stderr.

    Raises:
        Missing: PySpark or Java is not there.
        PipelineError: it does not come up; with the end of what Spark said.
    """
    java = require()
    import pyspark
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])
    wanted = {**_wanted(master), **(conf or {}), "spark.app.name": name}
    if java:
        jars = Path(pyspark.__file__).parent / "jars"
        few = rows is not None and rows <= SMALL_ROWS and "spark.driver.host" in wanted
        wanted[_OPTIONS] = _java_options(java, jars, wanted.get(_OPTIONS, ""), few=few, keep=keep)
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


def _java_options(java: str, jars: Path, given: str, *, few: bool, keep: bool) -> str:
    """Those of the JVM; what the caller has ``given`` it comes last, for of two that differ a JVM takes that."""
    kept = archive.options(java, jars, make=keep and not given)
    ours = _SMALL if few else _LARGE
    if given or _COLLECTOR.search(" ".join(os.environ.get(name, "") for name in _SAID)):
        ours = ""  # a JVM that is told of two collectors does not start
    return " ".join(filter(None, (ours, kept, given)))


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


def keeps_classes(spark: SparkSession) -> bool:
    """Whether its JVM keeps its classes as it ends, which takes some seconds, once."""
    return bool(archive.written_by(spark.sparkContext.getConf().get(_OPTIONS, "")))


def close(spark: SparkSession) -> None:
    """Stop the session and end its JVM, unless that is ``spark-submit``'s."""
    from pyspark import SparkContext

    gateway = spark.sparkContext._gateway
    fresh = archive.written_by(spark.sparkContext.getConf().get(_OPTIONS, ""))
    spark.stop()
    process = getattr(gateway, "proc", None)
    if process is None:
        return
    SparkContext._gateway = SparkContext._jvm = None
    gateway.shutdown()
    process.stdin.close()
    if not fresh:
        _wait(process, _END_S)
        return
    with archive.ending(fresh) as codes:
        codes.append(_wait(process, archive.END_S))


def _wait(process: subprocess.Popen[bytes], seconds: float) -> int:
    """Until it has ended by itself, or else been killed; its exit code."""
    try:
        return process.wait(seconds)
    except BaseException as error:
        process.kill()
        process.wait()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return process.returncode


_OURS: Final = re.compile(
    r"(?:gateway\.pipeline\.errors\.|gateway\.delta\.|broker\.journal\.[\w.]*|broker\.errors\.)(\w+): (.+)",
    re.MULTILINE,
)
_CALLED: Final = re.compile(r"^An error occurred while calling .*\n: (?:[\w$]+\.)+")
"""What py4j puts in front of a Java exception's name."""
_CAUSED: Final = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+: .+)", re.MULTILINE)
_LINE_MAX: Final = 400


def first_line(error: BaseException) -> str:
    """What a person should read of an error that came through Spark: our own text, else its first line."""
    text = str(error)
    if ours := _OURS.findall(text):
        return str(ours[-1][1]).strip()
    lines = [line for line in _CALLED.sub("", text).splitlines() if line.strip()]
    first = (lines[0] if lines else type(error).__name__)[:_LINE_MAX]
    # of a task that could not write Spark says that alone first, and last that the disk is full
    if (caused := _CAUSED.findall(text)) and caused[-1] not in first:
        return f"{first}; {caused[-1]}"[: 2 * _LINE_MAX]
    return first


@contextlib.contextmanager
def plain_errors() -> Iterator[None]:
    """Turns what Spark raises into a PipelineError of one line."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException) as error:
        raise PipelineError(first_line(error)) from error
