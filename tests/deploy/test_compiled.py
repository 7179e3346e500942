"""What becomes compiled: the files with the mark, which have to be such as the compiler can do."""

import ast
import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import PurePath

import pytest

from broker.cli import build
from tests.deploy import compiled
from tests.deploy.compiled import ROOT, marked

MARK = compiled.HOOK["MARK"]
FILES = marked(ROOT)


def test_a_file_with_the_mark_on_a_line_of_its_own_is_compiled(tmp_path):
    for name, text in {
        "broker/wire/hot.py": f'"""Hot."""\n\n{MARK}\n\nx = 1\n',
        "gateway/__init__.py": MARK,
        "broker/cold.py": f'"""Not\n\n    {MARK}\n"""\nx = 1  {MARK}\n',
        "tests/test_hot.py": MARK,
    }.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert marked(tmp_path) == ["broker/wire/hot.py", "gateway/__init__.py"]


def test_the_corridor_is_compiled():
    assert {"broker/node/broker.py", "broker/routing/router.py", "broker/wire/message.py"} < set(FILES)


def test_each_folder_with_a_compiled_file_has_a_sample():
    """So that ``headgate --version -v`` does not take half a wheel for a whole one."""
    samples = {each.replace(".", "/") + ".py" for each in build.SAMPLES}
    assert samples <= set(FILES)
    assert {PurePath(each).parent for each in FILES} == {PurePath(each).parent for each in samples}


def named_for_types_only(tree):
    """Names in the fields of a module's named tuples, data classes and typed dicts that exist for checkers only."""
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
        and (each.decorator_list or re.search("Tuple|TypedDict", " ".join(map(ast.unparse, each.bases))))
        for field in each.body
        if isinstance(field, ast.AnnAssign)
    ]
    return {name.id for each in fields for name in ast.walk(each) if isinstance(name, ast.Name)} & typing_only


def structs(tree):
    """Classes that decode by annotations."""
    return {
        each.name
        for each in tree.body
        if isinstance(each, ast.ClassDef) and any("Struct" in ast.unparse(base) for base in each.bases)
    }


@pytest.mark.parametrize(
    ("wanted", "field"), [("from a import B", "B | None"), ("import B", "B.C"), ("import B.c", "B.c.D")]
)
def test_a_type_that_only_checkers_import_is_found(wanted, field):
    sample = f"if TYPE_CHECKING:\n    {wanted}\nclass C(NamedTuple):\n    b: {field}\n"
    assert named_for_types_only(ast.parse(sample)) == {"B"}
    assert structs(ast.parse(sample.replace("NamedTuple", "msgspec.Struct, frozen=True"))) == {"C"}


def test_the_compiler_finds_the_types_of_fields():
    """It evaluates them, whatever ``from __future__ import annotations`` says, and leaves no annotations behind."""
    trees = {file: ast.parse((ROOT / file).read_text()) for file in FILES}
    assert {file: found for file, tree in trees.items() if (found := named_for_types_only(tree))} == {}
    assert {file: found for file, tree in trees.items() if (found := structs(tree))} == {}


def test_a_module_that_is_no_extension_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "halfway"
    folder.mkdir()
    for name in ("__init__.py", "cold.py", "hot.py", f"hot{EXTENSION_SUFFIXES[0]}"):
        (folder / name).touch()
    monkeypatch.syspath_prepend(tmp_path)
    modules = [compiled.module(f"halfway/{name}.py") for name in ("__init__", "cold", "hot", "nowhere")]
    assert modules == ["halfway", "halfway.cold", "halfway.hot", "halfway.nowhere"]
    assert compiled.pure(modules) == [
        f"halfway: {folder / '__init__.py'}",
        f"halfway.cold: {folder / 'cold.py'}",
        "halfway.nowhere: not there",
    ]
    sys.modules.pop("halfway", None)
