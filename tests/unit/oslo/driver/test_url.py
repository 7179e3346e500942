"""What a transport URL and the options become."""

import os
import re
import sys
from pathlib import Path

import pytest
from oslo_config import cfg
from oslo_messaging import InvalidTransportURL, TransportURL, exceptions
from oslo_messaging._drivers import common

from broker.extras import install
from broker.oslo import node
from broker.oslo.contract import Settings
from broker.oslo.driver import options
from broker.oslo.driver.options import Exchanges, masked, read_settings
from broker.oslo.node import client_ipc_dir
from broker.transport import curve
from tests.tables import for_each


def settings(conf: cfg.ConfigOpts, text: str, **overrides: object) -> Settings:
    options.register(conf)
    for name, value in overrides.items():
        conf.set_override(name, value, group=options.GROUP)
    url = TransportURL.parse(conf, text)
    return read_settings(common.ConfigOptsProxy(conf, url, options.GROUP).oslo_messaging_zmq, url)


def test_without_any_option_the_settings_are_those_of_the_contract(conf: cfg.ConfigOpts) -> None:
    assert settings(conf, "zmq://") == Settings(ipc_dir=client_ipc_dir())


@for_each(
    ("url", "expected"),
    [
        ("zmq://", ()),
        ("zmq://h1", ("tcp://h1:9500",)),
        ("zmq://h1,h2:9599/", ("tcp://h1:9500", "tcp://h2:9599")),
        ("zmq://h1,h1:9500", ("tcp://h1:9500",)),
        ("zmq://user:word@h1:1,user:word@h2", ("tcp://h1:1", "tcp://h2:9500")),
        ("zmq://[::1]:9600,[fe80::2]", ("tcp://[::1]:9600", "tcp://[fe80::2]:9500")),
        ("zmq://h1/?zmq_directory_port=77", ("tcp://h1:77",)),
        ("zmq+redis://r1:6379,r2/0", ()),
        ("zmq+sentinel://s1:26379/mymaster", ()),
    ],
)
def test_hosts_of_a_url_are_directories_unless_they_are_redis(
    conf: cfg.ConfigOpts, tmp_path: Path, url: str, expected: tuple[str, ...]
) -> None:
    assert settings(conf, url, rpc_zmq_ipc_dir=str(tmp_path)).directories == expected


@for_each(
    ("url", "expected"),
    [
        ("zmq+redis://r1:6380,r2/3", ("redis://r1:6380/3", "redis://r2:6379/3")),
        ("zmq+redis://ada:hu%40sh@[::1]:1", ("redis://ada:hu%40sh@[::1]:1/",)),
        ("zmq+sentinel://s1,s2:7/mine", ("sentinel://s1:26379,s2:7/mine",)),
        ("zmq+sentinel://:hush@s1", ("sentinel://:hush@s1:26379/oslo-messaging-zeromq",)),
        ("zmq+redis://", ()),
        ("zmq+redis://r1?fanout_ds_address=d1,rediss://r2", ("rediss://r2",)),
        ("zmq://d1?fanout_ds_address=sentinel://s1:1/x", ("sentinel://s1:1/x",)),
    ],
)
def test_redis_is_read_where_no_proxy_reads_it(
    conf: cfg.ConfigOpts,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    url: str,
    expected: tuple[str, ...],
) -> None:
    caplog.clear()
    found = settings(conf, url, rpc_zmq_ipc_dir="/no/proxy/here")
    assert tuple(url.reveal() for url in found.redis) == expected
    assert bool(caplog.messages) is not bool(expected)  # that there is no proxy
    assert "hush" not in f"{found}{caplog.text}"
    assert settings(conf, url, rpc_zmq_ipc_dir=str(tmp_path)).redis == ()


@pytest.mark.parametrize(
    ("url", "said"),
    [
        (
            "zmq://?fanout_ds_address=redis://ada:hush@r1:words",
            "Redis server 1 of fanout_ds_address or the URL: expected redis://",
        ),
        ("zmq://?fanout_ds_address=sentinel://s1:1", "expected sentinel://host:port"),
    ],
)
def test_a_redis_that_cannot_be_is_refused(conf: cfg.ConfigOpts, url: str, said: str) -> None:
    with pytest.raises(exceptions.ConfigurationError) as caught:
        settings(conf, url, rpc_zmq_ipc_dir="/no/proxy/here")
    assert said in str(caught.value)
    assert "hush" not in str(caught.value)


def test_without_redis_py_it_is_said_what_to_install(
    conf: cfg.ConfigOpts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "redis", None)
    for part in ("backoff", "retry", "sentinel"):
        monkeypatch.setitem(sys.modules, f"redis.{part}", None)
    said = re.escape(f"{install('redis')}; a proxy on this node")
    with pytest.raises(exceptions.ConfigurationError, match=said):
        settings(conf, "zmq+redis://r1", rpc_zmq_ipc_dir="/no/proxy/here")


@pytest.mark.parametrize("scheme", ["zmq", "zmq+redis"])
def test_fanout_ds_address_wins_over_the_hosts(conf: cfg.ConfigOpts, scheme: str) -> None:
    named = [
        "d1",
        " d2:1 ",
        "[::1]",
        "[::1]:2",
        "fe80::1",
        "tcp://d1:9500",
        "redis://r1:6379",
        "sentinel://s:1/x",
    ]
    assert settings(conf, f"{scheme}://h1:7/", fanout_ds_address=named).directories == (
        "tcp://d1:9500",
        "tcp://d2:1",
        "tcp://[::1]:9500",
        "tcp://[::1]:2",
        "tcp://[fe80::1]:9500",
    )


@for_each("text", ["d1:", "d1:port", "d1:0", "d1:65536", "http://d1", ":9500", "a/b"])
def test_an_address_that_cannot_be_is_refused_by_name(conf: cfg.ConfigOpts, text: str) -> None:
    with pytest.raises(exceptions.ConfigurationError, match="fanout_ds_address"):
        settings(conf, "zmq://", fanout_ds_address=[text])


def test_the_query_of_a_url_overrides_options_and_converts_them(conf: cfg.ConfigOpts) -> None:
    found = settings(
        conf,
        "zmq://?zmq_linger=0.5&rpc_zmq_ipc_dir=/run/x&zmq_tcp_keepalive=0&zmq_inbox_messages=7&fanout_ds_address=a,b:1",
        zmq_linger=9.0,
    )
    assert (found.linger_s, found.ipc_dir, found.keepalive[0], found.inbox_msgs) == (0.5, "/run/x", False, 7)
    assert found.directories == ("tcp://a:9500", "tcp://b:1")


def test_every_option_reaches_the_settings(conf: cfg.ConfigOpts, tmp_path: Path) -> None:
    certificate = curve.generate()
    path = tmp_path / "mine.cert"
    curve.save(certificate, path)
    found = settings(
        conf,
        "zmq://",
        rpc_zmq_ipc_dir="/run/y",
        rpc_zmq_host="node-1",
        zmq_curve_cert=str(path),
        zmq_curve_directory_key=certificate.public_key.replace("$", "$$"),
        zmq_tcp_keepalive_idle=11,
        zmq_tcp_keepalive_cnt=12,
        zmq_tcp_keepalive_intvl=13,
        zmq_linger=1.5,
        rpc_zmq_ready_timeout=2.5,
        zmq_fanout_wait=3.5,
        zmq_retry_interval=4.5,
        zmq_inbox_messages=21,
        zmq_inbox_bytes=22,
        zmq_outbox_messages=23,
        zmq_outbox_bytes=24,
        rpc_zmq_message_max=100_000,
    )
    assert found == Settings(
        ipc_dir="/run/y",
        directory_key=certificate.public_key,
        curve_cert=str(path),
        keepalive=(True, 11, 12, 13),
        linger_s=1.5,
        ready_s=2.5,
        fanout_wait_s=3.5,
        retry_s=4.5,
        inbox_msgs=21,
        inbox_bytes=22,
        outbox_msgs=23,
        outbox_bytes=24,
        message_bytes_max=100_000,
        node="node-1",
    )


def test_the_key_of_the_directory_may_be_in_a_file(conf: cfg.ConfigOpts, tmp_path: Path) -> None:
    certificate = curve.generate()
    path = tmp_path / "directory.cert"
    curve.save(certificate.public, path)
    assert settings(conf, f"zmq://d1?zmq_curve_directory_key={path}").directory_key == certificate.public_key
    path.write_text("nonsense")
    with pytest.raises(exceptions.ConfigurationError, match=r"directory\.cert"):
        settings(conf, f"zmq://d1?zmq_curve_directory_key={path}")


@for_each(("option", "expected"), [(-1, 60.0), (0, 0.0), (3600, 60.0), (1.25, 1.25)])
def test_lingering_is_bounded_whatever_is_asked(conf: cfg.ConfigOpts, option: float, expected: float) -> None:
    assert settings(conf, "zmq://", zmq_linger=option).linger_s == expected


@pytest.mark.parametrize("option", [-1, 0])
def test_keep_alive_as_the_system_has_it_is_off(conf: cfg.ConfigOpts, option: int) -> None:
    assert settings(conf, "zmq://", zmq_tcp_keepalive=option).keepalive[0] is False


def test_values_that_cannot_be_are_refused(conf: cfg.ConfigOpts) -> None:
    with pytest.raises(ValueError, match="abc"):
        settings(conf, "zmq://?zmq_linger=abc")
    with pytest.raises(cfg.NoSuchOptError):
        settings(conf, "zmq://?no_such_option=1")
    with pytest.raises(exceptions.ConfigurationError, match="_directory_key: expected 40 characters of Z85"):
        settings(conf, "zmq://?zmq_curve_directory_key=short")
    with pytest.raises(exceptions.ConfigurationError, match=r"zmq_curve_cert: .*/no/such\.cert"):
        settings(conf, "zmq://?zmq_curve_cert=/no/such.cert")
    with pytest.raises(exceptions.ConfigurationError, match="rpc_zmq_ipc_dir"):
        settings(conf, "zmq://?rpc_zmq_ipc_dir=/" + "d" * 120)
    with pytest.raises(InvalidTransportURL, match="expected one of zmq"):
        settings(conf, "zmq+etcd://h1")
    with pytest.raises(InvalidTransportURL, match="without a name"):
        settings(conf, "zmq://:9500")
    with pytest.raises(InvalidTransportURL, match="'words', expected a number"):
        settings(conf, "zmq+redis://r1/words", rpc_zmq_ipc_dir="/no/proxy/here")
    with pytest.raises(InvalidTransportURL, match="port 65536"):
        settings(conf, "zmq://h1:65536")


def test_no_text_has_a_password(conf: cfg.ConfigOpts) -> None:
    url = TransportURL.parse(conf, "zmq+etcd://ada:hush@h1:1,ada:hush@[::1]/a%2Fb?zmq_linger=1")
    assert masked(url) == "zmq+etcd://h1:1,[::1]/a/b"
    with pytest.raises(InvalidTransportURL) as caught:
        settings(conf, "zmq+etcd://ada:hush@h1:1")
    assert "hush" not in str(caught.value)


def exchanges(conf: cfg.ConfigOpts, text: str) -> Exchanges:
    return Exchanges(TransportURL.parse(conf, text))


@for_each("url", ["zmq://", "zmq://h", "zmq://h/", "zmq://h//", "zmq+redis://r/3", "zmq+sentinel://s/m"])
def test_without_a_virtual_host_exchanges_keep_their_names(conf: cfg.ConfigOpts, url: str) -> None:
    assert exchanges(conf, url).wire("nova") == "nova"


def test_virtual_hosts_share_no_exchange(conf: cfg.ConfigOpts) -> None:
    names = {
        exchanges(conf, url).wire(exchange)
        for url in ("zmq://h", "zmq://h/a", "zmq://h/b", "zmq://h/a%2Fb", "zmq://h/a%2Fb%2Fnova")
        for exchange in ("nova", "a/nova", "/a/nova", "/nova", "b/nova", "b/nova/nova")
    }
    assert len(names) == 5 * 6
    assert exchanges(conf, "zmq://h/a%2Fb").wire("nova") == "/a%2Fb/nova"


@pytest.mark.parametrize("named", [True, False])
def test_a_driver_that_finds_no_proxy_says_where_it_looked(
    conf: cfg.ConfigOpts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    named: bool,
) -> None:
    monkeypatch.delenv("HEADGATE_OSLO_DIR", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 1000)
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/1000")
    monkeypatch.setattr(node, "NODE_DIR", str(tmp_path))
    settings(conf, f"zmq://?rpc_zmq_ipc_dir={tmp_path}" if named else "zmq://")
    (said,) = caplog.messages
    assert said.startswith(f"no proxy of this node yet: {tmp_path}/directory.ctl is missing")
    assert ("of this user alone in /run/user/1000/headgate/oslo" in said) is not named
    caplog.clear()
    (tmp_path / "directory.ctl").touch()
    settings(conf, "zmq://")
    settings(conf, "zmq://elsewhere?rpc_zmq_ipc_dir=/nowhere")
    assert not caplog.messages
