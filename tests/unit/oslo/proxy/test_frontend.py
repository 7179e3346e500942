"""A pipeline's sockets for clients: keys, limits, options, and what is refused."""

import os
import socket
import time

import pytest
import zmq

from broker.errors import ConfigError
from broker.identity import Role
from broker.oslo.names import Pipeline
from broker.oslo.node import KeyEntry
from broker.oslo.proxy.acl import AccessControl
from broker.oslo.proxy.frontend import Frontend
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.tuning import join_curve
from broker.transport import curve
from tests.live.oslo_raw import config_at, until


@pytest.fixture
def reactor(folder):
    folder.mkdir(mode=0o700)
    made = Reactor()
    made.open()
    yield made
    made.context.destroy(0)
    made.close()


def entry_at(reactor, config, kind=zmq.ROUTER):
    return Frontend(reactor, config, Pipeline.CALL, kind, AccessControl(config), lambda *_message: None)


def certificate(folder, name="node") -> tuple[str, curve.Certificate]:
    made = curve.generate()
    path = f"{folder}-{name}"
    curve.save(made, path)
    return path, made


def test_every_tcp_socket_has_keep_alive(reactor, folder):
    config = config_at(folder, keepalive=(True, 7, 4, 3))
    for kind in (zmq.ROUTER, zmq.PULL, zmq.XSUB, zmq.SUB):
        frontend = entry_at(reactor, config, kind)
        tcp, local = frontend.sockets
        names = (zmq.TCP_KEEPALIVE, zmq.TCP_KEEPALIVE_IDLE, zmq.TCP_KEEPALIVE_CNT, zmq.TCP_KEEPALIVE_INTVL)
        assert [tcp.sock.get(name) for name in names] == [1, 7, 4, 3]
        assert tcp.sock.get(zmq.MAXMSGSIZE) == local.sock.get(zmq.MAXMSGSIZE) == config.message_bytes_max
        frontend.close()


def test_without_host_there_is_no_tcp(reactor, folder):
    frontend = entry_at(reactor, config_at(folder, host=""))
    assert (len(frontend.sockets), frontend.endpoint) == (1, "")
    assert [each["endpoint"] for each in frontend.status()] == [f"ipc://{folder}/call.in"]
    frontend.close()
    frontend.close()
    assert not os.path.exists(f"{folder}/call.in")


def test_what_others_dial(reactor, folder):
    frontend = entry_at(reactor, config_at(folder, node="nova-7"))
    assert frontend.endpoint.startswith("tcp://nova-7:")
    frontend.close()
    frontend = entry_at(reactor, config_at(folder, node="nova-7", advertise="::1"))
    assert frontend.endpoint.startswith("tcp://[::1]:")
    frontend.close()
    for wrong in ("a/b", "a:5", "tcp://x"):
        with pytest.raises(ConfigError, match="advertise"):
            entry_at(reactor, config_at(folder, advertise=wrong))


@pytest.mark.parametrize("host", ["0.0.0.0", "*"])
def test_plaintext_off_loopback_is_refused(reactor, folder, host):
    with pytest.raises(ConfigError, match="plaintext off loopback"):
        entry_at(reactor, config_at(folder, host=host))
    path, _made = certificate(folder)
    for allowed in ({"insecure": True}, {"curve_cert": path}):
        entry_at(reactor, config_at(folder, host=host, **allowed)).close()


def test_a_name_of_loopback_is_loopback(reactor, folder):
    entry_at(reactor, config_at(folder, host="localhost")).close()
    with pytest.raises(ConfigError, match="plaintext off loopback"):
        entry_at(reactor, config_at(folder, host="node7.invalid"))


def test_a_port_in_use_is_refused_and_nothing_is_left(reactor, folder):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = {**dict.fromkeys(Pipeline, 0), Pipeline.CALL: taken.getsockname()[1]}
        with pytest.raises(ConfigError, match=r"cannot listen at tcp://127\.0\.0\.1"):
            entry_at(reactor, config_at(folder, ports=ports))
    assert not os.path.exists(f"{folder}/call.in")


def test_a_path_in_use_is_refused(reactor, folder):
    with socket.socket(socket.AF_UNIX) as taken:
        taken.bind(f"{folder}/call.in")
        taken.listen()
        with pytest.raises(ConfigError, match="Address already in use, by this very process"):
            entry_at(reactor, config_at(folder))
    assert os.path.exists(f"{folder}/call.in")  # not ours to delete


def test_a_socket_that_could_not_be_given_to_its_group_is_not_left(reactor, folder):
    with pytest.raises(ConfigError, match="no such group"):
        entry_at(reactor, config_at(folder, ipc_group="no-such-group"))
    assert not os.path.exists(f"{folder}/call.in")


def test_a_group_may_use_the_sockets(reactor, folder):
    frontend = entry_at(reactor, config_at(folder, ipc_group=str(os.getgid())))
    found = os.stat(f"{folder}/call.in")
    assert (found.st_mode & 0o777, found.st_gid) == (0o660, os.getgid())
    frontend.close()


def curve_client(node, server_key, own):
    return node.client(
        tcp=True,
        curve_serverkey=server_key.encode(),
        curve_publickey=own.public_key.encode(),
        curve_secretkey=own.secret_key.encode(),
    )


def test_keys_say_who_is_who(run_node, folder):
    path, made = certificate(folder)
    known, stranger = curve.generate(), curve.generate()
    keys = (KeyEntry(known.public_key, "nova", 4711, int(Role.USER | Role.ADMIN | Role.LOCAL)),)
    node = run_node(curve_cert=path, keys=keys, unlisted=0)
    server = node.server()
    server.open("t")
    client = curve_client(node, made.public_key, known)
    client.call("t")
    got = server.get()
    assert (got.envelope.userid, got.envelope.rolemask) == (4711, Role.USER | Role.ADMIN)
    server.reply(got, b"r")
    assert client.get().rest == [b"r"]
    for refused in (
        curve_client(node, made.public_key, stranger),
        curve_client(node, curve.generate().public_key, known),
        node.client(tcp=True),
    ):
        refused.sock.poll(50, zmq.POLLOUT)
        assert refused.unheard("t")
    assert server.silent(50)
    until(lambda: node.status("call")["connections_denied"], "the stranger to be counted")


def test_our_own_key_is_known_and_no_other_unless_a_setting_lets_it_in(run_node, folder):
    path, made = certificate(folder)
    node = run_node(curve_cert=path)
    server = node.server()
    server.open("t")
    curve_client(node, made.public_key, made).call("t")
    assert server.get().envelope.rolemask == Role.USER
    stranger = curve_client(node, made.public_key, curve.generate())
    stranger.sock.poll(50, zmq.POLLOUT)
    assert stranger.unheard("t")
    until(lambda: node.status("call")["connections_denied"], "the stranger to be counted")
    assert server.silent(50)


def test_a_setting_lets_every_key_in(run_node, folder):
    path, made = certificate(folder)
    node = run_node(curve_cert=path, unlisted=int(Role.USER))
    server = node.server()
    server.open("t")
    curve_client(node, made.public_key, curve.generate()).call("t")
    assert server.get().envelope.rolemask == Role.USER


@pytest.mark.parametrize(
    ("pipeline", "kind", "theirs"),
    [
        (Pipeline.CALL, zmq.ROUTER, zmq.DEALER),
        (Pipeline.CAST, zmq.PULL, zmq.PUSH),
        (Pipeline.FANOUT, zmq.XSUB, zmq.XPUB),
        (Pipeline.NOTIFY, zmq.SUB, zmq.XPUB),
    ],
)
def test_every_pipeline_is_closed_to_unknown_keys(reactor, folder, pipeline, kind, theirs):
    path, made = certificate(folder)
    config = config_at(folder, curve_cert=path, ports=dict.fromkeys(Pipeline, 0))
    acl = AccessControl(config)
    entry = Frontend(reactor, config, pipeline, kind, acl, lambda *_message: None)
    with zmq.Context() as context:
        for own, enters in ((made, True), (curve.generate(), False)):
            before = acl.denied
            with (
                context.socket(theirs) as sock,
                sock.get_monitor_socket(zmq.EVENT_HANDSHAKE_SUCCEEDED) as seen,
            ):
                sock.set(zmq.LINGER, 0)
                join_curve(sock, curve.CurveClient(own, made.public_key))
                sock.connect(f"tcp://127.0.0.1:{entry.endpoint.rpartition(':')[2]}")
                deadline = time.monotonic() + 10
                while not (seen.poll(0) or acl.denied > before):
                    assert time.monotonic() < deadline
                    alarm = reactor.call_later(0.01, lambda: None)
                    reactor.turn()
                    alarm.cancel()
                assert bool(seen.poll(0)) is enters
    entry.close()


def test_the_advertised_key_is_that_of_the_socket(reactor, folder):
    path, made = certificate(folder)
    frontend = entry_at(reactor, config_at(folder, curve_cert=path))
    assert frontend.key == made.public_key
    frontend.close()
    with pytest.raises(ConfigError):
        entry_at(reactor, config_at(folder, curve_cert=f"{folder}-missing"))


@pytest.mark.parametrize("tcp", [False, True])
def test_oversized_frames_end_their_connection_alone(run_node, tcp):
    node = run_node(message_bytes_max=100_000)
    server, client, other = node.server(), node.client(tcp=tcp), node.client(tcp=tcp)
    server.open("t")
    client.call("t", bytes(200_000))
    assert client.silent(50)
    other.call("t", b"fits")
    assert server.get().body == b"fits"
    assert node.status("call")["entries"][0 if tcp else 1]["in"] == 1
