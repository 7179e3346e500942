"""The broker's disk fills up: new jobs are refused with a reason, those it has go on, and it recovers by itself."""

import contextlib
import os
import subprocess
import time

import msgspec
import pytest

from broker.nfp.names import Command
from tests.live.nfp import PATIENCE_S, nfp_process, ready, reply, request

pytestmark = [pytest.mark.story, pytest.mark.patient]


@pytest.fixture
def small(rundir):
    """A file system of two MiB in the place of the base directory."""
    if os.getuid() != 0:
        pytest.skip("optional: needs root to mount a small file system")
    place = rundir / "nfp"
    place.mkdir(mode=0o700)
    command = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=0700", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("optional: needs the right to mount a small file system")
    yield place
    subprocess.run(["umount", "--lazy", str(place)], check=True)


def fill(place) -> None:
    with (place / "filler").open("wb", buffering=0) as file:
        for size in (65536, 4096, 1):
            with contextlib.suppress(OSError):  # full, for this size
                while file.write(bytes(size)) == size:
                    pass


def test_a_full_disk(rundir, small):
    body = b'{"task":"keep","data":"%s"}' % (b"x" * 20_000)
    with nfp_process(rundir) as live, live.dealer("w1") as worker, live.dealer("c1") as client:
        worker.say(ready())
        client.say(request(Command.POST, "before"))
        client.until(lambda packet: packet.status == 202)
        post = worker.hear()
        fill(small)
        refused = None
        for number in range(200):
            client.say(request(Command.POST, f"u{number}", body=body, service="later"))
            answer = client.hear()
            if answer.status == 500:
                refused = answer
                break
            assert answer.status == 300
        assert refused is not None, "the disk never was full"
        assert "full" in msgspec.json.decode(refused.body)["error"]
        assert live.process.poll() is None
        worker.say(reply(post, 200, b'{"w1":{"result":"late"}}'))
        client.say(request(Command.POST, "during"))
        assert client.until(lambda packet: packet.uuid == "during").status == 500
        (small / "filler").unlink()
        until = time.monotonic() + PATIENCE_S
        status, number = 500, 0
        while status == 500:
            assert time.monotonic() < until
            number += 1
            client.say(request(Command.POST, f"after{number}", target="w1"))
            status = client.until(lambda packet, number=number: packet.uuid == f"after{number}").status
            time.sleep(0.05)
        client.say(request(Command.GET, "before", target="w1"))
        assert b"late" in client.until(lambda packet: packet.uuid == "before" and packet.status == 200).data
        post = worker.until(lambda packet: packet.command is Command.POST)
        assert post.uuid == f"after{number}"
