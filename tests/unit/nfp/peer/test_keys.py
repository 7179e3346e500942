"""Keys and folders of a peer."""

import stat

import pytest
import zmq.auth

from broker.errors import ConfigError
from broker.nfp.peer import keys
from broker.transport.curve import CurveClient, generate, save
from tests.tables import for_each


def test_a_key_pair_is_made_once_and_kept(tmp_path):
    made = keys.own_certificate(tmp_path, "w1")
    assert keys.own_certificate(tmp_path, "w1") == made
    assert made.secret_key
    assert stat.S_IMODE((tmp_path / "peers" / "w1.key_secret").stat().st_mode) == 0o600
    assert keys.broker_key(tmp_path / "peers" / "w1.key") == made.public_key
    assert keys.own_certificate(tmp_path, "w2") != made


def test_a_key_file_that_others_can_read_is_refused(tmp_path):
    keys.own_certificate(tmp_path, "w1")
    (tmp_path / "peers" / "w1.key_secret").chmod(0o644)
    with pytest.raises(ConfigError, match="0600"):
        keys.own_certificate(tmp_path, "w1")


@for_each("name", ["../../x", "a/b", ".", "..", "…" * 85, 'quo"te', "two words", "new\nline"])
def test_any_name_of_a_peer_is_a_file_of_its_folder(tmp_path, name):
    path = keys.peer_file(tmp_path, name, ".db")
    assert path.parent == tmp_path / "peers"
    keys.own_certificate(tmp_path, name)
    assert len({keys.peer_file(tmp_path, each, ".db") for each in (name, name[:-1] + "!")}) == 2


@for_each("name", ["", "x" * 256, "n\0"])
def test_what_is_no_name(tmp_path, name):
    with pytest.raises(ConfigError, match="name"):
        keys.peer_file(tmp_path, name, ".db")


def test_the_key_of_a_broker_is_text_or_a_file_in_either_form(tmp_path):
    key = generate()
    save(key.public, tmp_path / "ours.key")
    theirs, _secret = zmq.auth.create_certificates(tmp_path, "broker")
    assert keys.broker_key(key.public_key) == key.public_key
    assert keys.broker_key(tmp_path / "ours.key") == key.public_key
    assert keys.broker_key(theirs) == zmq.auth.load_certificate(theirs)[0].decode()
    assert keys.found_broker_key(tmp_path) == keys.broker_key(theirs)
    assert keys.found_broker_key(tmp_path / "peers") is None
    with pytest.raises(ConfigError, match="cannot read"):
        keys.broker_key("absent.key")
    with pytest.raises(ConfigError, match="Z85"):
        keys.broker_key("~" * 40)


def test_where_state_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert keys.default_base_dir() == tmp_path / "headgate" / "nfp"


def test_which_endpoints_need_curve():
    assert not keys.needs_curve(["tcp://127.0.0.1:1", "ipc:///run/x", "tcp://localhost:1", "tcp://[::1]:1"])
    assert keys.needs_curve(["tcp://127.0.0.1:1", "tcp://192.0.2.1:1"])
    assert keys.needs_curve(["tcp://broker.example:1"])


def test_what_a_channel_needs(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    here, away = ["tcp://127.0.0.1:1"], ["tcp://broker.example:1", "tcp://127.0.0.1:1"]
    theirs = generate().public_key
    assert keys.credentials(tmp_path, "w1", here) == {}
    known = keys.credentials(tmp_path, "w1", here, server_key=theirs)
    assert known == {here[0]: CurveClient(keys.own_certificate(tmp_path, "w1"), theirs)}
    given = generate()
    save(given, tmp_path / "mine")
    for key in (given, tmp_path / "mine"):
        known = keys.credentials(tmp_path, "w1", away, key=key, server_key=dict.fromkeys(away, theirs))
        assert list(known) == away
        assert {(each.certificate.public_key, each.server_key) for each in known.values()} == {
            (given.public_key, theirs)
        }
    with pytest.raises(ConfigError, match=r"broker\.example:1: the broker's public key is not known"):
        keys.credentials(tmp_path, "w1", away)
    keys.default_base_dir().mkdir(parents=True)
    for folder in (keys.default_base_dir(), tmp_path):  # the second one goes first
        made = generate().public
        save(made, folder / "broker.key")
        known = keys.credentials(tmp_path, "w1", away)
        assert [each.server_key for each in known.values()] == [made.public_key] * len(away)


def test_plaintext_on_purpose(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "home"))
    away = ["tcp://broker.example:1"]
    assert keys.credentials(tmp_path, "w1", away, insecure=True) == {}
    save(generate().public, tmp_path / "broker.key")
    assert keys.credentials(tmp_path, "w1", away, insecure=True).keys() == set(away)
    for endpoints, insecure in ((["tcp://127.0.0.1:1"], False), (away, True)):
        plain = keys.credentials(tmp_path, "w2", endpoints, server_key=keys.PLAINTEXT, insecure=insecure)
        assert plain == {}
    with pytest.raises(ConfigError, match="not known"):
        keys.credentials(tmp_path, "w2", away, server_key=keys.PLAINTEXT)
    assert not (tmp_path / "peers" / "w2.key_secret").exists()
