"""Options of the driver of 2015 to 2018: taken, or said to change nothing."""

from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_messaging import TransportURL

from broker.oslo.driver import options
from broker.oslo.driver.options import overridden
from tests.tables import for_each


def configured(conf: cfg.ConfigOpts, tmp_path: Path, text: str) -> cfg.ConfigOpts:
    """``conf`` with the lines of a file."""
    file = tmp_path / "service.conf"
    file.write_text(text)
    options.register(conf)
    options.register(conf)
    conf(["--config-file", str(file)], project="headgate-test", default_config_dirs=[])
    return conf


def warn(conf: cfg.ConfigOpts, text: str = "zmq://") -> None:
    url = TransportURL.parse(conf, text)
    options.warn(overridden(conf, url), url)


def test_whoever_sets_none_hears_nothing(conf: cfg.ConfigOpts, caplog: pytest.LogCaptureFixture) -> None:
    options.register(conf)
    warn(conf, "zmq://h1,h2:9500/vhost")
    assert not caplog.messages


@for_each(
    ("line", "instead"),
    [
        ("use_pub_sub = false", "always published"),
        ("rpc_zmq_matchmaker = redis", "[oslo] directories or redis"),
        ("zmq_target_expire = 60", "[oslo] lease_s"),
        ("rpc_zmq_serialization = msgpack", "bodies are JSON"),
        ("rpc_zmq_min_port = 49153", "its ports are fixed"),
        ("call_port = 9601", "[oslo] call_port"),
        ("notify_port = 9603", "[oslo] notify_port"),
    ],
)
def test_what_is_set_in_vain_is_told_with_what_replaces_it(
    conf: cfg.ConfigOpts, tmp_path: Path, caplog: pytest.LogCaptureFixture, line: str, instead: str
) -> None:
    caplog.clear()
    warn(configured(conf, tmp_path, f"[{options.GROUP}]\n{line}\n"))
    (said,) = caplog.messages
    assert said.startswith(f"{line} (of oslo_messaging_zmq) changes nothing: ")
    assert instead in said


def test_the_query_of_a_url_is_looked_at_too(conf: cfg.ConfigOpts, caplog: pytest.LogCaptureFixture) -> None:
    options.register(conf)
    warn(conf, "zmq://?use_dynamic_connections=true&fanout_port=9602")
    said = "\n".join(caplog.messages)
    assert len(caplog.messages) == 2
    assert "use_dynamic_connections = true" in said
    assert "fanout_port = 9602" in said


def test_names_that_mean_the_same_are_taken(conf: cfg.ConfigOpts, tmp_path: Path) -> None:
    configured(conf, tmp_path, f"[{options.GROUP}]\nrpc_cast_timeout = 3\nrpc_zmq_topic_backlog = 77\n")
    assert conf.oslo_messaging_zmq.zmq_linger == 3.0
    assert conf.oslo_messaging_zmq.zmq_inbox_messages == 77


def test_a_password_in_a_url_is_said_to_change_nothing(
    conf: cfg.ConfigOpts, caplog: pytest.LogCaptureFixture
) -> None:
    options.register(conf)
    warn(conf, "zmq://ada:hush@h1")
    (said,) = caplog.messages
    assert "user name and password in the URL change nothing" in said
    assert "zmq_curve_cert" in said
    assert "hush" not in said
    caplog.clear()
    warn(conf, "zmq+redis://ada:hush@r1:6379/0")
    assert not caplog.messages
