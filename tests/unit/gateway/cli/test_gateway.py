"""``headgate gateway``: its options, its errors, and what it prints."""

import os

import pytest

from broker.cli import exits
from broker.cli.main import main
from broker.errors import ConfigError
from gateway import serve
from gateway.cli.gateway import arguments, settings_for
from tests.live.own_log import own_log
from tests.tables import for_each


@pytest.fixture(autouse=True)
def own_logging():
    """The verb sets up logging for itself."""
    with own_log():
        yield


def settings(*words):
    return settings_for(arguments().parse_args(list(words)))


def test_options_go_before_the_file(tmp_path):
    file = tmp_path / "gateway.toml"
    file.write_text('[gateway]\nworkers = 2\n[[listen]]\nurl = "http://127.0.0.1:1"\n')
    read = settings(
        "--config", str(file), "--workers", "3", "--listen", "http://[::1]:0", "--set", "limits.ping_s=9"
    )
    assert read.gateway.workers == 3
    assert [entry.url for entry in read.listen] == ["http://[::1]:0"]
    assert read.limits.ping_s == 9


def test_a_history_is_taken_from_where_the_command_stands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert settings().history.warehouse is None
    assert settings("--history", 'odd "name"').history.warehouse.reveal() == str(tmp_path / 'odd "name"')
    assert settings("--history", "x", "--set", "history.max_days=3").history.max_days == 3


def test_several_listeners():
    read = settings("-l", "http://127.0.0.1:0", "-l", "unix:///run/x")
    assert [entry.url for entry in read.listen] == ["http://127.0.0.1:0", "unix:///run/x"]


def test_a_login_link_is_the_owners_unless_the_settings_say_another_role():
    assert settings().access.login_links == "off"
    assert settings("--login-link").access.login_links == "owner"
    assert settings("--login-link", "--set", "access.login_links=user").access.login_links == "user"


@for_each(
    ("words", "code", "said"),
    [
        (["--config", "/nowhere.toml"], exits.CONFIG, "expected a readable TOML file"),
        (["--listen", "ftp://x"], exits.CONFIG, "listen[0].url: saw 'ftp://x', expected http://HOST:PORT"),
        (["--listen", "http://0.0.0.0:80"], exits.CONFIG, "expected https, or a loopback address"),
        (["--set", "limits.ping_s=soon"], exits.CONFIG, "expected float"),
        (["--workers", "0"], exits.CONFIG, "expected int >= 1"),
        (["--upstream", "gopher://x"], exits.CONFIG, "no transport for scheme 'gopher'"),
        (["--upstream", "x"], exits.CONFIG, "expected scheme://place"),
    ],
)
def test_a_wrong_option_is_one_line(words, code, said, tmp_path, capsys):
    statedir = ["--set", f"gateway.statedir={tmp_path}/state"]
    assert main(["gateway", *statedir, *words]) == code
    err = capsys.readouterr().err
    assert said in err
    assert "Traceback" not in err
    assert len(err.splitlines()) == 1
    still_open = [os.path.realpath(f"/proc/self/fd/{number}") for number in os.listdir("/proc/self/fd")]
    assert not [path for path in still_open if path.startswith(str(tmp_path))]


def test_a_port_in_use_is_one_line(tmp_path, capsys, monkeypatch):
    from gateway.settings import place_of
    from gateway.web.listener import bind

    monkeypatch.setattr(serve, "JOIN_S", 0.0)  # there is no broker to wait for
    with bind(place_of("http://127.0.0.1:0"))[0] as used:
        used.listen()
        url = f"http://127.0.0.1:{used.getsockname()[1]}"
        for workers in ("1", "2"):
            words = ["--listen", url, "--workers", workers, "--set", f"gateway.statedir={tmp_path}/state"]
            assert main(["gateway", "--upstream", "local:///nowhere", *words]) == exits.TEMPFAIL
            err = capsys.readouterr().err
            assert f"cannot listen at {url}: Address already in use" in err
            assert "Traceback" not in err


def test_owner_links_need_a_listener_of_this_machine(tmp_path):
    file = tmp_path / "gateway.toml"
    file.write_text('[[listen]]\nurl = "http://10.0.0.1:80"\ninsecure = true\n')
    with pytest.raises(ConfigError, match="owner logins are granted there only"):
        settings("--config", str(file), "--login-link")
