"""`headgate pipeline`: what needs no Spark, and what is wrong before a JVM starts."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from broker.cli.main import main
from broker.extras import install
from gateway.pipeline import schema
from tests.live import segments
from tests.live.segments import T0, note
from tests.tables import for_each


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    segments.write(tmp_path / "journal", "rank0", [note(T0, "a.b", {})])
    return tmp_path / "journal"


def test_the_family_lists_its_verbs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "--help"]) == 0
    said = capsys.readouterr().out
    for verb in ("ingest", "batch", "stream", "compact", "describe", "verify", "report"):
        assert f"  {verb} " in said
    assert main(["pipeline", "ingst"]) == 2
    assert "'ingst' is no verb of pipeline; did you mean ingest?" in capsys.readouterr().err


@for_each("verb", ["ingest", "batch", "stream", "compact", "describe", "verify"])
def test_every_verb_has_help_and_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", verb, "--help"]) == 0
    said = capsys.readouterr().out
    assert f"headgate pipeline {verb} " in said.split("Examples:")[1]


@for_each(
    ("words", "code", "text"),
    [
        (["ingest", "-w", "W"], 2, "--journal"),
        (["ingest", "-j", "nowhere", "-w", "W"], 78, "nowhere: No such file or directory"),
        (["batch", "-w", "nowhere"], 78, "nowhere: no such warehouse"),
        (["batch", "-j", "J", "-w", "W", "-t", "nothing"], 1, "no table 'nothing'"),
        (
            ["ingest", "-j", "J", "-w", "W", "--on-corrupt", "no"],
            2,
            "--on-corrupt 'no': expected fail or skip",
        ),
        (["stream", "-j", "nowhere", "-w", "W"], 78, "nowhere: No such file or directory"),
        (["describe"], 2, "expected --warehouse DIR, --table NAME or --markdown"),
        (["describe", "-w", "nowhere"], 78, "nowhere: no such warehouse"),
        (["verify", "-j", "J", "-w", "nowhere"], 78, "nowhere: no such warehouse"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], code: int, text: str, tmp_path: Path, journal: Path, monkeypatch, capsys
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["pipeline", *(word.replace("J", str(journal)) if word == "J" else word for word in words)])
        == code
    )
    said = capsys.readouterr().err
    assert text in said
    assert len(said.splitlines()) == 1


def test_java_missing_is_said_with_the_way_to_get_it(journal: Path, tmp_path: Path) -> None:
    environ = {**os.environ, "PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[4])}
    environ.pop("JAVA_HOME", None)
    words = ["ingest", "-j", str(journal), "-w", str(tmp_path / "w"), "--master", "local[1]"]
    done = subprocess.run(
        [sys.executable, "-m", "gateway.pipeline", *words],
        env=environ,
        capture_output=True,
        text=True,
        timeout=50,
    )
    (line,) = done.stderr.splitlines()
    assert line.startswith("headgate pipeline: ")
    lacks_pyspark = "pyspark" in line and install("spark") in line
    assert lacks_pyspark or "Java 17 or later: none found on the path" in line
    assert done.returncode == (78 if lacks_pyspark else 1)


def test_a_segment_of_a_newer_version_ends_it_before_spark_starts(
    journal: Path, tmp_path: Path, capsys
) -> None:
    segments.write(journal, "rank1", [note(T0, "a.b", {})], version=3)
    assert main(["pipeline", "ingest", "-j", str(journal), "-w", str(tmp_path / "w")]) == 1
    assert "segment of version 3; this program knows versions up to 1: update it" in capsys.readouterr().err


def test_the_columns_are_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline", "describe", "--table", "traffic", "--json"]) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["column"] for each in told] == list(schema.TABLES["traffic"].names)
    assert main(["pipeline", "describe", "--markdown"]) == 0
    assert capsys.readouterr().out.count("### ") == len(schema.TABLES)


def test_where_spark_submit_finds_it() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gateway.pipeline", "--path"],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert Path(done.stdout.strip()).name == "__main__.py"
    assert Path(done.stdout.strip()).is_file()


def test_a_stream_into_a_store_needs_a_place_for_its_checkpoint(
    journal: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is said before a JVM starts, and before the store is asked."""
    place = "s3://key:secret@b/w?endpoint_override=127.0.0.1:1&scheme=http"
    assert main(["pipeline", "stream", "-j", str(journal), "-w", place]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("headgate pipeline: s3://b/w?endpoint_override=***&scheme=***: a store; ")
    assert "--checkpoint DIR" in line
