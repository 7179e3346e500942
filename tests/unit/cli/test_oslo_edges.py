"""What the verbs of ``headgate oslo`` say of places that cannot be, and of directories that do not answer."""

import io

import pytest

from broker.cli import exits
from broker.cli.main import main
from broker.cli.oslo import picture, sending
from broker.cli.screen import Screen
from broker.oslo.node import MISSING
from tests.tables import for_each


@for_each("verb", [["call", "t", "m"], ["listen", "t"], ["status"]])
@for_each(
    ("words", "code", "said"),
    [
        (["--directory", "foo"], exits.USAGE, "--directory 'foo': expected"),
        (
            ["--directory", "tcp://a:1", "--directory-key", "abc"],
            exits.USAGE,
            "--directory-key 'abc': expected 40",
        ),
        (["--directory", "tcp://a:1", "--curve-cert", "/etc/passwd"], exits.CONFIG, "/etc/passwd: "),
    ],
)
def test_places_are_looked_at_before_anything_is_opened(verb, words, code, said, tmp_path, capsys):
    assert main(["oslo", *verb, "--ipc-dir", str(tmp_path), *words]) == code
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_folder_that_may_not_be_entered_is_not_said_to_have_no_proxy(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sending, "obstacle", lambda _path: " may not be reached by the user 7 of this process"
    )
    with pytest.raises(exits.UsageError, match=r"directory\.ctl may not be reached by the user 7"):
        sending.Sender("call", str(tmp_path), None, "", "", as_json=False).settings()
    monkeypatch.setattr(sending, "obstacle", lambda _path: MISSING)
    with pytest.raises(exits.UsageError, match=r"no proxy of this node in .*--ipc-dir names another folder"):
        sending.Sender("call", str(tmp_path), None, "", "", as_json=False).settings()


def test_directories_that_do_not_answer_are_shown():
    links = [
        {"endpoint": "tcp://a:9500", "alive": False, "closed": False},
        {"endpoint": "tcp://b:9500", "alive": True, "closed": False},
        {"endpoint": "tcp://self:9500", "alive": False, "closed": True},
    ]
    out = io.StringIO()
    picture.NodeStatus("/f", {"directory": {"uplinks": links}, "call": None}, []).show(Screen(False, out=out))
    assert out.getvalue().count("no answer from the directory") == 1
    assert "no answer from the directory tcp://a:9500" in out.getvalue()
    assert picture.silent_uplinks(None) == picture.silent_uplinks({"uplinks": "?"}) == []
