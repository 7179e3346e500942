"""What a shell offers while a command is typed: the same verbs and options as there are."""

import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from broker.cli import completion, verbs
from broker.cli.completion import SCRIPTS, candidates
from broker.client import blocking
from tests.live.brokers import eventually
from tests.live.verbs import headgate
from tests.tables import for_each
from tests.unit.cli.test_help_pages import pages


def offered(*words):
    return [word for word, _what in candidates(words)]


@for_each("page", pages)
def test_every_verb_offers_its_options(page):
    found = offered(*page, "--")
    assert ("--help" in found) is (page != ("completion",) and not hasattr(import_module_of(page), "VERBS"))


def import_module_of(page):
    module = import_module(verbs.module_of(page[0]))
    return import_module(f"{module.__name__}.{page[1]}") if len(page) > 1 else module


def test_words_are_offered_as_they_begin():
    assert offered("st") == ["start", "status", "stats"]
    assert set(offered("")) == set(verbs.BUILT_IN)
    assert offered("journal", "sh") == ["show", "ship"]
    assert offered("attr", "") == ["get", "list", "set", "rm"]
    assert offered("attr", "get", "--js") == ["--json"]
    assert offered("up", "--bro") == ["--broker-config", "--broker-set"]
    assert offered("completion", "") == list(SCRIPTS)
    assert offered("nosuch", "") == offered("journal", "nosuch", "") == []
    assert all("\t" not in what and "\n" not in what for _word, what in candidates(["nfp", "run", "--"]))


def test_what_rpc_can_call_is_asked_of_the_broker(broker, monkeypatch):
    other = broker.replace("local-0", "local-1")
    with blocking.connect(other) as h, h.service("completed", {"me": lambda _request: {}}):
        h.rpc("completed.me")
        eventually(lambda: offered("rpc", "--json", "--anywhere", "completed"), ["completed."])
        assert offered("rpc", "--uri", other, "completed") == ["completed.", "completed.me"]
    assert offered("rpc", "--uri", "") == offered("rpc", "completed.me", "") == offered("sub", "comp") == []
    monkeypatch.setenv("HEADGATE_URI", "local:///nowhere")
    assert offered("rpc", "") == []
    assert offered("rpc", "--any") == ["--anywhere"]


def test_asking_for_options_leaves_nothing_behind():
    assert offered("sub", "--count") == ["--count"]
    assert headgate("sub", "--nosuch").returncode == 2


def test_bash_offers_them(rundir: Path):
    script = f"""
{SCRIPTS["bash"]}
COMP_WORDS=(headgate sub --co); COMP_CWORD=2; _headgate; echo "${{COMPREPLY[@]}}"
COMP_WORDS=(headgate ""); COMP_CWORD=1; _headgate; echo "${{#COMPREPLY[@]}}"
"""
    command = rundir / "headgate"
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m broker.cli.main "$@"\n')
    command.chmod(0o755)
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PATH": f"{rundir}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    assert done.stdout == f"--count\n{len(verbs.BUILT_IN)}\n"


def test_a_script_for_each_shell_and_nothing_else():
    for shell, script in SCRIPTS.items():
        assert headgate("completion", shell).stdout == script
    assert headgate("completion", "--help").stdout == completion.USAGE
    assert headgate("completion", "csh").returncode == 2
