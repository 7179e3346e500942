"""Certificates and the ZeroMQ transport against a real flux-core."""

import asyncio
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import LinkRefused
from broker.testing.harness import Recorder
from broker.transport import curve, zeromq
from broker.transport.link import Options
from broker.wire.message import request
from tests.live.ports import free_port

pytestmark = pytest.mark.interop
UUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
CONFIG = """[bootstrap]
curve_cert = "{rundir}/cert"
hosts = [
    {{ host = "{host}", bind = "tcp://127.0.0.1:{port}", connect = "tcp://127.0.0.1:{port}" }},
    {{ host = "elsewhere" }},
]
"""


def test_a_certificate_of_flux_keygen_loads(flux_prefix: Path, rundir: Path):
    subprocess.run(
        [flux_prefix / "bin/flux", "keygen", "--name", "their name", rundir / "cert"], check=True, timeout=30
    )
    certificate = curve.load(rundir / "cert")
    assert certificate.metadata["name"] == "their name"
    assert curve.decode(curve.encode(certificate)) == certificate


@contextlib.contextmanager
def flux_broker(flux_prefix: Path, rundir: Path, port: int) -> Iterator[None]:
    """Rank 0 of two, with our certificate in ``rundir``."""
    (rundir / "conf").mkdir()
    (rundir / "run").mkdir()
    text = CONFIG.format(rundir=rundir, host=socket.gethostname(), port=port)
    (rundir / "conf/bootstrap.toml").write_text(text)
    command = [
        flux_prefix / "bin/flux",
        "broker",
        "-c",
        rundir / "conf",
        f"-Srundir={rundir}/run",
        "-Sbroker.quorum=1",
    ]
    with (rundir / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "sleep", "60"], stdout=log, stderr=log, env={**os.environ, "HOME": str(rundir)}
        )
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def test_a_real_broker_reads_our_certificate_and_answers_our_dealer(flux_prefix: Path, rundir: Path):
    ours = curve.generate({"name": "headgate"})
    curve.save(ours, rundir / "cert")
    port = free_port()
    uri = f"tcp://127.0.0.1:{port}"
    hello = {"rank": 1, "version": 0x5800, "uuid": UUID, "status": 1, "hostname": "elsewhere"}

    async def check() -> None:
        client = curve.CurveClient(ours, ours.public_key)
        link, recorder = (
            await zeromq.transport.dial(uri, Options(extra={"curve": client, "identity": UUID.encode()})),
            Recorder(),
        )
        link.start(recorder)
        link.send(request("overlay.hello", json.dumps(hello).encode() + b"\0", rolemask=1))
        answer = (await recorder.count(1))[0]
        assert (answer.topic, answer.errnum) == ("overlay.hello", 0)
        assert len(json.loads(answer.payload.rstrip(b"\0"))["uuid"]) == 36
        link.close()
        stranger = curve.CurveClient(curve.generate(), ours.public_key)
        with pytest.raises(LinkRefused, match="ZAP 400"):
            await zeromq.transport.dial(uri, Options(extra={"curve": stranger}))
        mistaken = curve.CurveClient(ours, curve.generate().public_key)
        with pytest.raises(LinkRefused, match="not the one we expect"):
            await zeromq.transport.dial(uri, Options(extra={"curve": mistaken}))

    with flux_broker(flux_prefix, rundir, port):
        asyncio.run(check())
