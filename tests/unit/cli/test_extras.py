"""A verb whose libraries are not there says in one line what to install."""

import subprocess
import sys

import pytest

LACKING = """
import importlib.abc, sys

class Lacking(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"aiohttp", "typer", "rich", "numpy"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Lacking())
from broker.cli.main import main
raise SystemExit(main(sys.argv[1:]))
"""


def run(*words):
    return subprocess.run(
        [sys.executable, "-c", LACKING, *words], capture_output=True, text=True, timeout=30, check=False
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("up",), "headgate up: aiohttp is not installed: pip install headgate, or 'headgate-core[gateway]'"),
        (
            ("oslo", "status"),
            "headgate oslo: typer is not installed: pip install headgate, or 'headgate-core[cli]'",
        ),
    ],
)
def test_a_verb_that_lacks_a_library(words, said):
    done = run(*words)
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith(said)
    assert len(done.stderr.splitlines()) == 1


def test_what_becomes_a_proxy_lacks_nothing():
    assert run("oslo", "proxy", "--help").returncode == 0
