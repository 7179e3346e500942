"""`headgate token`: what it prints, what it writes, and how it ends."""

import contextlib
import json
import os
import time

import pytest

from broker.cli import exits
from broker.cli.main import main
from gateway.identity.store import FOREVER, Store
from gateway.identity.tokens import PREFIX, TokenFile
from tests.tables import for_each

CONFIG = """\
[gateway]
statedir = "state"

[[users]]
name = "alice"
userid = 1001

[[users]]
name = "bob"
userid = 1002
"""


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "gateway.toml"
    file.write_text(CONFIG)
    return file


@pytest.fixture
def run(config, capsys):
    def call(*words, code=exits.OK, where=("--config", str(config))):
        assert main(["token", *words, *where]) == code
        return capsys.readouterr()

    return call


def test_a_token_is_printed_once_and_works(run, tmp_path):
    text = run("add", "alice", "--note", "hall 3").out.strip()
    assert text.startswith(PREFIX)
    found = TokenFile(tmp_path / "state" / "tokens.json").check(text, time.time())
    assert (found.user, found.note, found.expires) == ("alice", "hall 3", None)
    for shown in (run("list").out, run("list", "--json").out):
        assert found.id in shown
        assert "hall 3" in shown
        assert text.split("_", 2)[2] not in shown
        assert found.hash not in shown


def test_json(run):
    made = json.loads(run("add", "alice", "--expires", "2h", "--json").out)
    assert set(made) == {"token", "id", "user", "created", "expires", "note"}
    assert made["expires"] - made["created"] == pytest.approx(7200)
    told = {key: made[key] for key in made if key != "token"}
    assert json.loads(run("list", "--json").out) == told | {"revoked": False}
    gone = json.loads(run("remove", made["id"], "--json").out)
    assert gone["removed"] is True
    assert run("list", "--json").out == ""


@for_each(
    ("text", "seconds"),
    [("600s", 600), ("90min", 5400), ("1.5h", 5400), ("12h", 43200), ("30d", 2592000), ("2w", 1209600)],
)
def test_spans(run, text, seconds):
    made = json.loads(run("add", "alice", "--expires", text, "--json").out)
    assert made["expires"] - made["created"] == pytest.approx(seconds)


@for_each("text", ["", "30", "d", "-1d", "0d", "1y", "30 d", "1d2h", "9999999999d"])
def test_spans_that_are_none(run, text):
    assert "--expires" in run("add", "alice", f"--expires={text}", code=exits.USAGE).err
    assert run("list", "--json").out == ""


def test_a_user_that_the_configuration_does_not_name(run):
    assert "expected one of: alice, bob" in run("add", "carol", code=exits.CONFIG).err
    assert "expected --config" in run("add", "alice", code=exits.USAGE, where=()).err


def test_remove_one_or_all_of_a_user(run):
    first, second, other = (
        json.loads(run("add", user, "--json").out)["id"] for user in ("alice", "alice", "bob")
    )
    assert run("remove", first).out == f"removed {first} of alice\n"
    assert run("remove", "alice").out == f"removed {second} of alice\n"
    for which in (first, "alice", "carol"):
        assert which in run("remove", which, code=exits.FAILED).err
    assert [json.loads(line)["id"] for line in run("list", "--json").out.splitlines()] == [other]


def test_a_revoked_token_is_shown_as_that_and_counts_again(run, tmp_path):
    first, second = (json.loads(run("add", "alice", "--json").out)["id"] for _ in range(2))
    assert run("revoked", "--json").out == ""
    assert f"token:{first} is not revoked" in run("restore", first, code=exits.FAILED).err
    with contextlib.closing(Store(tmp_path / "state")) as store:
        store.revoke(f"token:{first}", FOREVER + 5)
        store.revoke("jwt:a:b", 1e10)
    listed = {each["id"]: each["revoked"] for each in map(json.loads, run("list", "--json").out.splitlines())}
    assert listed == {first: True, second: False}
    assert [json.loads(line) for line in run("revoked", "--json").out.splitlines()] == [
        {"credential": "jwt:a:b", "until": 1e10},
        {"credential": f"token:{first}", "until": None},
    ]
    assert run("restore", first).out == f"restored token:{first}\n"
    assert json.loads(run("restore", "jwt:a:b", "--json").out) == {"restored": True, "credential": "jwt:a:b"}
    assert run("revoked", "--json").out == ""
    for which in (first, "jwt:a:b"):
        assert "is not revoked" in run("restore", which, code=exits.FAILED).err


def test_tokens_are_listed_where_the_store_is_of_another_user(run, tmp_path, monkeypatch):
    made = json.loads(run("add", "alice", "--json").out)["id"]
    Store(tmp_path / "state").close()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    listed = json.loads(run("list", "--json").out)
    assert (listed["id"], listed["revoked"]) == (made, None)
    assert "a directory of ours" in run("restore", made, code=exits.CONFIG).err


def test_a_state_directory_that_cannot_be_looked_at_is_not_one_without_revocations(run, tmp_path):
    made = json.loads(run("add", "alice", "--json").out)["id"]
    (tmp_path / "state").rename(tmp_path / "kept")
    (tmp_path / "state").symlink_to("state")
    for words in (["revoked"], ["restore", made]):
        assert "symbolic links" in run(*words, code=exits.CONFIG).err


def test_a_state_directory_instead_of_a_configuration(run, tmp_path):
    made = json.loads(run("add", "alice", "--json").out)["id"]
    assert made in run("list", where=("--statedir", str(tmp_path / "state"))).out
    both = ("--statedir", "x", "--config", "y")
    assert "expected one of them" in run("list", code=exits.USAGE, where=both).err


def test_a_file_of_its_own(run, config, tmp_path):
    config.write_text(f'{CONFIG}\n[tokens]\nfile = "mine.json"\n')
    run("add", "alice")
    assert (tmp_path / "mine.json").exists()


def test_a_bad_file_is_a_configuration_error(run, tmp_path):
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "tokens.json").write_text("{")
    for words in (("list",), ("add", "alice"), ("remove", "alice")):
        assert "not a token file" in run(*words, code=exits.CONFIG).err


def test_help_has_examples(capsys):
    assert main(["token", "--help"]) == exits.OK
    assert "headgate token add" in capsys.readouterr().out
    assert main(["token", "invent"]) == exits.USAGE
