"""`headgate pipeline` as a person runs it: journal to tables, quiet, JSON, again, compacted, verified."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gateway.pipeline.warehouse import Warehouse
from tests.live import segments
from tests.spark.talk import PEERS, said

SMALL = (
    "--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2",
    "--conf", "spark.driver.extraJavaOptions=-XX:TieredStopAtLevel=1",
)  # fmt: skip


def headgate(*words: str, code: int = 0, environ: dict[str, str] | None = None) -> tuple[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "gateway.pipeline", *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == code, done.stderr[-3000:]
    return done.stdout, done.stderr


@pytest.mark.timeout(600)
def test_from_journal_to_tables_and_back(java, tmp_path: Path) -> None:
    journal, root = tmp_path / "journal", tmp_path / "warehouse"
    segments.write_many(journal, "rank0", said(300), 100, per_block=50, peers=PEERS)
    both = ("--journal", str(journal), "--warehouse", str(root))
    out, err = headgate("batch", *both, "--json", *SMALL)
    first, second = (json.loads(line) for line in out.splitlines())
    assert err == "", "Spark's words are kept from the terminal"
    assert (first["job"], first["rows_out"], second["job"], second["rows_in"]) == (
        "ingest",
        300,
        "batch",
        300,
    )
    warehouse = Warehouse(root)
    assert sum(warehouse.scan("traffic", ["n"])["n"].to_pylist()) == 300
    assert warehouse.feed() == {"feed": "ingest", "bronze": 0, "gold": 0}

    out, err = headgate("verify", *both)
    assert "300 rows" in out
    assert "every one is there once" in out
    out, _err = headgate("compact", "--warehouse", str(root), "--json")
    assert "_runs" in {json.loads(line)["table"] for line in out.splitlines()}  # messages is one file
    out, _err = headgate("describe", "--warehouse", str(root))
    assert "fed by ingest" in out
    assert "last run: batch" in out

    bronze = warehouse.at("messages")
    rest = warehouse.write_rows("messages", bronze.scan().sort_by("seq").slice(1))
    bronze.commit(rest, removed=bronze.files())
    out, _err = headgate("verify", *both, "--json", code=1)
    assert json.loads(out)["ok"] is False


def test_without_java_nothing_is_begun(tmp_path: Path) -> None:
    """What Spark makes says what is missing, before it reads anything."""
    journal = tmp_path / "journal"
    segments.write_many(journal, "rank0", said(300), 100, per_block=50, peers=PEERS)
    environ = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[2])}
    environ.pop("JAVA_HOME", None)
    both = ("--journal", str(journal), "--warehouse", str(tmp_path / "warehouse"))
    _out, err = headgate("batch", *both, code=1, environ=environ)
    assert "Java 17 or later: none found on the path" in err
    assert not (tmp_path / "warehouse").exists()


@pytest.mark.between
@pytest.mark.timeout(300)
def test_damage_is_one_line_and_a_code(java, tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    path = segments.write(journal, "rank0", said(100), per_block=10, peers=PEERS)
    data = bytearray(path.read_bytes())
    at = data.index(b"FJBK", 5000)
    data[at + 70] ^= 0xFF
    path.write_bytes(data)
    words = ("ingest", "--journal", str(journal), "--warehouse", str(tmp_path / "w"), *SMALL)
    out, err = headgate(*words, code=1)
    assert out == ""
    (line,) = err.splitlines()
    assert line.startswith(f"headgate pipeline: {path.name}: ")
    assert f"bytes at {at}: CRC of the block" in line
