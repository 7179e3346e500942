"""Licences: what packages say is understood, what may not be used is refused, and the lock holds nothing of it."""

from email.message import Message

import pytest

from tests.reports import licences
from tests.reports.__main__ import main
from tests.reports.licences import Package, closure, expression_of, locked, verdict_of

pytestmark = pytest.mark.tools


def test_expressions():
    verdicts = {
        "MIT": "permissive",
        "Apache-2.0 AND BSD-3-Clause": "permissive",
        "Apache-2.0 OR GPL-2.0-only": "permissive",
        "(MIT OR GPL-2.0-only) AND ISC": "permissive",
        "Apache-2.0 WITH LLVM-exception AND MIT": "permissive",
        "MPL-2.0": "weak",
        "MIT and MPL-2.0": "weak",
        "GPL-3.0-or-later": "refused",
        "LGPL-2.1-only": "refused",
        "AGPL-3.0-only OR LicenseRef-Commercial": "refused",
        "MIT AND (GPL-2.0-only OR LGPL-3.0-only)": "refused",
        "SSPL-1.0": "refused",
        "": "refused",
        "unknown: see LICENSE": "refused",
    }
    assert {expression: verdict_of(expression) for expression in verdicts} == verdicts


def test_what_packages_say():
    for said, expression in (
        ({"License-Expression": "MIT", "License": "GPL"}, "MIT"),
        ({"License": "Apache-2.0"}, "Apache-2.0"),
        ({"License": "Apache 2.0"}, "Apache-2.0"),
        ({"Classifier": "License :: OSI Approved :: MIT License"}, "MIT"),
        ({"License": "Dual", "Classifier": "License :: OSI Approved :: BSD License"}, "BSD-3-Clause"),
        ({"License": "Copyright (c) 2020 Somebody ..."}, "unknown: Copyright (c) 2020 Somebody ..."),
        ({"License": "GPL-3.0"}, "GPL-3.0-only"),
        ({}, "unknown: nothing said"),
    ):
        message = Message()
        for name, value in said.items():
            message[name] = value
        assert expression_of(message) == expression, said


def test_what_an_extra_brings_and_what_not():
    stated = {
        "headgate": ["a>=1", "b; extra == 'spark'", "c; python_version < '3'", "d[x]; extra == 'test'"],
        "a": ["e"],
        "b": ["a", "f"],
        "e": ["a"],
        "d": ["g; extra == 'x'", "h; extra == 'y'"],
    }
    assert closure((), lambda name: stated.get(name, ())) == {"a", "e"}
    assert closure(("spark",), lambda name: stated.get(name, ())) == {"a", "b", "e", "f"}
    assert closure(("test",), lambda name: stated.get(name, ())) == {"a", "d", "e", "g"}


def test_lock_files():
    text = "# a comment\naiohttp==3.14.5\n\nPyYAML==6.0.3  # why\nx==1 ; python_version > '3'\n--hash=sha256:00\n"
    assert locked(text) == [("aiohttp", "3.14.5"), ("PyYAML", "6.0.3"), ("x", "1")]


def test_weak_copyleft_is_not_for_what_everybody_installs():
    assert Package("x", "1", "extras", "MPL-2.0", "weak").good
    assert not Package("x", "1", "base", "MPL-2.0", "weak").good
    assert not Package("x", "1", "tests", "GPL-3.0-only", "refused").good


def test_an_exception_is_for_tools_of_tests_only():
    assert Package("x", "1", "tests", "GPL-3.0-only", "excepted").good
    assert not Package("x", "1", "base", "GPL-3.0-only", "excepted").good
    assert not Package("x", "1", "extras", "GPL-3.0-only", "excepted").good


def test_the_lock_of_the_project(capsys, tmp_path):
    """What is installed here of it; CI installs all of it."""
    assert main(["licences", "--json", str(tmp_path / "licences.json")]) == 0
    assert "permissive" in capsys.readouterr().out
    base = {one.name for one in licences.packages() if one.group == "base"}
    assert {"aiohttp", "pyzmq", "msgspec", "cryptography"} <= base
    assert not {"pytest", "pyspark", "oslo.messaging"} & base


def test_a_lock_with_what_may_not_be(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(licences, "PERMISSIVE", licences.PERMISSIVE - {"MIT"})
    (tmp_path / "lock").write_text("rich==15.0.0\nno-such-package==1\n")
    assert main(["licences", "--lock", str(tmp_path / "lock")]) == 1
    assert "look at this" in capsys.readouterr().out
    monkeypatch.undo()
    assert main(["licences", "--lock", str(tmp_path / "lock")]) == 0
    assert main(["licences", "--lock", str(tmp_path / "lock"), "--complete"]) == 1
