"""Mutants keep up with the product: each finds its text there, once, and leaves code that is still Python."""

import ast

import pytest

from tests.proof.mutants import MUTANTS, ROOT, Outdated, make
from tests.proof.returns import SCENES

pytestmark = pytest.mark.tools


def test_each_applies():
    outdated = []
    for mutant in MUTANTS:
        text = (ROOT / mutant.file).read_text()
        if text.count(mutant.old) != 1:
            outdated.append(mutant.name)
        ast.parse(text.replace(mutant.old, mutant.new))
    assert outdated == []


def test_a_copy_has_the_mutant_and_nothing_else_is_touched(tmp_path):
    mutant = MUTANTS[0]
    make(mutant, tmp_path)
    assert mutant.new in (tmp_path / mutant.file).read_text()
    assert mutant.old in (ROOT / mutant.file).read_text()
    assert (tmp_path / "tests/proof/drive.py").exists()


def test_a_mutant_of_another_version_says_so(tmp_path):
    with pytest.raises(Outdated, match="0 times"):
        make(MUTANTS[0]._replace(old="no such text"), tmp_path)


def test_every_guarded_rule_is_one_of_the_checker():
    assert {mutant.rule for mutant in MUTANTS} >= {"C1", "C2", "C7", "C8", "C9", "C10", "C13", "C14"}


def test_scenes_that_mutants_are_for_are_there():
    assert {mutant.plan for mutant in MUTANTS if isinstance(mutant.plan, str)} <= SCENES.keys()
