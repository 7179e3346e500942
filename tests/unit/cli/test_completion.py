"""What a shell offers while a command is typed: the same verbs and options as there are."""

import os
import pty
import select
import shutil
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

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


@pytest.fixture
def shell_environment(rundir: Path) -> dict[str, str]:
    """Its ``headgate`` completes as the program does; whatever else is asked of it, it says what it was called with."""
    command = rundir / "headgate"
    command.write_text(
        f"""#!/bin/sh
[ "$1" = completion ] && exec {sys.executable} -m broker.cli.main "$@"
echo "called: $*"
"""
    )
    command.chmod(0o755)
    return {**os.environ, "PATH": f"{rundir}:{os.environ['PATH']}", "HOME": str(rundir), "TERM": "dumb"}


def said_by(shell: str, script: str, environment: dict[str, str]) -> str:
    done = subprocess.run(
        [*shell.split(), "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
        check=True,
    )
    return done.stdout


def test_bash_offers_them(shell_environment):
    script = f"""
{SCRIPTS["bash"]}
COMP_WORDS=(headgate sub --co); COMP_CWORD=2; _headgate; echo "${{COMPREPLY[@]}}"
COMP_WORDS=(headgate ""); COMP_CWORD=1; _headgate; echo "${{#COMPREPLY[@]}}"
"""
    assert said_by("bash", script, shell_environment) == f"--count\n{len(verbs.BUILT_IN)}\n"


def test_fish_offers_them(shell_environment):
    if shutil.which("fish") is None:
        pytest.skip("optional: there is no fish")
    ask = """
headgate completion fish | source
complete -C 'headgate sub --co'
complete -C 'headgate journal sh' | cut -f1
complete -C 'headgate ' | count
complete -C 'headgate journal show '
"""
    offers = said_by("fish --no-config", ask, shell_environment).splitlines()
    assert offers[0] == f"--count\t{dict(candidates(['sub', '--co']))['--count']}"
    assert offers[1:4] == ["ship", "show", str(len(verbs.BUILT_IN))]
    assert "pyproject.toml" in offers[4:]  # nothing of ours may stand there: a file may


def test_zsh_offers_them(shell_environment):
    """Typed on a terminal, for its completion works nowhere else."""
    if shutil.which("zsh") is None:
        pytest.skip("optional: there is no zsh")
    child, terminal = pty.fork()
    if not child:
        os.execvpe("zsh", ["zsh", "-f", "-i"], shell_environment)
    seen = ""

    def typed(keys: str, until: str) -> str:
        nonlocal seen
        os.write(terminal, keys.encode())
        seen = ""
        while until not in seen:
            assert select.select([terminal], [], [], 20)[0], seen
            seen += os.read(terminal, 4096).decode(errors="replace")
        return seen

    try:
        typed(
            "PS1=; autoload -Uz compinit; compinit -u -D; . <(headgate completion zsh); echo it is re''ady\n",
            "ready",
        )
        typed("headgate sub --co\tand what follows\n", "called: sub --count and what follows")
        typed("headgate journal sh\t\t", "show ")
        offers = dict(candidates(["journal", "sh"]))
        assert "ship" in seen
        assert offers["ship"][:30] in seen
    finally:
        os.close(terminal)
        os.waitpid(child, 0)


def test_a_script_for_each_shell_and_nothing_else():
    for shell, script in SCRIPTS.items():
        assert headgate("completion", shell).stdout == script
    assert headgate("completion", "--help").stdout == completion.USAGE
    assert headgate("completion", "csh").returncode == 2
