"""The checker knows nothing of the product, so that it cannot share its mistakes."""

import ast
import sys
from pathlib import Path

import pytest

from tests.proof import checker, logs, record, scribe

pytestmark = pytest.mark.tools

FILES = [Path(each.__file__) for each in (record, logs, scribe)] + [
    *Path(checker.__file__).parent.glob("*.py")
]


def imported(path: Path) -> set[str]:
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or "")
    return names


def test_it_imports_the_standard_library_and_itself_only():
    ours = ("tests.proof.checker", "tests.proof.record", "tests.proof.logs", "tests.proof.scribe")
    foreign = {
        f"{path.name}: {name}"
        for path in FILES
        for name in imported(path) - {"tests.proof"}
        if name.partition(".")[0] not in sys.stdlib_module_names and not name.startswith(ours)
    }
    assert foreign == set()


def test_every_rule_is_written_down():
    text = checker.__doc__ or ""
    for number in range(15):
        assert f"\nC{number} " in text
