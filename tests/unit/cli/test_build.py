"""What is said about the build that runs."""

import ast
import platform
import re
import sys
import tomllib
from fnmatch import fnmatch
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from broker import __version__
from broker.cli import build, doctor, exits
from broker.cli.main import main

INCLUDED = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["tool"]["hatch"][
    "build"
]["targets"]["wheel"]["hooks"]["mypyc"]["include"]


def file_of(module: str) -> str:
    return module.replace(".", "/") + ".py"


def test_each_room_that_is_compiled_has_a_sample():
    samples = [file_of(module) for module in build.SAMPLES]
    assert all(any(fnmatch(sample, each) for each in INCLUDED) for sample in samples)
    assert {Path(each).parent for each in INCLUDED if "/" in each} <= {
        Path(sample).parent for sample in samples
    }


def named_for_types_only(source):
    """Names in the fields of a module's named tuples, msgspec structs and data classes that exist for checkers only."""
    tree = ast.parse(source)
    typing_only = {
        (alias.asname or alias.name).partition(".")[0]
        for block in tree.body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for each in block.body
        if isinstance(each, ast.Import | ast.ImportFrom)
        for alias in each.names
    }
    fields = [
        field.annotation
        for each in tree.body
        if isinstance(each, ast.ClassDef)
        and (
            each.decorator_list or re.search("Tuple|Struct|TypedDict", " ".join(map(ast.unparse, each.bases)))
        )
        for field in each.body
        if isinstance(field, ast.AnnAssign)
    ]
    return {name.id for each in fields for name in ast.walk(each) if isinstance(name, ast.Name)} & typing_only


def test_a_compiled_room_finds_the_types_of_its_fields():
    """The compiler evaluates them, whatever ``from __future__ import annotations`` says."""
    for wanted, field in (("from a import B", "B | None"), ("import B", "B.C"), ("import B.c", "B.c.D")):
        for base in ("NamedTuple", "msgspec.Struct"):
            sample = f"if TYPE_CHECKING:\n    {wanted}\nclass C({base}):\n    b: {field}\n"
            assert named_for_types_only(sample) == {"B"}
    root = Path(__file__).parents[3]
    files = [path for each in INCLUDED for path in root.glob(each)]
    assert {str(path): wrong for path in files if (wrong := named_for_types_only(path.read_text()))} == {}


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
