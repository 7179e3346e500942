"""Settings read again while a proxy runs: all or nothing, what changes at once, and that nothing is lost by it."""

import logging

import pytest
import zmq

from broker.errors import ConfigError
from broker.identity import Role
from broker.oslo.directory.peer import Peer
from broker.oslo.directory.state import Replica
from broker.oslo.frames import Kind, encode, fanout_filter, new_id
from broker.oslo.names import Pipeline, Reason, exit_file
from broker.oslo.node import EVERYTHING, KeyEntry, Rule
from broker.oslo.reactor import Reactor
from broker.oslo.reactor.tuning import Tuning, curve_to_directory
from broker.oslo.records import to_json
from broker.transport import curve
from tests.live.oslo_raw import Answer, Client, until
from tests.live.oslo_wire import hear

USER = int(Role.USER)


@pytest.fixture(autouse=True)
def _what_is_logged(caplog):
    caplog.set_level(logging.INFO, "headgate.oslo")


def certificate(folder, name):
    made = curve.generate()
    folder.parent.mkdir(exist_ok=True)
    path = folder.parent / f"{name}.cert"
    curve.save(made, path, replace=True)
    return str(path), made


def dial(node, key, own, room="call"):
    return Client(
        node.socket(
            {"call": zmq.DEALER, "cast": zmq.PUSH}.get(room, zmq.XPUB),
            node.tcp(room),
            curve_serverkey=key.encode(),
            curve_publickey=own.public_key.encode(),
            curve_secretkey=own.secret_key.encode(),
        )
    )


def answered(client, server, topic="t"):
    client.call(topic, b"?")
    got = server.get()
    server.reply(got, b"!")
    return client.get().kind == Kind.REPLY


def test_rules_change_for_senders_that_were_judged_before(node, caplog):
    server, client = node.server(), node.client()
    server.open("t")
    assert answered(client, server)
    node.again(rules=(Rule(topics=("t",), action="send", allow=False),))
    client.call("t")
    assert client.get().reason == Reason.DENIED
    node.again(rules=())
    assert answered(client, server)
    assert "reloaded: oslo.rules" in caplog.text


def test_casts_and_fan_outs_are_judged_anew_too(run_node):
    node = run_node(run=frozenset({"cast", "fanout"}))
    server, client = node.server("cast"), node.client("cast")
    server.open("t")
    client.cast("t", b"1")
    assert server.get().body == b"1"
    node.again(rules=(Rule(topics=("t",), action="send", allow=False),))
    client.cast("t", b"2")
    node.counted("cast", "denied")
    assert server.silent()


def test_a_listener_that_may_not_listen_any_more_is_dropped_and_told(node, caplog):
    server = node.server()
    kept, lost = server.open("kept"), server.open("lost")
    node.again(rules=(Rule(topics=("lost",), action="listen", allow=False),))
    asked = Answer(hear(server.ctl))
    assert (asked.kind, asked.reason) == (Kind.REFUSED, Reason.NO_ROUTE), "it is to register again"
    assert node.status("call")["topics"] == {"x/kept": 1}
    assert "reloaded: oslo.rules; 1 listener dropped" in caplog.text
    again = server.ask(Kind.OPEN, to_json(server.opening("lost", listener=lost)))
    assert (again.kind, again.reason) == (Kind.REFUSED, Reason.DENIED)
    assert server.close(kept).kind == Kind.CLOSED


def test_a_fan_out_is_no_longer_heard_by_who_may_not(run_node):
    node = run_node(run=frozenset({"fanout"}))
    sub = node.socket(zmq.SUB, node.config.path(exit_file(Pipeline.FANOUT)))
    for topic in ("kept", "lost"):
        sub.setsockopt(zmq.SUBSCRIBE, fanout_filter("x", topic))
    until(lambda: node.status("fanout")["topics"] == {"x/kept": 1, "x/lost": 1}, "both")
    node.again(rules=(Rule(topics=("lost",), action="listen", allow=False),))
    until(lambda: not sub.poll(1) and node.status("fanout")["topics"] == {"x/kept": 1}, "only one of them")
    node.counted("fanout", "subscription_denied")


def test_a_key_that_is_taken_out_is_denied_at_its_next_message(folder, run_node):
    path, made = certificate(folder, "node")
    gone, stays = curve.generate(), curve.generate()
    keys = tuple(KeyEntry(each.public_key) for each in (gone, stays))
    node = run_node(curve_cert=path, keys=keys, unlisted=0)
    server = node.server()
    server.open("t")
    clients = [dial(node, made.public_key, each) for each in (gone, stays)]
    assert all(answered(client, server) for client in clients)
    node.again(keys=keys[1:])
    clients[0].call("t")
    assert clients[0].get().reason == Reason.DENIED
    assert answered(clients[1], server)
    assert dial(node, made.public_key, gone).unheard("t")


def test_a_new_certificate_loses_no_connection_and_no_call(folder, run_node, caplog):
    path, former = certificate(folder, "node")
    own = curve.generate()
    node = run_node(curve_cert=path, unlisted=USER)
    server, held = node.server(), dial(node, former.public_key, own)
    server.open("t")
    held.call("t", b"before")
    under_way = server.get()
    _, new = certificate(folder, "node")
    node.again()
    assert f"our certificate (public key {new.public_key})" in caplog.text
    server.reply(under_way, b"after")
    assert held.get().rest == [b"after"]
    assert answered(held, server)
    assert answered(dial(node, new.public_key, own), server)
    assert dial(node, former.public_key, own).unheard("t")
    assert answered(held, server)
    for _ in range(3):  # again and again
        _, new = certificate(folder, "node")
        node.again()
        assert answered(dial(node, new.public_key, own), server)
        assert answered(held, server)


def test_casts_go_on_under_a_new_certificate(folder, run_node):
    path, former = certificate(folder, "node")
    own = curve.generate()
    node = run_node(curve_cert=path, unlisted=USER)
    server, held = node.server("cast"), dial(node, former.public_key, own, "cast")
    server.open("t")
    held.cast("t", b"1")
    _, new = certificate(folder, "node")
    node.again()
    held.cast("t", b"2")
    assert [server.get().body for _ in range(2)] == [b"1", b"2"]
    dial(node, new.public_key, own, "cast").cast("t", b"3")
    assert server.get().body == b"3"
    assert node.status("cast")["settings"]["public_key"] == new.public_key


@pytest.mark.parametrize("room", ["fanout", "notify"])
def test_publishers_go_on_under_a_new_certificate(folder, run_node, room):
    path, former = certificate(folder, "node")
    own = curve.generate()
    node = run_node(curve_cert=path, unlisted=USER, run=frozenset({room}))
    first = dial(node, former.public_key, own, room).sock
    if room == "fanout":
        sub = node.socket(zmq.SUB, node.config.path(exit_file(Pipeline.FANOUT)))
        sub.setsockopt(zmq.SUBSCRIBE, fanout_filter("x", "t"))
        assert first.recv() == b"\1" + fanout_filter("x", "t")
    _, new = certificate(folder, "node")
    node.again()
    second = dial(node, new.public_key, own, room).sock
    if room == "fanout":
        assert second.recv() == b"\1" + fanout_filter("x", "t")
        for sock in (first, second):
            sock.send_multipart([fanout_filter("x", "t"), encode(Kind.FANOUT, "x", "t", id=new_id()), b"."])
        node.counted("fanout", "published", 2)
    assert node.status(room)["settings"]["public_key"] == new.public_key


def test_the_directory_is_told_the_new_key(folder, run_node):
    path, former = certificate(folder, "node")
    node = run_node(curve_cert=path, unlisted=USER, run=EVERYTHING, beat_s=0.1)

    def keys():
        offers = node.within(lambda: [state.key for state in node.proxy.directory.replica.states()])
        return set(offers)

    until(lambda: keys() == {former.public_key}, "the former key")
    _, new = certificate(folder, "node")
    node.again()
    until(lambda: keys() == {new.public_key}, "the new key")


def test_what_is_wrong_changes_nothing_and_is_one_line(node, caplog):
    server, client = node.server(), node.client()
    server.open("t")
    node.next = ConfigError("broker.toml:3: not TOML\nat all")
    node.again()
    assert "reload refused, nothing has changed: broker.toml:3: not TOML; at all" in caplog.text
    assert answered(client, server)
    told = node.status("call")["settings"]
    assert (told["done"], told["refused"]) == (0, 1)


def test_a_certificate_that_cannot_be_read_keeps_the_one_in_force(folder, run_node, caplog):
    path, made = certificate(folder, "node")
    node = run_node(curve_cert=path, unlisted=USER)
    server = node.server()
    server.open("t")
    open(path, "w").close()
    node.again(rules=(Rule(allow=False),))
    assert "reload refused, nothing has changed" in caplog.text
    assert answered(dial(node, made.public_key, curve.generate()), server)


def test_curve_is_not_switched_off(folder, run_node, caplog):
    path, _made = certificate(folder, "node")
    node = run_node(curve_cert=path, unlisted=USER)
    node.again(curve_cert="")
    assert "CURVE is not switched on or off while the proxy runs" in caplog.text


def test_status_tells_what_is_in_force(node):
    before = dict(node.status("call")["settings"])
    assert (before["done"], before["refused"], before["public_key"]) == (0, 0, "")
    node.again()
    same = dict(node.status("cast")["settings"])
    assert same["fingerprint"] == before["fingerprint"]
    assert same["read_at"] >= before["read_at"]
    node.again(unlisted=0)
    assert node.status("call")["settings"]["fingerprint"] != before["fingerprint"]
    assert node.status("call")["settings"]["done"] == 2


def test_at_the_directory_a_key_that_is_taken_out_is_told_nothing_more(folder, run_node):
    path, made = certificate(folder, "node")
    own = curve.generate()
    node = run_node(
        curve_cert=path, run=frozenset({"directory"}), keys=(KeyEntry(own.public_key),), unlisted=0
    )
    reactor = Reactor()
    reactor.open()
    where = node.status("directory")["sockets"][-1]["endpoint"]
    tuning = Tuning(curve=curve_to_directory(own, made.public_key))
    link = Peer(reactor, where, Replica(), tunings=lambda: (tuning,), pulse_s=0.05)
    try:
        until(lambda: (reactor.call_later(0.01, int), reactor.turn(), link.alive)[-1], "an answer")
        node.again(keys=())
        until(
            lambda: (reactor.call_later(0.01, int), reactor.turn(), link.counts["refused"])[-1], "a refusal"
        )
        assert node.status("directory")["sockets"][-1]["peers"] == 0
    finally:
        link.close()
        reactor.close()
