"""What the README and the guides tell people to type works, and says what is true."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from broker.cli import exits
from broker.settings import loads
from broker.transport import curve
from tests.live.listeners import one_place
from tests.live.pages import ROOT, Page, blocks

PROGRAMS = Page("guides/programs.md").block
DEPLOY = Page("guides/deploy.md").block
DIALECTS = Page("guides/dialects.md").block
COMMAND_LINE = Page("reference/command-line.md")
START = [sys.executable, "-m", "broker.cli.main", "start"]


def inside(size: str, *command: str) -> str:
    """Output of a command in a local tree."""
    env = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*START, "--size", size, "--", *command],
        capture_output=True,
        text=True,
        env=env,
        timeout=50,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.smoke
def test_the_readme_looks_around_and_calls():
    _make, (_sh, script), (_python, program) = blocks(ROOT / "README.md")
    out = inside("4", "bash", "-ec", f"{script}\npython -c {shlex.quote(program)}")
    assert "(4 full)" in out
    assert out.endswith('{"value":"4","flags":1}\n4 brokers\n')


@pytest.mark.patient
def test_five_minutes_on_the_command_line():
    script = (
        "set -e\n"
        + PROGRAMS("sh", "headgate status")
        + PROGRAMS("sh", "rpc attr.get")
        + PROGRAMS("sh", "pub hello.world '")
    )
    out = inside("4", "bash", "-c", script)
    assert "(4 full)" in out
    assert "3!broker.ping seq=2" in out
    assert '{"value":"4","flags":1}\n{"value":"3","flags":1}\n' in out
    assert re.search(r'^\d+ hello\.world \{"from":"me"\}$', out, re.MULTILINE)


@pytest.mark.patient
def test_first_python_program():
    out = inside("4", sys.executable, "-c", PROGRAMS("python", 'h.subscribe("hello.'))
    assert re.fullmatch(r"4 brokers\n\d+ hello\.world \{'from': 'python'\}\n", out)


@pytest.mark.patient
def test_service_in_python(rundir):
    (rundir / "calc.py").write_text(PROGRAMS("python", "h.service"))
    script = "set -em\n" + PROGRAMS("sh", "python calc.py").replace("calc.py", f"{rundir}/calc.py")
    *answers, _head, row, anywhere = inside("2", "bash", "-c", script).splitlines()
    assert answers == ['{"sum":6}', '{"n":0}', '{"n":1}', '{"n":2}']
    assert (row.split()[:2], anywhere) == (["calc", "0"], '{"sum":9}')


def test_configuration_is_one():
    text = DEPLOY("toml", "[[hosts]]")
    assert loads(text).size == 2
    assert tomllib.loads(text)["access"]["allow_guest_user"] is True


def test_older_dialects_are_settings():
    entries = loads(DIALECTS("toml", "strict_rfc3")).listen
    assert [(entry.dialect, entry.strict_rfc3) for entry in entries] == [("cmb1", False), ("flux1", True)]


def test_a_dialer_of_an_older_dialect_is_let_in(rundir, monkeypatch):
    async def script():
        names = {}
        exec(DIALECTS("python", "Options(dialect="), names)
        async with names["join"](place.uri, place.server_key) as h:
            assert await h.size() == 1

    with one_place(rundir, 'dialect = "cmb1"') as place:
        curve.save(place.client, rundir / "me.cert")
        monkeypatch.chdir(rundir)
        asyncio.run(script())


def test_exit_codes_are_those_of_the_command():
    listed = re.findall(r"^\| (\d+) \| (.+) \|$", COMMAND_LINE.path.read_text(), re.MULTILINE)
    assert [(int(code), meaning) for code, meaning in listed] == list(exits.MEANINGS)
    named = {code for name, code in vars(exits).items() if name.isupper() and isinstance(code, int)}
    assert named == {code for code, _ in exits.MEANINGS}


@pytest.mark.interop
def test_real_flux_command(flux_prefix):
    commands = Page("guides/flux.md").block("sh", "flux overlay status")
    script = "set -e\n" + commands.replace("flux ", f"{flux_prefix}/bin/flux ")
    out = inside("4", "bash", "-c", script)
    assert "3!broker.ping" in out
    assert "overlay" in out


@pytest.mark.patient
@pytest.mark.timeout(180)
def test_a_test_cluster_and_faults_in_it(rundir: Path):
    script = Page("guides/clusters.md").block("sh", "headgate cluster up")
    env = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "XDG_STATE_HOME": f"{rundir}/state",
        "XDG_RUNTIME_DIR": str(rundir),
    }
    done = subprocess.run(
        ["bash", "-c", f"set -e\ntrap 'headgate cluster down' ERR\n{script}"],
        capture_output=True,
        text=True,
        env=env,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "paused" in done.stdout
