"""`headgate up --journal --pipeline`: tables of what passes, by a process beside it, from the first call to Ctrl-C."""

import re
import signal
import subprocess
from pathlib import Path

import pytest

from broker.client.blocking import connect
from gateway.pipeline import verify
from gateway.pipeline.warehouse import Warehouse
from tests.live.attached import HEADGATE, until_said
from tests.live.brokers import eventually

CALLS = 5
COLD_S = 200.0
"""Until a session is there and gold is made: seconds where nothing else runs."""
LEAVE_S = 60.0


@pytest.mark.timeout(420)
def test_calls_are_rows_of_gold_and_ctrl_c_ends_all(java, rundir: Path) -> None:
    journal, warehouse = rundir / "journal", Warehouse(rundir / "warehouse")
    words = ["up", "--rundir", str(rundir / "run"), "--listen", "http://127.0.0.1:0", "--no-login"]
    words += ["--journal", str(journal), "--pipeline", "--history", str(warehouse.root)]
    log = rundir / "up.log"
    with log.open("wb") as errors:
        process = subprocess.Popen([*HEADGATE, *words], stdout=subprocess.PIPE, stderr=errors)
    try:
        said = until_said(process, "Ctrl-C ends it\n", log)
        assert f"half a minute behind it or more: {warehouse.root}" in said
        (uri,) = re.findall(r"FLUX_URI=(\S+)", said)
        with connect(uri) as h:
            for _ in range(CALLS):
                h.rpc("service.providers", {"service": "broker"})

        def counted() -> int:
            if not any(warehouse.root.glob("traffic/dt=*/*")):
                return 0
            rows = warehouse.scan("traffic", ["topic", "type", "direction", "n"]).to_pylist()
            asked = {"topic": "service.providers", "type": "request", "direction": "in"}
            return sum(row["n"] for row in rows if asked.items() <= row.items())

        eventually(counted, CALLS, COLD_S)
        process.send_signal(signal.SIGINT)
        assert process.wait(LEAVE_S) == 0, log.read_text()[-2000:]
        assert log.read_text() == ""
        assert counted() == CALLS
        assert verify.verify(journal, warehouse).ok
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
