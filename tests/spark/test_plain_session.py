"""A session that knows nothing of Headgate finds the source by its name, and reads a folder or a store."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.journal.shipping import Shipper
from broker.wire.message import request
from tests.live import segments
from tests.live.pages import Page
from tests.live.s3 import s3_server
from tests.live.segments import T0, flux

SESSION = """
import json, sys
from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
read = [spark.read.format("headgate").load(place) for place in sys.argv[1:]]
rows = [sorted((row.seq, row.topic, row.matchtag) for row in table.collect()) for table in read]
spark.stop()
print(json.dumps(rows))
"""


@pytest.mark.usefixtures("java")
def test_a_plain_session_reads_a_folder_and_a_store(tmp_path: Path) -> None:
    for first in (0, 10):
        made = [
            flux(T0 + n, request("kvs.get", b"{}", matchtag=n + 1), peer=1) for n in range(first, first + 10)
        ]
        segments.write(tmp_path / "j", "rank0", made, first_seq=first)
    with s3_server() as s3:
        url = s3.place("plain")
        Shipper(str(tmp_path / "j"), url).round()
        places = [str(tmp_path / "j"), url, f"file://{tmp_path}/j"]
        # the environment of this Python is not activated: the page says what a program says then
        environ = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_")}
        program = Page("guides/tables.md").block("python", "PYSPARK_PYTHON") + SESSION
        command = [sys.executable, "-c", program, *places]
        done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, check=True, timeout=150)
    expected = [[n, "kvs.get", n + 1] for n in range(20)]
    assert json.loads(done.stdout.splitlines()[-1]) == [expected] * 3
