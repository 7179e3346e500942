"""``headgate nfp shell``: what lines mean, what they are completed with, and lines from a pipe."""

import asyncio
import io
import sys

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from broker.cli import exits
from broker.cli.exits import UsageError
from broker.cli.main import main
from broker.cli.nfp.shell import COMMANDS, OPTIONS, Catalog, TaskLine, completer, read, typed_lines
from broker.extras import lacking
from tests.live.nfp import nfp_broker
from tests.tables import for_each
from tests.unit.nfp.client.fake_broker import FakeBroker

SCHEMA = {
    "name": "measure",
    "description": "Measure points.\n\nSlowly.",
    "inputSchema": {
        "properties": {"points": {"type": "integer", "description": "how many"}, "place": {"type": "string"}}
    },
}


# ---------------------------------------------------------------- lines


def test_a_line_is_a_task_with_arguments():
    assert read(
        """lab measure 3 'a b' "[1, 2]" place=here n='{"a": 1}' --target w1,w2 --timeout 2"""
    ) == TaskLine("lab", "measure", [3, "a b", [1, 2]], {"place": "here", "n": {"a": 1}}, "w1,w2", 2.0)
    assert read("lab say x==y url?a=b").args == ["url?a=b"]
    assert read("lab say --target=w1 --timeout=2 - -1") == TaskLine("lab", "say", ["-", -1], {}, "w1", 2.0)


@for_each(
    ("line", "why"),
    [
        ("lab", "expected SERVICE TASK"),
        ("lab say 'open", "No closing quotation"),
        ("lab say --timeout", "--timeout ''"),
        ("lab reboot --targets w1", "no option '--targets', expected --target or --timeout"),
        ("lab reboot --", "no option '--'"),
        ("lab say --timeout never", "--timeout 'never'"),
        ("lab say --timeout inf", "--timeout 'inf'"),
        ("--target all lab", "expected SERVICE TASK"),
    ],
)
def test_a_line_that_is_none(line, why):
    with pytest.raises(UsageError, match=why):
        read(line)


# ---------------------------------------------------------------- completion


@pytest.fixture
def catalog():
    made = Catalog()
    made.take(
        [
            {"name": "w2", "service": "lab", "tasks": ["ping", "measure"]},
            {"name": "w1", "service": "lab", "tasks": ["ping"]},
            {"name": "old", "service": "norfab", "tasks": ""},
        ]
    )
    made.describe("lab", [SCHEMA, {"name": ""}, "nonsense", {"name": "ping", "inputSchema": None}])
    return made


def words(catalog, line):
    return [each.word for each in catalog.candidates(line)[1]]


def test_services_and_commands_come_first(catalog):
    assert words(catalog, "") == ["lab", "norfab", *COMMANDS]
    assert catalog.candidates("la")[0] == "la"
    assert words(catalog, "  se") == ["services"]
    assert catalog.candidates("lab")[1][0].what == "service, 2 workers"


def test_then_tasks_with_what_they_do(catalog):
    assert [(each.word, each.what) for each in catalog.candidates("lab ")[1]] == [
        ("measure", "Measure points."),
        ("ping", ""),
    ]
    assert words(catalog, "lab p") == ["ping"]
    assert words(catalog, "norfab ") == words(catalog, "nosuch ") == []


def test_then_arguments_that_are_not_given_yet(catalog):
    assert words(catalog, "lab measure ") == ["points=", "place=", *OPTIONS]
    assert catalog.candidates("lab measure po")[1][0].what == "integer how many"
    assert words(catalog, "lab measure points=3 p") == ["place="]
    assert words(catalog, "lab nosuch ") == list(OPTIONS)


def test_workers_of_the_service_are_targets(catalog):
    assert words(catalog, "lab ping --target ") == ["all", "any", "w1", "w2"]
    assert words(catalog, "lab ping --timeout ") == []
    assert words(catalog, "lab ping --target w1 --t") == ["--timeout"]


def test_what_is_gone_is_forgotten(catalog):
    catalog.take([{"name": "w9", "service": "other", "tasks": ["x"]}])
    assert catalog.services == ["other"]
    assert words(catalog, "lab ") == []


# ---------------------------------------------------------------- completion as a person gets it


TAB, ENTER, CTRL_C, CTRL_D = "\t", "\r", "\x03", "\x04"


def typed(catalog, *steps):
    """The lines that a person gets: each step is keys, and what the line becomes before the next ones are pressed."""

    async def press(pipe, session):
        for keys, becomes in steps:
            pipe.send_text(keys)
            while session.app is None or session.app.current_buffer.text != becomes:
                await asyncio.sleep(0.01)
        pipe.send_text(CTRL_D)

    async def lines():
        with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()) as session:
            async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
                tasks.create_task(press(pipe, session), name="keys")
                return [line async for line in typed_lines(catalog)]

    return asyncio.run(lines())


def test_tab_completes(catalog):
    assert typed(catalog, (f"nor{TAB}", "norfab"), (f" x{ENTER}", "")) == ["norfab x"]
    assert typed(
        catalog,
        (f"lab m{TAB}", "lab measure"),
        (f" poi{TAB}", "lab measure points="),
        (f"3 pl{TAB}", "lab measure points=3 place="),
        (f"here{ENTER}", ""),
    ) == ["lab measure points=3 place=here"]
    assert typed(
        catalog,
        (f"lab ping --ta{TAB}", "lab ping --target"),
        (f" w2{ENTER}", ""),
    ) == ["lab ping --target w2"]


def test_what_may_follow_is_shown_with_what_it_is(catalog):
    event = CompleteEvent(completion_requested=True)
    found = list(completer(catalog).get_completions(Document("lab measure po"), event))
    assert [(each.text, each.start_position, each.display_meta_text) for each in found] == [
        ("points=", -2, "integer how many")
    ]


def test_ctrl_c_gives_up_the_line_and_not_the_shell(catalog):
    assert typed(catalog, ("lab pi", "lab pi"), (CTRL_C, ""), (f"lab ping{ENTER}", "")) == ["lab ping"]


# ---------------------------------------------------------------- lines from a pipe, and from a person


@pytest.fixture
def ours(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    with FakeBroker(push=True) as fake:
        monkeypatch.setenv("HEADGATE_NFP", fake.endpoint)
        yield fake


def piped(monkeypatch, text, *options):
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))
    return main(["nfp", "shell", *options])


def test_lines_are_run_in_order(ours, monkeypatch, capsys):
    assert piped(monkeypatch, "# a remark\n\nhelp\nservices\ndummy ping n=3\nexit\ndummy fail\n") == exits.OK
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("SERVICE TASK")
    assert lines[-2:] == ["w1: 3", "w2: 3"]
    assert any(line.startswith("dummy ") for line in lines)


def test_the_first_failure_ends_a_script(ours, monkeypatch, capsys):
    assert piped(monkeypatch, "dummy fail --target w1\ndummy ping\n") == exits.FAILED
    assert "pong" not in capsys.readouterr().out
    assert piped(monkeypatch, "dummy\ndummy ping\n") == exits.USAGE
    assert "expected SERVICE TASK" in capsys.readouterr().err


def test_jobs_and_services_of_the_broker_itself(ours, monkeypatch, capsys):
    assert piped(monkeypatch, "dummy ping --target w1\njobs\nsid.service.broker get_inventory name=w1\n") == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:3] == ["id", "service", "task"]
    assert lines[-1] == 'broker: {"hosts":["w1"]}'


def test_a_person_needs_prompt_toolkit(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    assert main(["nfp", "shell"]) == exits.CONFIG
    assert lacking("prompt_toolkit") in capsys.readouterr().err


def test_workers_describe_their_tasks(rundir, monkeypatch, capsys):
    """TaskLine of real workers: the catalogue knows the arguments of a task that a worker of ours announces."""
    catalogs = []

    async def lines(catalog):
        catalogs.append(catalog)
        yield "nonsense\n"  # told, and not the end
        yield "filesharing list_files nf:// --target any\n"

    monkeypatch.setattr("broker.cli.nfp.shell.typed_lines", lines)
    monkeypatch.setattr("broker.cli.nfp.shell._check_prompt", lambda: None)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    with nfp_broker(rundir) as live:
        assert main(["nfp", "shell", "--broker", live.endpoint, "--base-dir", str(live.base_dir)]) == exits.OK
    said = capsys.readouterr()
    assert "expected SERVICE TASK" in said.err
    assert said.out.startswith("broker-files: ")
    assert "url=" in words(catalogs[0], "filesharing list_files ")
