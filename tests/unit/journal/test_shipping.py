"""Sealed segments on their way to a store: which, once, whole; what is refused; a store is read as a folder is."""

import fcntl
import itertools
import json
import os
import re
import sys
import time
from pathlib import Path

import pytest

from broker.cli.journal import main
from broker.errors import ConfigError, HeadgateError
from broker.journal import stores
from broker.journal.child import Shipment
from broker.journal.options import JournalOptions
from broker.journal.reading.blocks import Block, salvage
from broker.journal.reading.records import records
from broker.journal.reading.segments import listing
from broker.journal.reading.verify import contents, verify
from broker.journal.shipping import Shipped, Shipper
from broker.secret import SecretPlace
from broker.wire.message import request
from gateway.pipeline import spans
from tests.live import segments
from tests.live.segments import T0, flux
from tests.tables import for_each

EACH = 10


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """Three segments of a writer and one of another, nobody at work."""
    folder = tmp_path / "j"
    folder.mkdir()
    for first in range(0, 3 * EACH, EACH):
        write(folder, "rank0", first)
    write(folder, "rank1", 0)
    for path in folder.iterdir():
        os.utime(path, (T0 / 1e9, T0 / 1e9))  # they have not grown for long
    return folder


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/store/of/journals"


def write(folder: Path, writer: str, first: int, **words) -> Path:
    made = [
        flux(T0 + n, request("kvs.get", b"x" * 100, matchtag=n + 1), peer=1)
        for n in range(first, first + EACH)
    ]
    return segments.write(folder, writer, made, first_seq=first, per_block=4, **words)


def names(url: str) -> list[str]:
    return sorted(stores.Store(url).sizes())


def test_what_is_sealed_goes_there_once(journal, url):
    lock = os.open(journal / ".rank0.lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    shipper = Shipper(str(journal), url)
    shipper.round()
    sealed = [
        "rank0-00000000000000000000.fj",
        "rank0-00000000000000000010.fj",
        "rank1-00000000000000000000.fj",
    ]
    assert names(url) == sealed
    assert (shipper.counts.segments, shipper.counts.there, shipper.counts.missed) == (3, 0, 0)
    os.close(lock)  # the writer ends: its last one grows no more
    shipper.round()
    assert names(url) == [*sealed[:2], "rank0-00000000000000000020.fj", sealed[2]]
    again = Shipper(str(journal), url)
    again.round()
    assert (again.counts.segments, again.counts.there) == (0, 4)
    for name in names(url):
        assert (Path(url.removeprefix("file://")) / name).read_bytes() == (journal / name).read_bytes()


def test_one_that_grew_is_sent_again_and_one_of_another_journal_is_not(journal, url, tmp_path):
    path = journal / "rank1-00000000000000000000.fj"
    whole = path.read_bytes()
    path.write_bytes(whole[:-800])
    Shipper(str(journal), url).round()
    path.write_bytes(whole)
    shipper = Shipper(str(journal), url)
    shipper.round()
    assert shipper.counts.segments == 1
    other = tmp_path / "other"
    other.mkdir()
    write(other, "rank1", 0, run=b"o" * 16)
    (extended,) = other.iterdir()
    extended.write_bytes(extended.read_bytes() + bytes(8))
    with pytest.raises(ConfigError, match=r"has a rank1-0+\.fj of another journal: ship to another folder"):
        Shipper(str(other), url).round()
    assert Path(url.removeprefix("file://"), path.name).read_bytes() == whole


def test_what_is_there_may_go_here_but_not_the_newest(journal, url):
    shipper = Shipper(str(journal), url, delete=True)
    shipper.round()
    assert sorted(path.name for path in journal.glob("*.fj")) == [
        "rank0-00000000000000000020.fj",
        "rank1-00000000000000000000.fj",
    ]
    assert shipper.counts == Shipped(segments=4, size=shipper.counts.size, deleted=2)
    assert len(names(url)) == 4


def test_an_upload_that_fails_leaves_no_segment_and_is_tried_again(journal, url, monkeypatch):
    taken = itertools.count(1)
    real = stores.zlib.crc32

    class Wrong:
        """The store gives back something else, of the second segment, once."""

        @staticmethod
        def crc32(data: bytes, start: int = 0) -> int:
            return real(data, start) ^ (next(taken) == 4)

    monkeypatch.setattr(stores, "zlib", Wrong)
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 1:
            assert len(names(url)) == 1
        return len(waits) == 2

    shipper = Shipper(str(journal), url)
    shipper.follow(wait, every_s=7.0)
    assert waits == [1.0, 7.0]
    assert (shipper.counts.failures, shipper.counts.segments, shipper.counts.there) == (1, 4, 0)
    assert len(names(url)) == 4


def test_two_that_send_the_same_at_once_are_no_error(journal, url):
    store, (path, *_) = stores.Store(url), listing(str(journal))[0]
    name = os.path.basename(path)
    first, second = store.put(name, path), store.put(name, path)
    next(first)
    next(second)
    assert [*first, *second] == []
    assert names(url) == [name]
    assert store.head(name, 1 << 20) == Path(path).read_bytes()


def test_nothing_is_deleted_that_another_shipper_has_sent_shorter(tmp_path, url):
    journal = tmp_path / "j"
    journal.mkdir()
    path = write(journal, "rank0", 0)
    shipper = Shipper(str(journal), url, delete=True)
    shipper.round()
    there = Path(url.removeprefix("file://")) / path.name
    there.write_bytes(there.read_bytes()[:-50])  # by another one, as the segment was before it grew
    write(journal, "rank0", EACH)
    shipper.round()
    assert path.exists()
    shipper.round()
    assert not path.exists()
    assert len(list(records(url))) == 2 * EACH


def test_a_store_that_is_away_is_asked_less_and_less_often(journal, tmp_path):
    (tmp_path / "file").touch()
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        return len(waits) == 8

    Shipper(str(journal), f"file://{tmp_path}/file/below").follow(wait)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_what_retention_deleted_first_is_counted(journal, tmp_path):
    place = tmp_path / "away"
    place.touch()
    shipper = Shipper(str(journal), f"file://{place}/store")

    def wait(_seconds: float) -> bool:
        if not place.is_file():
            return True
        (journal / "rank0-00000000000000000000.fj").unlink()
        place.unlink()
        return False

    shipper.follow(wait)
    assert (shipper.counts.missed, shipper.counts.segments) == (1, 3)
    (gone,) = verify(f"file://{place}/store").removed.items()
    assert gone == ("rank0", EACH)


def test_a_store_is_read_as_a_folder_is(journal, url):
    Shipper(str(journal), url).round()
    assert [Path(path).name for path, _writer, _first in listing(url)] == names(url)
    assert list(records(url)) == list(records(journal))
    assert [(each.writer, each.records, each.open) for each in contents(url)] == [
        (each.writer, each.records, each.open) for each in contents(journal)
    ]
    assert verify(url).ok
    assert verify(url).records == 4 * EACH
    (one, *_rest) = (path for path, _writer, _first in listing(url))
    assert sum(each.count for each in salvage(one) if isinstance(each, Block)) == EACH
    assert sum(1 for _ in records(one)) == EACH
    planned = spans.whole(url)
    assert [(span.name, span.end) for span in planned] == [
        (span.name, span.end) for span in spans.whole(str(journal))
    ]
    assert sum(found.count for span in planned for found in spans.blocks(span)) == 4 * EACH
    assert spans.latest(url, {}) == spans.latest(str(journal), {})


def test_a_query_stays_behind_the_name():
    path = stores.joined("s3://b/j/?endpoint_override=h:1&scheme=http", "rank0-1.fj")
    assert path == "s3://b/j/rank0-1.fj?endpoint_override=h:1&scheme=http"


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("nosuch://b/j", "nosuch://b/j: Unrecognized filesystem type"),
        ("s3://", "s3://: a bucket or a folder is missing"),
    ],
)
def test_a_url_that_is_none(journal, place, expected):
    with pytest.raises(ConfigError, match=re.escape(expected)):
        Shipper(str(journal), place)


@for_each(
    "place",
    [
        "s3://KEY:secret@b/j?nothing=1", "s3://KEY:secret@b:99999/j", "s3://KEY:sec ret@b/j", "s3://KEY:a/secret@b/j",
        "S3://KEY:secret@b/j", "abfss://b:secret@a.dfs.core.windows.net/j?nothing=1",
    ],
)  # fmt: skip
def test_what_is_wrong_with_a_url_does_not_show_the_key_in_it(place):
    with pytest.raises(ConfigError) as told:
        stores.Store(place)
    assert "://b" in str(told.value)
    assert not re.search("KEY|sec|ret", str(told.value))


def test_a_store_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"journal directory file:///.*nowhere: "):
        listing(f"file://{tmp_path}/nowhere")


def test_the_verb(journal, url, tmp_path, capsys):
    assert main(["ship", str(journal), "--to", url, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told | {"bytes": 0} == {
        "segments": 4, "bytes": 0, "there": 0, "deleted": 0, "missed": 0, "failures": 0,
    }  # fmt: skip
    assert main(["ship", str(journal), "--to", url]) == 0
    assert capsys.readouterr().out == "0 segments sent, 0 bytes, 4 were there\n"
    assert main(["ls", url, "--json"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4
    assert main(["verify", url]) == 0
    assert "4 segments" in capsys.readouterr().out
    assert main(["show", url, "--topic", "kvs.get"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 4 * EACH
    (tmp_path / "file").touch()
    with pytest.raises(HeadgateError, match=f"file://{tmp_path}/file/x: .*Not a directory"):
        main(["ship", str(journal), "--to", f"file://{tmp_path}/file/x"])
    assert main(["ship", str(journal)]) == 2
    with pytest.raises(ConfigError, match="no segment of writer rank7"):  # as of the verbs that read
        main(["ship", str(journal), "--to", url, "--writer", "rank7"])


def test_a_shipper_of_a_broker_ships_what_the_writer_leaves(journal, url):
    shipment = Shipment(JournalOptions(directory=str(journal), writer="rank0", ship_to=SecretPlace(url)))
    store = Path(url.removeprefix("file://"))
    until(lambda: store.is_dir() and len(list(store.glob("rank0-*.fj"))) == 3)
    write(journal, "rank0", 3 * EACH)
    shipment.close()
    until(lambda: len(list(store.glob("*.fj"))) == 4)
    shipment.join()


def test_a_shipper_that_dies_is_replaced(tmp_path, monkeypatch):
    monkeypatch.setattr("broker.journal.child.RETRY_S", 0.01)
    program = f"open({str(tmp_path / 'ran')!r}, 'a').write('x')"
    shipment = Shipment(
        JournalOptions(directory="d", writer="w", ship_to=SecretPlace("u")),
        command=(sys.executable, "-c", program),
    )
    until(lambda: (tmp_path / "ran").exists() and len((tmp_path / "ran").read_text()) >= 2)
    shipment.close()
    shipment.join()


def until(condition) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
