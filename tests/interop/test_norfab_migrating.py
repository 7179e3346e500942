"""``broker/nfp/MIGRATING.md`` with deployed NorFab: its workers and clients at our broker, its workers under ours."""

from pathlib import Path

import pytest

from tests.live.migrating import Lab, block
from tests.live.norfab import norfab_python
from tests.live.ports import free_endpoint

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

MAKE_KEYS = """\
from norfab.core.nfapi import NorFab
nf = NorFab(inventory="./inventory.yaml")
nf.start(run_broker=True, run_workers=False)
nf.destroy()
"""
ALL = r"up after .*: broker, greeter-1, greeter-2\n"
FOUND = "greeter-1 ['hello ada'] False\ngreeter-2 ['hei ada'] False\n"


def test_one_after_the_other(rundir: Path) -> None:
    python = Path(norfab_python())
    theirs = Lab(rundir, free_endpoint(), python.parent)
    theirs.environ["PYTHONPATH"] = ""
    (theirs.folder / "make_keys.py").write_text(MAKE_KEYS)
    theirs.run("python make_keys.py")
    ours = {"PATH": theirs.environ["PATH"].partition(":")[2], "PYTHONPATH": str(Path(__file__).parents[2])}

    first = block("sh", "install -D").replace("~/.local/state", str(rundir / "state"))
    with theirs.running(first, r"up after .*: broker\n", **ours):
        shown = theirs.run(block("sh", "headgate nfp keys broker"), **ours).strip()
        assert shown in (theirs.folder / "__norfab__/files/broker/public_keys/broker.key").read_text()
        with theirs.running(block("sh", "nfcli -w"), ""):
            theirs.run("until headgate nfp services | grep greeter-2; do sleep 0.3; done", **ours)
            assert theirs.run(block("sh", "python client.py")) == FOUND

    words = block("sh", "--norfab ~/norfab/bin/python").replace("~/norfab/bin/python", str(python))
    with theirs.running(words, ALL, **ours):
        theirs.run(block("sh", "unpin client_"), **ours)
        assert theirs.run(block("sh", "python -m broker.nfp.norfab client.py"), **ours) == FOUND

    (theirs.folder / "greeter.py").write_text(block("python", "# greeter.py"))
    (theirs.folder / "workers" / "common.yaml").write_text(block("yaml", "# workers/common.yaml"))
    with theirs.running(first, r"up after .*: broker\n", **ours):
        theirs.run(block("sh", "for name in"), **ours)
    with theirs.running(block("sh", "headgate nfp up\n"), ALL, **ours):
        theirs.run(
            block("sh", "unpin client_"), **ours
        )  # the broker was started again, and has jobs of the old key
        assert theirs.run(block("sh", "python -m broker.nfp.norfab client.py"), **ours) == FOUND
