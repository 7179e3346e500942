"""``headgate up``: its options and errors; that it runs is a story."""

import asyncio
import errno
import logging
import socket
import sys

import pytest

from broker import extras, interpreter
from broker.cli import exits
from broker.cli.main import main
from broker.errors import ConfigError, NotReady
from gateway.cli import companions
from gateway.cli.up import arguments, broker_settings, gateway_settings
from gateway.settings import GatewaySettings, ListenEntry
from gateway.web import listener
from gateway.web.listener import bind_all
from tests.tables import for_each


def given(*words):
    return arguments().parse_args(list(words))


def test_it_is_quiet_and_gives_the_owner_a_link():
    read = gateway_settings(given())
    assert (read.access.login_links, read.gateway.log_level) == ("owner", "warning")
    assert broker_settings(given()).broker.log_level == "warning"


def test_verbose_without_login_in_another_shape():
    words = given("-v", "--no-login", "--topo", "kary:3", "--listen", "http://127.0.0.1:0")
    read = gateway_settings(words)
    assert (read.access.login_links, read.gateway.log_level) == ("off", "info")
    assert read.listen == (ListenEntry(url="http://127.0.0.1:0"),)
    assert broker_settings(words).tree.topology == "kary:3"


def test_a_configuration_says_itself_who_logs_in(tmp_path):
    (tmp_path / "gateway.toml").write_text("")
    assert gateway_settings(given("--config", str(tmp_path / "gateway.toml"))).access.login_links == "off"


def test_a_history_is_the_gateways(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert gateway_settings(given("--history", "warehouse")).history.warehouse.reveal() == str(
        tmp_path / "warehouse"
    )
    assert gateway_settings(given()).history.warehouse is None


def test_a_default_port_that_is_taken_gives_way_to_the_next():
    with socket.create_server(("127.0.0.1", 0)) as used:
        port = used.getsockname()[1]
        settings = with_url(f"http://127.0.0.1:{port}")
        with pytest.raises(ConfigError, match="in use"):
            bind_all(settings)
        ((found, place),) = bind_all(settings, ports=20)
        assert port < found.getsockname()[1] == place.port < port + 20
        found.close()


def test_all_default_ports_in_use_are_told_with_what_to_do(monkeypatch, capsys):
    def refuse(_settings, *, ports):
        assert ports == 20
        raise NotReady("cannot listen at 127.0.0.1:8299: Address already in use", errno.EADDRINUSE)

    monkeypatch.setattr(listener, "bind_all", refuse)
    assert main(["up"]) == exits.TEMPFAIL
    (line,) = capsys.readouterr().err.splitlines()
    assert "8299" in line
    assert "--listen http://127.0.0.1:PORT" in line


def with_url(url):
    import msgspec

    return msgspec.structs.replace(GatewaySettings.defaults(), listen=(ListenEntry(url=url),))


@for_each(
    ("words", "code", "said"),
    [
        (["--listen", "http://0.0.0.0:80"], exits.CONFIG, "expected https, or a loopback address"),
        (["--set", "gateway.workers=2"], exits.CONFIG, "rank 0 and the gateway are one process"),
        (["--broker-set", "tree.topology=custom"], exits.CONFIG, "saw custom, expected kary:K"),
        (["--topo", "star"], exits.CONFIG, "tree.topology"),
        (["--config", "/nowhere.toml"], exits.CONFIG, "expected a readable TOML file"),
        (["--rundir", "/proc/no"], exits.CONFIG, "run directory /proc/no"),
        (["--pipeline"], exits.USAGE, "--journal DIR is missing"),
    ],
)
def test_a_wrong_option_is_one_line(words, code, said, capsys):
    assert main(["up", *words]) == code
    err = capsys.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1


def test_a_size_that_is_none(capsys):
    with pytest.raises(SystemExit) as left:
        main(["up", "--size", "0"])
    assert left.value.code == exits.USAGE
    assert "expected a number from 1 on" in capsys.readouterr().err


def test_tables_need_java_before_anything_is_started(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(extras, "absent", lambda _modules: [])
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["up", "--journal", str(tmp_path / "journal"), "--pipeline"]) == exits.CONFIG
    (line,) = capsys.readouterr().err.splitlines()
    assert "--pipeline: Java 17 or later: none found on the path" in line
    monkeypatch.setattr(extras, "absent", lambda _modules: ["pyspark", "typer"])
    assert main(["up", "--journal", str(tmp_path / "journal"), "--pipeline"]) == exits.CONFIG
    (line,) = capsys.readouterr().err.splitlines()
    assert "--pipeline: pyspark, typer are not installed: pip install '.[all,spark]'" in line
    assert not (tmp_path / "journal").exists()


async def test_what_makes_tables_is_started_again_and_ends_with_us(monkeypatch, tmp_path, caplog):
    """What it is started as is written down; the first one fails at once."""
    program = "import os, pathlib, signal, sys; ran = pathlib.Path(sys.argv[1]); first = not ran.exists(); "
    program += "ran.write_text(' '.join(sys.argv[2:])); first and sys.exit('no room'); signal.pause()"
    command = (sys.executable, "-c", program, str(tmp_path / "ran"))
    monkeypatch.setattr(interpreter, "command", lambda module: (*command, module))
    tables = companions.pipeline("/j", "/w", str(tmp_path))
    await tables.start(None)
    try:
        with caplog.at_level(logging.DEBUG):
            async with asyncio.timeout(20):
                while caplog.text.count("is started, process") < 2:
                    await asyncio.sleep(0.02)
        assert "pipeline: ended with code 1 (no room), is started again in 0.5 s" in caplog.text
        words = (tmp_path / "ran").read_text()
        assert words == "broker.cli.main pipeline stream --journal /j --warehouse /w"
        assert tables.variables() == {"HEADGATE_WAREHOUSE": "/w"}
    finally:
        await tables.stop()
    await tables.stop()
