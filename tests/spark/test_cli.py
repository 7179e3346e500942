"""`headgate pipeline` as a person runs it: quiet, JSON, again, compacted, verified; in a folder: test_readme."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.cli.main import main
from broker.journal.shipping import Shipper
from gateway.pipeline.warehouse import Warehouse
from tests.live import segments
from tests.live.s3 import Apart, place
from tests.spark.talk import PEERS, said, talked

SMALL = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=2")


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


@pytest.mark.timeout(300)
def test_the_verbs_on_a_store(
    java: None, s3: Apart, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What opens the store is in the environment; to look needs no Java."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    segments.write(tmp_path / "journal", "rank0", talked(0, 60), per_block=10, peers=PEERS)
    journals, warehouse = (place(s3.url, name, key="") for name in ("verbs/journals", "verbs/warehouse"))
    Shipper(str(tmp_path / "journal"), journals).round()
    out, err = headgate("batch", "--journal", journals, "--warehouse", warehouse, "--json", *SMALL)
    runs = [json.loads(line) for line in out.splitlines()]
    assert [(run["job"], run["rows_in"]) for run in runs] == [("ingest", 60), ("batch", 60)]
    assert err == "", "Spark's words are kept from the terminal"

    def told(verb: str, *words: str, code: int = 0) -> str:
        capsys.readouterr()
        assert main(["pipeline", verb, "--warehouse", warehouse, *words]) == code
        return capsys.readouterr().out

    said = told("verify", "--journal", journals)
    assert "60 rows" in said
    assert "every one is there once" in said
    compacted = [json.loads(line)["table"] for line in told("compact", "--json").splitlines()]
    assert "_runs" in compacted, "messages is one file"
    page = tmp_path / "report.html"
    told("report", "-o", str(page))
    assert "job.list" in page.read_text()
    held = {each["table"]: each["rows"] for each in json.loads(told("describe", "--json"))["tables"]}
    assert (held["messages"], held["rpc"]) == (60, 30)
    made = Warehouse(warehouse)
    assert made.feed() == {"feed": "ingest", "bronze": 0, "gold": 0}
    bronze = made.at("messages")
    rest = made.write_rows("messages", bronze.scan().sort_by("seq").slice(1))
    bronze.commit(rest, removed=bronze.files())
    assert json.loads(told("verify", "--journal", journals, "--json", code=1))["ok"] is False


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
