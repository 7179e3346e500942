"""deploy/install.py tells uv what pip is configured with, and leaves to pip what it cannot tell."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys

import pytest

from tests.deploy.paths import ROOT

pytestmark = pytest.mark.tools

INSTALL = runpy.run_path(str(ROOT / "deploy/install.py"))


def test_uv_is_told_of_the_index_that_pip_is_configured_with(tmp_path, monkeypatch):
    files = tmp_path / "pip.conf"
    files.write_text(
        "[global]\nindex-url = http://a/simple\ntimeout = 3\n[install]\nfind-links =\n  /x\n  /y\n"
    )
    for name in [each for each in os.environ if each.startswith(("PIP_", "UV_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", str(files))
    monkeypatch.setenv("PIP_INDEX_URL", "http://b/simple")
    options = INSTALL["configured"]()
    told = INSTALL["environment"](options)
    assert told["UV_DEFAULT_INDEX"] == "http://b/simple"
    assert told["UV_FIND_LINKS"] == "/x,/y"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://c/simple")
    assert INSTALL["environment"](options)["UV_DEFAULT_INDEX"] == "http://c/simple"


def test_pip_does_what_uv_cannot_be_told_or_does_not_manage(tmp_path, monkeypatch):
    assert INSTALL["environment"]({"no-binary": ":all:"}) is None
    program = tmp_path / "uv"
    program.write_text("#!/bin/sh\nexit 1\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    ran = []
    done = subprocess.CompletedProcess([], 0, "", "")

    def run(command, **_):
        ran.append(command)
        return subprocess.CompletedProcess([], 1) if command[0] == str(program) else done

    monkeypatch.setattr(subprocess, "run", run)
    assert INSTALL["main"](["--python", "other", "thing"]) == 0
    assert ran[-3] == [str(program), "pip", "install", "--quiet", "--python", "other", "thing"]
    assert ran[-1][:4] == [sys.executable, "-m", "pip", "--disable-pip-version-check"]
    assert ran[-1][4:6] == ["--python", "other"]
    assert ran[-1][-1] == "thing"
