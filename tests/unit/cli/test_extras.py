"""A verb whose libraries are not there says in one line what to install."""

import json
import re
import subprocess
import sys
import tomllib

import pytest

from broker import extras
from tests.deploy.paths import ROOT

LACKING = """
import importlib.abc, sys

class Lacking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Lacking())
from broker.cli.main import main
raise SystemExit(main(sys.argv[1:]))
"""
MODULES = {
    "Jinja2": "jinja2",
    "PyJWT": "jwt",
    "PyYAML": "yaml",
    "oslo.messaging": "oslo_messaging",
}
"""Distribution -> its module, where it is called otherwise."""
PARTS = {"cli": "all", "gateway": "all", "nfp": "all"}


def run(*words, absent=("aiohttp", "typer", "rich", "numpy")):
    script = LACKING.replace("{ABSENT}", repr(set(absent)))
    return subprocess.run(
        [sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
        cwd=ROOT,
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up",), "headgate up: aiohttp is not installed: pip install '.[all]'\n"),
        (("oslo", "status"), "headgate oslo: typer is not installed: pip install '.[all]'\n"),
    ],
)
def test_a_verb_that_lacks_a_library(words, said):
    done = run(*words)
    assert (done.returncode, done.stdout, done.stderr) == (78, "", said)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "pipeline batch --journal j --warehouse w",
            "deltalake, numpy, pandas, pyarrow, pyspark, typer are not installed: pip install '.[all,spark]'",
        ),
        (
            "pipeline verify -j j -w w",
            "deltalake, numpy, pyarrow, typer are not installed: pip install '.[all,history,journal]'",
        ),
        (
            "pipeline describe --warehouse deploy",
            "deltalake, pyarrow, typer are not installed: pip install '.[all,history]'",
        ),
    ],
)
def test_the_pipeline_without_its_extras(words, said):
    absent = ("deltalake", "numpy", "pandas", "pyarrow", "pyspark", "typer")
    done = run(*words.split(), "--json", absent=absent)
    assert (done.returncode, done.stdout) == (78, "")
    assert json.loads(done.stderr)["error"] == said


def test_a_library_that_is_there_and_broken_is_not_called_missing(tmp_path):
    (tmp_path / "typer.py").write_text("from rich.nowhere import gone\n")
    script = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); from broker.cli.main import main; main(['status'])"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=30, check=False, cwd=ROOT
    )
    assert done.returncode == 1
    assert done.stderr.endswith("ModuleNotFoundError: No module named 'rich.nowhere'\n")


def test_what_becomes_a_proxy_lacks_nothing():
    assert run("oslo", "proxy", "--help").returncode == 0


def test_what_to_type_depends_on_where_headgate_runs(monkeypatch, tmp_path):
    monkeypatch.chdir(ROOT)
    assert extras.install("all") == "pip install '.[all]'"
    monkeypatch.chdir(tmp_path)
    assert extras.install("all") == f"pip install '{ROOT}[all]'"
    monkeypatch.setattr(extras, "_ROOT", f"{tmp_path}/site-packages")
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin")
    assert (
        extras.install("redis") == f"{tmp_path}/bin/pip install 'headgate[redis]'"
    )  # this one is not activated
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/pip").touch(mode=0o755)
    assert extras.install("redis") == "pip install 'headgate[redis]'"
    (tmp_path / "pipx_metadata.json").touch()
    assert extras.install("all") == "pipx runpip headgate install 'headgate[all]'"


def test_extras_bring_what_is_said_of_them():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    listed = project["optional-dependencies"]
    assert names(project["dependencies"]) == {"PyNaCl", "msgspec", "pyzmq"}
    assert listed["all"] == ["headgate[cli,gateway,nfp]"]
    ours = ("cli", "gateway", "nfp", "oslo", "redis", "journal", "history", "spark")
    brought = {
        MODULES.get(name, name.replace("-", "_")): PARTS.get(extra, extra)
        for extra in ours
        for name in names(listed[extra]) - {"headgate", "protobuf"}
    }
    assert brought == extras.EXTRA_OF


def names(requirements):
    return {re.match(r"[A-Za-z0-9._-]+", line)[0] for line in requirements}
