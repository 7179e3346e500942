"""The three forms of the log."""

import json
import logging
import os
import sys

from broker import loglines
from broker.loglines import LINE_CHARS, LINES_PER_S, TRACE_CHARS
from tests.live.own_log import own_log
from tests.tables import for_each


def lines_of(write, capsys, name="3", level="info"):
    with own_log("headgate.test_loglines") as log:
        loglines.send_to_stderr(log, name, level)
        write(log)
    return capsys.readouterr().err.splitlines()


def fail(log):
    try:
        raise ValueError("for\nexample")
    except ValueError:
        log.exception("it failed: %s", "once")


def test_plain_lines_have_time_name_and_level(capsys, monkeypatch):
    monkeypatch.delenv("HEADGATE_LOG_FORMAT", raising=False)
    monkeypatch.delenv("JOURNAL_STREAM", raising=False)

    def write(log):
        log.debug("not this")
        log.warning("%d things", 2)

    (line,) = lines_of(write, capsys)
    time, _, rest = line.partition(" ")
    assert rest == "headgate[3] WARNING 2 things"
    assert len(time) == len("2026-01-31T12:00:00.000")


def test_json_lines_hold_everything_on_one_line(capsys, monkeypatch):
    monkeypatch.setenv("HEADGATE_LOG_FORMAT", "JSON")

    def write(log):
        log.info("two\nlines, ä and %s", '"quoted"')
        fail(log)

    first, second = map(json.loads, lines_of(write, capsys))
    assert (first["level"], first["name"], first["text"]) == ("info", "3", 'two\nlines, ä and "quoted"')
    assert first["time"].endswith("+00:00")
    assert "trace" not in first
    assert (second["level"], second["text"]) == ("error", "it failed: once")
    assert second["trace"].splitlines()[-1] == "example"


def test_what_asyncio_reports_has_the_same_form(capsys, monkeypatch):
    monkeypatch.setenv("HEADGATE_LOG_FORMAT", "json")
    (line,) = lines_of(lambda _log: fail(logging.getLogger("asyncio")), capsys)
    assert json.loads(line)["text"] == "it failed: once"


def test_libraries_flood_the_log_no_more_than_we_do(capsys, monkeypatch):
    monkeypatch.setenv("HEADGATE_LOG_FORMAT", "json")

    error = (ValueError, ValueError("x" * (2 * TRACE_CHARS)), None)

    def write(log):
        for number in range(4 * LINES_PER_S):
            for name in (log.name, "asyncio", "aiohttp.server", "aiohttp.access"):
                text, args = (
                    (f"{number}" + "y" * (2 * LINE_CHARS), ())
                    if "access" in name
                    else ("%d failed", (number,))
                )
                record = logging.LogRecord(name, logging.ERROR, name, 1, text, args, error)
                record.created = 100.0
                logging.getLogger(name).handle(record)

    lines = [json.loads(line) for line in lines_of(write, capsys)]
    assert len(lines) == 2 * LINES_PER_S, "of a template and of a place in the code, whoever logs"
    assert all(len(line["text"]) <= LINE_CHARS for line in lines)
    assert all(len(line.get("trace", "")) <= TRACE_CHARS for line in lines)


def test_the_next_process_to_be_gets_handlers_of_its_own(capsys):
    """A process that was forked from one with a log sets up its own: no line comes twice."""

    def write(log):
        loglines.send_to_stderr(log, "4", "info")
        log.warning("once")
        logging.getLogger("asyncio").warning("once")

    assert [line.partition(" ")[2] for line in lines_of(write, capsys)] == ["headgate[4] WARNING once"] * 2


def test_the_journal_gets_a_level_in_front_of_every_line_and_no_time(capsys, monkeypatch):
    monkeypatch.delenv("HEADGATE_LOG_FORMAT", raising=False)
    monkeypatch.setattr(loglines, "_is_journal", lambda: True)
    lines = lines_of(fail, capsys, name="90%")
    assert lines[0] == "<3>headgate[90%] ERROR it failed: once"
    assert len(lines) > 3
    assert all(line.startswith("<3>") for line in lines)


@for_each(
    ("level", "severity"),
    [(logging.DEBUG, 7), (logging.INFO, 6), (25, 6), (logging.WARNING, 4), (logging.ERROR, 3), (60, 2)],
)
def test_levels_become_those_of_syslog(level, severity, monkeypatch):
    monkeypatch.setattr(loglines, "_is_journal", lambda: True)
    record = logging.LogRecord("headgate", level, __file__, 1, "", (), None)
    assert loglines.formatter("x").format(record).startswith(f"<{severity}>headgate[x]")


def test_stderr_is_the_journal_when_device_and_inode_say_so(tmp_path, monkeypatch):
    with open(tmp_path / "stream", "w") as stream:
        monkeypatch.setattr(sys, "stderr", stream)
        seen = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{seen.st_dev}:{seen.st_ino}")
        assert loglines._is_journal()
        monkeypatch.setenv("JOURNAL_STREAM", f"{seen.st_dev}:{seen.st_ino + 1}")
        assert not loglines._is_journal()
        monkeypatch.delenv("JOURNAL_STREAM")
        assert not loglines._is_journal()
    monkeypatch.setenv("JOURNAL_STREAM", "8:1")
    assert not loglines._is_journal()  # it is closed
