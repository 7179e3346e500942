"""What is said about the build that runs."""

import platform
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES

import pytest

from broker import __version__
from broker.cli import build, doctor, exits
from broker.cli.main import main


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package with three modules, of which ``so`` is compiled and shadows its source."""
    folder = tmp_path / "halfway"
    folder.mkdir()
    for name in ("__init__.py", "a.py", "b.py", "so.py", f"so{EXTENSION_SUFFIXES[0]}"):
        (folder / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    yield "halfway"
    sys.modules.pop("halfway", None)


@pytest.mark.parametrize(
    ("modules", "said"),
    [
        (("a", "b"), "pure Python"),
        (("so",), "compiled"),
        (("a", "so", "b"), "partly compiled: 1 of 3 modules looked at"),
    ],
)
def test_the_build_is_what_the_modules_are(package, modules, said, monkeypatch):
    monkeypatch.setattr(build, "SAMPLES", [f"{package}.{module}" for module in modules])
    assert build.build().startswith(f"{said}, ")
    assert doctor._build().level == ("warn" if said.startswith("partly") else "ok")


def test_a_module_that_is_not_there_is_not_compiled(package):
    assert not build.compiled(f"{package}.nowhere")


def test_version_names_the_build(capsys):
    assert main(["--version", "-v"]) == 0
    assert re.fullmatch(
        rf"headgate {__version__} \((pure Python|compiled), \w+ {platform.python_version()}\)\n",
        capsys.readouterr().out,
    )
    assert main(["--version", "now"]) == exits.USAGE
