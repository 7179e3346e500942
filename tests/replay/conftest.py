"""A tree of four as the captures had it: ours, and one of a real flux-core."""

import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from tests.live.brokers import tree

SIZE = 4


@pytest.fixture(scope="module")
def headgate(module_rundir):
    """The URI of rank 0 of four; guests may connect."""
    extra = "[access]\nallow_guest_user = true\n"
    with tree(module_rundir, SIZE, extra) as running:
        module_rundir.chmod(0o711)
        yield running.ranks[0].uri


@pytest.fixture(scope="module")
def flux_core(flux_prefix):
    """The same of a real flux-core."""
    rundir = Path(tempfile.mkdtemp(prefix="hg-", dir="/tmp"))
    config = rundir / "config"
    config.mkdir()
    (config / "access.toml").write_text("[access]\nallow-guest-user = true\n")
    command = [str(flux_prefix / "bin" / "flux"), "start", f"--test-size={SIZE}", "--test-hosts=node[0-3]",
               f"--config-path={config}", "-Stbon.topo=kary:2", "sh", "-c", "echo $FLUX_URI; exec cat"]  # fmt: skip
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        uri = process.stdout.readline().strip()
        for directory in Path(uri.removeprefix("local://")).parents:
            if directory.name.startswith("flux-"):
                directory.chmod(0o711)
        yield uri
    finally:
        process.stdin.close()
        process.wait(30)
        process.stdout.close()
        shutil.rmtree(rundir, ignore_errors=True)
