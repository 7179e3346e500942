"""Bearer tokens: what the file holds, who changes it, what is refused."""

import json
import os
import stat
import threading

import pytest

from broker.errors import ConfigError
from gateway import closes
from gateway.identity.tokens import PREFIX, TokenFile, token_id
from gateway.principal import Denied
from tests.tables import for_each

NOW = 1_000_000.0


@pytest.fixture
def file(tmp_path):
    return TokenFile(tmp_path / "state" / "tokens.json")


def refusal(file, text, now=NOW):
    with pytest.raises(Denied) as denied:
        file.check(text, now)
    assert denied.value.public == "credential refused"
    assert (denied.value.status, denied.value.close) == (401, closes.BAD_CREDENTIAL)
    assert text[20:] not in str(denied.value) or len(text) < 21  # the log never has the secret
    return str(denied.value)


def test_a_token_is_good_and_its_secret_is_not_in_the_file(file):
    made, text = file.add("alice", now=NOW, note="hall 3")
    assert text.startswith(f"{PREFIX}{made.id}_")
    assert file.check(text, NOW) == made
    secret = text.split("_", 2)[2]
    assert len(secret) == 43  # 256 bits
    content = file.path.read_text()
    assert secret not in content
    assert json.loads(content)["tokens"][0]["note"] == "hall 3"


def test_the_file_is_private_and_stays_so(file):
    for user in ("alice", "bob"):
        file.add(user, now=NOW)
        assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(file.path.parent.stat().st_mode) == 0o700
    assert {path.name for path in file.path.parent.iterdir()} == {"tokens.json", "tokens.json.lock"}


@for_each(
    "change",
    [
        lambda text: text[:-1],
        lambda text: text[:-1] + ("A" if text[-1] != "A" else "B"),
        lambda text: text + "=",
        lambda text: text.upper(),
        lambda text: text.replace("hgt_", "hgt-"),
        lambda text: PREFIX + "0" * 12 + text[16:],
        lambda text: text[:16] + "_",
        lambda text: text[:16],
        lambda text: text + "\udcff",
        lambda text: text + "x" * 10_000,
        lambda text: PREFIX,
        lambda text: "",
    ],
)
def test_anything_else_is_refused(file, change):
    _made, text = file.add("alice", now=NOW)
    refusal(file, change(text))


def test_an_expired_token_is_refused(file):
    _made, text = file.add("alice", now=NOW, expires=NOW + 10)
    assert file.check(text, NOW + 9).user == "alice"
    assert "expired" in refusal(file, text, NOW + 10)


def test_changes_of_another_process_are_noticed(file):
    other = TokenFile(file.path)
    assert other.get("x") is None
    made, text = file.add("alice", now=NOW)
    assert other.check(text, NOW) == made
    generation = other.generation
    assert file.remove(lambda each: each.user == "alice") == (made,)
    refusal(other, text)
    assert other.generation > generation


def test_a_removed_file_holds_no_tokens(file):
    _made, text = file.add("alice", now=NOW)
    file.check(text, NOW)
    file.path.unlink()
    refusal(file, text)


@for_each("content", [b"{", b"[]", b'{"tokens":[{"id":1}]}', b"\xff", b'{"version":2,"tokens":[]}'])
def test_a_bad_file_is_told_and_keeps_what_was_read(file, content):
    file.path.unlink(missing_ok=True)
    _made, text = file.add("alice", now=NOW)
    file.check(text, NOW)
    file.path.write_bytes(content)
    assert file.check(text, NOW).user == "alice"
    assert str(file.path) in file.problem
    with pytest.raises(ConfigError):
        file.entries()
    with pytest.raises(ConfigError):
        file.add("bob", now=NOW)
    assert file.path.read_bytes() == content  # nobody overwrites what they could not read


def test_a_file_that_others_write_to_is_not_read(file):
    _made, text = file.add("alice", now=NOW)
    file.path.chmod(0o620)
    fresh = TokenFile(file.path)
    refusal(fresh, text)
    assert "0620" in fresh.problem


def test_removing_what_is_not_there_changes_nothing(file):
    file.add("alice", now=NOW)
    before = os.stat(file.path).st_ino
    assert file.remove(lambda each: each.id == "nobody") == ()
    assert os.stat(file.path).st_ino == before


def test_writers_lose_nothing_of_each_other(file):
    def add(user):
        mine = TokenFile(file.path)
        for _ in range(10):
            mine.add(user, now=NOW)

    threads = [threading.Thread(target=add, args=(f"u{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(file.entries()) == 40
    assert len({each.id for each in file.entries()}) == 40


@for_each("text", ["hgt_00ff_x", "hgt_00ff00ff00fF_x", "hgt_00ff00ff00ff", "eyJ.a.b", ""])
def test_texts_without_an_id(text):
    assert token_id(text) is None
