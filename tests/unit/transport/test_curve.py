"""CURVE certificates: the ZPL text, the files, and what is refused."""

import errno
import os
import stat
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st
from nacl import bindings
from zmq.utils import z85

from broker import z85 as ours
from broker.errors import ConfigError
from broker.transport import curve
from tests.tables import for_each

PAIR = curve.generate({"name": "node0"})


def test_text_is_that_of_deployed_keygen():
    text = curve.encode(curve.Certificate("p" * 40, "s" * 40, {"name": "vm", "keygen.userid": "0"}))
    assert text == (
        "#  ZeroMQ CURVE **Secret** Certificate\n#  DO NOT DISTRIBUTE\n\nmetadata\n"
        '    name = "vm"\n    keygen.userid = "0"\ncurve\n'
        f'    public-key = "{"p" * 40}"\n    secret-key = "{"s" * 40}"\n'
    )


@pytest.mark.parametrize("mark", ["{{", "{%", "{#"])
def test_no_template_takes_a_new_key_for_its_own(monkeypatch, mark):
    good = (curve.raw_key(PAIR.public_key), curve.raw_key(PAIR.secret_key))
    bad = curve.raw_key(mark + "a" * 38)
    pairs = iter([(bad, good[1]), (good[0], bad), good])
    monkeypatch.setattr(bindings, "crypto_box_keypair", lambda: next(pairs))
    assert curve.generate() == curve.Certificate(PAIR.public_key, PAIR.secret_key)


@given(
    st.dictionaries(
        st.from_regex(r"[a-z][a-z.-]{0,20}", fullmatch=True),
        st.from_regex(r"[^\"'\r\n\x0b\x0c\x1c-\x1e\x85\u2028\u2029]*", fullmatch=True),
    )
)
def test_decode_undoes_encode(metadata):
    certificate = curve.Certificate(PAIR.public_key, PAIR.secret_key, metadata)
    assert curve.decode(curve.encode(certificate)) == certificate


def test_what_other_writers_of_zpl_do_is_read():
    text = f"""
# comment
metadata # another
    name = 'single'
    plain = unquoted
    nested
        deeper = "ignored"
curve
    public-key="{PAIR.public_key}"   # trailing
other
    public-key = "not this one"
"""
    certificate = curve.decode(text)
    assert certificate.public_key == PAIR.public_key
    assert certificate.secret_key is None
    assert certificate.metadata["name"] == "single"
    assert certificate.metadata["plain"] == "unquoted"


@for_each(
    ("text", "says"),
    [
        ("", "no public-key"),
        ("curve\n   public-key = x\n", ":2: expected a section"),
        ("curve\n    public-key = \n", ":2: expected a section"),
        ("[curve]\n", ":1: expected a section"),
        ('curve\n    public-key = "short"\n', "40 characters of Z85, not 5"),
        (
            f'curve\n    public-key = "{PAIR.public_key}"\n    secret-key = "{"~" * 40}"\n',
            "secret-key: expected characters",
        ),
    ],
)
def test_what_is_no_certificate_is_refused(text, says):
    with pytest.raises(ConfigError, match=says):
        curve.decode(text, "file")


@for_each("value", ['say "hi"', "two\nlines"])
def test_metadata_that_cannot_be_quoted_is_refused(value):
    with pytest.raises(ConfigError, match="name"):
        curve.encode(curve.Certificate(PAIR.public_key, None, {"name": value}))


@given(st.binary(min_size=32, max_size=32))
def test_a_key_is_written_as_libzmq_writes_it(data):
    text = ours.encode(data)
    assert text == z85.encode(data).decode()
    assert curve.raw_key(curve.check_key(text)) == data


def test_a_pair_is_one_for_libzmq():
    made = curve.generate()
    assert zmq.curve_public(made.secret_key.encode()).decode() == made.public_key


def test_five_characters_above_32_bits_are_no_key():
    with pytest.raises(ConfigError, match="32 bits"):
        curve.check_key("#####" + "0" * 35)


def test_save_and_load(rundir: Path):
    curve.save(PAIR, rundir / "cert")
    curve.save(PAIR.public, rundir / "cert.pub")
    assert stat.S_IMODE(os.stat(rundir / "cert").st_mode) == 0o600
    assert curve.load(rundir / "cert") == PAIR
    assert curve.load_public(rundir / "cert.pub") == curve.load_public(rundir / "cert") == PAIR.public
    with pytest.raises(ConfigError, match="public certificate"):
        (rundir / "cert.pub").chmod(0o600)
        curve.load(rundir / "cert.pub")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o660])
def test_a_secret_that_others_may_read_is_refused(rundir: Path, mode):
    curve.save(PAIR, rundir / "cert")
    (rundir / "cert").chmod(mode)
    with pytest.raises(ConfigError, match=f"{mode:04o}"):
        curve.load(rundir / "cert")
    assert curve.load_public(rundir / "cert") == PAIR.public


def test_save_keeps_what_is_there(rundir: Path):
    curve.save(PAIR, rundir / "cert")
    with pytest.raises(ConfigError, match="exists"):
        curve.save(curve.generate(), rundir / "cert")
    (rundir / "cert").chmod(0o644)
    other = curve.generate()
    curve.save(other, rundir / "cert", replace=True)
    assert curve.load(rundir / "cert") == other


def test_what_replaces_a_certificate_appears_whole(rundir: Path, monkeypatch):
    """A script that waits for ``broker.key`` reads it as soon as it is there."""
    curve.save(PAIR, rundir / "cert")
    other = curve.generate()
    seen = []

    def fail(fresh, target):
        seen.append((curve.load(target), curve.load(fresh)))
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", fail)
        with pytest.raises(ConfigError, match="cannot write"):
            curve.save(other, rundir / "cert", replace=True)
    assert seen == [(PAIR, other)]
    assert [path.name for path in rundir.iterdir()] == ["cert"]


def test_a_new_certificate_appears_whole(rundir: Path, monkeypatch):
    """Two processes of one name begin at the same time: the slower one reads the file once it is there."""
    link, seen = os.link, []

    def watched(fresh, path):
        seen.append((curve.load(fresh), path.exists()))
        link(fresh, path)

    monkeypatch.setattr(os, "link", watched)
    curve.save(PAIR, rundir / "cert")
    assert seen == [(PAIR, False)]
    assert curve.load(rundir / "cert") == PAIR
    with pytest.raises(ConfigError, match="exists"):
        curve.save(curve.generate(), rundir / "cert")
    assert [path.name for path in rundir.iterdir()] == ["cert"]


def test_where_there_are_no_hard_links_a_certificate_is_written_and_kept_as_well(rundir: Path, monkeypatch):
    def fail(fresh, path):
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", fail)
    curve.save(PAIR, rundir / "cert")
    with pytest.raises(ConfigError, match="exists"):
        curve.save(curve.generate(), rundir / "cert")
    assert curve.load(rundir / "cert") == PAIR
    assert [path.name for path in rundir.iterdir()] == ["cert"]


def test_a_certificate_that_finds_no_room_leaves_nothing_behind(rundir: Path, monkeypatch):
    """Half a secret key would be found at every later start."""
    create = os.open

    def full(path, *more):
        os.close(create(path, *more))
        return create("/dev/full", os.O_WRONLY)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        patch.setattr(os, "fchmod", lambda *_: None)  # it would be the device's mode
        with pytest.raises(ConfigError, match="No space"):
            curve.save(PAIR, rundir / "cert")
    assert list(rundir.iterdir()) == []


def test_keys_that_do_not_belong_together_are_refused(rundir: Path):
    curve.save(curve.Certificate(PAIR.public_key, curve.generate().secret_key), rundir / "cert")
    with pytest.raises(ConfigError, match="does not belong"):
        curve.load(rundir / "cert")


def test_a_missing_or_binary_file_is_one_clear_line(rundir: Path):
    with pytest.raises(ConfigError, match="No such file"):
        curve.load(rundir / "cert")
    (rundir / "cert").write_bytes(b"\xff\xfe\x00")
    (rundir / "cert").chmod(0o600)
    with pytest.raises(ConfigError, match="UTF-8"):
        curve.load(rundir / "cert")


def test_the_secret_is_not_shown():
    assert PAIR.secret_key is not None
    assert PAIR.secret_key not in repr(PAIR)
    assert PAIR.secret_key not in repr(curve.CurveServer(PAIR))
