"""What is missing is said in words, before anything starts."""

import os
import re
import sys
from pathlib import Path

import pytest

from gateway.pipeline import archive, session
from tests.tables import for_each

SHUFFLE = "spark.sql.shuffle.partitions"


def java(tmp_path: Path, says: str) -> dict[str, str]:
    """An environment whose Java says something."""
    program = tmp_path / "bin" / "java"
    program.parent.mkdir(exist_ok=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(0o755)
    return {"PATH": f"{program.parent}:{os.defpath}"}


@for_each(
    ("says", "text"),
    [
        ('openjdk version "17.0.15" 2025-04-15', ""),
        ('openjdk version "21" 2023-09-19', ""),
        ('java version "1.8.0_402"', "Java 17 or later: .* is 8; "),
        ('openjdk version "11.0.2"', "Java 17 or later: .* is 11; "),
        ("what?", "is of unknown version"),
    ],
)
def test_java_is_looked_at(tmp_path: Path, says: str, text: str) -> None:
    found = session.java_missing(java(tmp_path, says))
    assert (found == "") == (text == "")
    if text:
        assert re.search(text, found)


def test_no_java_at_all(tmp_path: Path) -> None:
    assert "Java 17 or later: none found on the path" in session.java_missing({"PATH": str(tmp_path)})
    assert "does not run" in session.java_missing({"JAVA_HOME": str(tmp_path / "nowhere")})


def test_packages_that_are_missing_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ModuleNotFoundError) as caught:
        session.require()
    assert caught.value.name == "pyspark"


def test_of_an_error_from_a_worker_our_own_words_are_left() -> None:
    text = (
        "[STREAM_FAILED] Query [id = 1] terminated\nTraceback (most recent call last):\n"
        "gateway.pipeline.errors.Lost: rank0.fj: the segment was deleted\n SQLSTATE: 38000\n"
    )
    assert session.first_line(RuntimeError(text)) == "rank0.fj: the segment was deleted"
    stored = RuntimeError("Job aborted\ngateway.delta.TableError: s3://b/w/rpc: Slow Down\n\tat java")
    assert session.first_line(stored) == "s3://b/w/rpc: Slow Down"
    assert session.first_line(RuntimeError("\nsomething else\nmore")) == "something else"
    assert session.first_line(RuntimeError()) == "RuntimeError"


# a cluster keeps Spark's own idea of how many partitions it has work for


@for_each(
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
def test_few_partitions_on_one_machine_only(
    master: str | None, partitions: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    assert session._wanted(master).get(SHUFFLE) == partitions


def test_under_spark_submit_all_is_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert {SHUFFLE, "spark.master"}.isdisjoint(session._wanted(None))


def test_of_an_exception_of_java_its_own_line_is_shown() -> None:
    text = (
        "An error occurred while calling o64.start.\n"
        ': org.apache.hadoop.fs.UnsupportedFileSystemException: No FileSystem for scheme "s3"\n'
        "\tat org.apache.hadoop.fs.FileSystem.getFileSystemClass(FileSystem.java:3581)\n"
    )
    assert session.first_line(RuntimeError(text)) == (
        'UnsupportedFileSystemException: No FileSystem for scheme "s3"'
    )


# -- the archive of classes


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark.jar").write_bytes(b"classes")
    return tmp_path / "jars"


def ended(options: str, code: int, content: bytes = b"an archive") -> None:
    """A JVM with these options has ended."""
    fresh = archive.written_by(f"-Dx=y {options}")
    with archive.ending(fresh) as codes:
        Path(fresh).write_bytes(content)
        codes.append(code)
    assert not Path(fresh).exists()


def test_the_first_jvm_keeps_its_classes_for_the_next(jars: Path) -> None:
    assert archive.options("Java 17", jars, make=False) == ""
    first = archive.options("Java 17", jars, make=True)
    assert archive.written_by(first) == first.removeprefix("-XX:ArchiveClassesAtExit=") != ""
    ended(first, 0)
    kept = Path(archive.options("Java 17", jars, make=True).removeprefix("-XX:SharedArchiveFile="))
    assert kept.read_bytes() == b"an archive"
    assert (kept.stat().st_mode & 0o777, kept.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    assert archive.written_by(archive.options("Java 21", jars, make=True)), "another Java has another one"
    (jars / "spark.jar").write_bytes(b"other classes")
    assert archive.written_by(archive.options("Java 17", jars, make=True)), "so have other jars"


def test_options_of_the_caller_come_last_and_leave_the_archive_in_use(jars: Path) -> None:
    def options(given: str, *, keep: bool = False) -> str:
        return session._java_options("Java 17", jars, given, few=True, keep=keep)

    assert options("-Xss8m", keep=True) == "-Xss8m", "whatever it would keep is for other options"
    assert options("") == session._SMALL
    ended(options("", keep=True).split()[-1], 0)
    kept = archive.options("Java 17", jars, make=False)
    assert (options(""), options("-Xss8m")) == (f"{session._SMALL} {kept}", f"{kept} -Xss8m")


def test_a_collector_that_the_environment_names_is_the_only_one(
    jars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for few in (True, False):
        assert "GC" in session._java_options("Java 17", jars, "", few=few, keep=False)
    for name in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "-Xss8m -XX:+UseZGC")
            assert session._java_options("Java 17", jars, "", few=False, keep=False) == ""


def test_a_jvm_that_did_not_end_well_leaves_no_archive(jars: Path) -> None:
    ended(archive.options("Java 17", jars, make=True), 1)
    assert archive.options("Java 17", jars, make=True) == "", "nor does the next one try at once"
    (marker,) = (jars.parent / "cache" / "headgate").iterdir()
    os.utime(marker, (0, 0))
    later = archive.options("Java 17", jars, make=True)
    with pytest.raises(KeyboardInterrupt), archive.ending(archive.written_by(later)):
        raise KeyboardInterrupt
    assert archive.written_by(archive.options("Java 17", jars, make=True))
    ended(later, 0)
    assert archive.options("Java 17", jars, make=True).startswith("-XX:SharedArchiveFile=")


def test_nothing_is_run_that_somebody_else_may_have_written(
    jars: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ended(archive.options("Java 17", jars, make=True), 0)
    folder = jars.parent / "cache" / "headgate"
    (kept,) = folder.iterdir()
    kept.chmod(0o620)
    assert archive.options("Java 17", jars, make=True) == ""
    kept.chmod(0o600)
    folder.chmod(0o770)
    assert archive.options("Java 17", jars, make=True) == ""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "with space"))
    assert archive.options("Java 17", jars, make=True) == ""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert archive.options("Java 17", jars, make=True) == ""


def test_an_archive_that_nobody_uses_is_deleted(jars: Path) -> None:
    for java in ("Java 17", "Java 21"):
        left = archive.written_by(archive.options("Java 8", jars, make=True))
        Path(left).touch()  # whoever waited for it was killed
        os.utime(left, (0, 0))
        ended(archive.options(java, jars, make=True), 0)
        os.utime(archive.options(java, jars, make=False).removeprefix("-XX:SharedArchiveFile="), (0, 0))
    folder = jars.parent / "cache" / "headgate"
    assert len(list(folder.iterdir())) == 1
