import pwd

import pytest

from broker import home
from tests.live.verbs import headgate
from tests.tables import for_each


@pytest.fixture
def homeless(tmp_path, monkeypatch):
    """A user with neither an entry in passwd nor variables, as a container with a number for a user has it."""

    def unknown(uid):
        raise KeyError(uid)

    for name in ("HOME", "XDG_STATE_HOME", "STATE_DIRECTORY", "HEADGATE_NFP_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("os.getuid", lambda: 10001)
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@for_each(
    "words",
    [
        "token add ada --config gateway.toml",
        "gateway --listen unix:///nonexistent/web.sock",
        "nfp broker",
        "cluster up --size 1",
        "journal ls",
        "journal ship --to file:///nonexistent/x",
    ],
)
def test_who_has_no_home_is_told_so_and_nothing_is_made(homeless, words):
    (homeless / "gateway.toml").write_text('[[users]]\nname = "ada"\nuserid = 1\n')
    done = headgate(*words.split())
    assert done.returncode == 78, done
    assert "has no home directory to keep state in: set HOME or XDG_STATE_HOME" in done.stderr
    assert [each.name for each in homeless.iterdir()] == ["gateway.toml"]


def test_what_is_shown_names_no_tilde(homeless):
    assert '"~' not in headgate("config", "show").stdout
    assert headgate("nfp", "keys", "list", "--base-dir", str(homeless)).returncode in (0, 2)


@for_each(
    ("variables", "expected"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, "/s/headgate/nfp"),
        ({"XDG_STATE_HOME": "s", "HOME": "/h"}, "/h/.local/state/headgate/nfp"),
        ({"HOME": "h"}, f"{home.NOWHERE}/.local/state/headgate/nfp"),
        ({"HOME": ""}, f"{home.NOWHERE}/.local/state/headgate/nfp"),
    ],
)
def test_where_state_is(homeless, variables, expected):
    with pytest.MonkeyPatch.context() as patched:
        for name, value in variables.items():
            patched.setenv(name, value)
        assert home.state_folder("nfp") == expected
