"""A standalone cluster of Spark on this machine, from the pip package: a master and workers of one core each."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MASTER = "org.apache.spark.deploy.master.Master"
WORKER = "org.apache.spark.deploy.worker.Worker"
UP_S = 90.0
"""Two JVMs at once on a loaded machine."""


class Jvm:
    """One daemon of Spark; `spark-class` becomes the JVM, so its pid is that of the process started."""

    def __init__(self, log: Path, *words: str) -> None:
        import pyspark

        self.log = log
        home = Path(pyspark.__file__).parent
        environ = {**os.environ, "SPARK_DAEMON_MEMORY": "256m", "SPARK_LOCAL_IP": "127.0.0.1"}
        environ["PYSPARK_PYTHON"] = sys.executable
        with log.open("wb") as out:
            self.process = subprocess.Popen(
                [str(home / "bin" / "spark-class"), *words], env=environ, stdout=out, stderr=out
            )

    def until(self, pattern: str, count: int = 1) -> re.Match[str]:
        """Until the log says it so often."""
        deadline = time.monotonic() + UP_S
        while True:
            found = list(re.finditer(pattern, self.log.read_text()))
            if len(found) >= count:
                return found[-1]
            assert self.process.poll() is None, self.log.read_text()[-2000:]
            assert time.monotonic() < deadline, f"{pattern}: {self.log.read_text()[-2000:]}"
            time.sleep(0.1)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def cluster(place: Path, workers: int = 2) -> Iterator[tuple[str, Jvm]]:
    """The master's URL and the master; all JVMs are ended by their pid."""
    started: list[Jvm] = []

    def start(name: str, *words: str) -> Jvm:
        started.append(Jvm(place / f"{name}.log", *words))
        return started[-1]

    try:
        master = start("master", MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        url = master.until(r"Starting Spark master at (spark://\S+)").group(1)
        own = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "1g")
        for number in range(workers):
            start(f"worker{number}", WORKER, *own, "--work-dir", str(place / f"worker{number}"), url)
        master.until(r"Registering worker", workers)
        yield url, master
    finally:
        for jvm in reversed(started):
            jvm.end()
    assert all(jvm.process.returncode is not None for jvm in started)
