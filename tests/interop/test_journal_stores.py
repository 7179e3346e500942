"""Journals in a store that speaks S3: throttled, hung, killed in the middle of an upload; then read like a folder."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from broker.errors import ConfigError
from broker.journal import stores
from broker.journal.reading.records import records
from broker.journal.reading.segments import listing
from broker.journal.reading.verify import verify
from broker.journal.shipping import Shipper
from broker.wire.message import request
from tests.live import segments
from tests.live.s3 import S3, s3_server
from tests.live.segments import T0, flux

pytestmark = [pytest.mark.interop, pytest.mark.timeout(120)]
EACH = 40
LARGE = 500_000
"""Bytes of a message: a segment is sent in several parts."""


@pytest.fixture
def s3() -> Iterator[S3]:
    with s3_server() as served:
        yield served


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Two segments of 20 MB."""
    for first in (0, EACH):
        made = [
            flux(T0 + n, request("kvs.get", os.urandom(LARGE), matchtag=n + 1), peer=1)
            for n in range(first, first + EACH)
        ]
        path = segments.write(tmp_path / "j", "rank0", made, first_seq=first, per_block=2)
        os.utime(path, (T0 / 1e9, T0 / 1e9))  # it has not grown for long
    return tmp_path / "j"


def test_a_store_that_is_slow_gets_all_of_it_once(s3: S3, journal: Path) -> None:
    s3.refuse, s3.hang_s = 2, 4.0
    shipper = Shipper(str(journal), s3.place("slow"))
    shipper.round()
    assert (shipper.counts.segments, shipper.counts.failures) == (2, 0)  # the library tried again
    assert verify(s3.place("slow")).ok
    assert list(records(s3.place("slow"))) == list(records(journal))
    Shipper(str(journal), s3.place("slow")).round()
    assert sum(path.endswith(".part") and method == "DELETE" for method, path in s3.requests) == 2


def test_a_store_that_refuses_for_long_is_asked_again(s3: S3, journal: Path) -> None:
    s3.refuse = -1
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        s3.refuse = 0
        return len(waits) == 2

    shipper = Shipper(str(journal), s3.place("away"))
    shipper.follow(wait)
    assert (shipper.counts.segments, shipper.counts.failures, waits[0]) == (2, 1, 1.0)
    assert verify(s3.place("away")).records == 2 * EACH


def test_killed_in_the_middle_of_an_upload(s3: S3, journal: Path) -> None:
    url, seen = s3.place("killed"), 0
    command = [
        sys.executable,
        "-m",
        "broker.cli.main",
        "journal",
        "ship",
        str(journal),
        "--to",
        url,
        "--json",
    ]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def kill() -> None:
        nonlocal seen
        seen += 1
        if seen == 5:  # of the first segment's parts, some are there
            process.send_signal(signal.SIGKILL)

    s3.on_put = kill
    assert process.wait(timeout=60) == -signal.SIGKILL
    s3.on_put = None
    assert not any(name.endswith(".fj") for name in stores.Store(url).sizes())
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout)["segments"] == 2
    assert list(records(url)) == list(records(journal))
    done = subprocess.run(command, capture_output=True, check=True, timeout=60)
    assert json.loads(done.stdout) | {"there": 0} == {
        "segments": 0, "bytes": 0, "there": 0, "deleted": 0, "missed": 0, "failures": 0,
    }  # fmt: skip


def test_the_key_that_opens_a_store_is_not_printed(s3: S3) -> None:
    with pytest.raises(ConfigError, match=r"^journal directory s3://nowhere/j\?region=.*bucket"):
        listing(s3.place("j").replace("journals", "nowhere"))
