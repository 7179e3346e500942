"""What a request asks for, what the server is sent, what its reply says, and who may ask."""

import errno
import zlib

import msgspec
import pytest

from broker.errors import RpcError
from broker.identity import Credentials, Role
from broker.oslo.contract import Address, CallTimeout, Refused, Undelivered, Unroutable
from broker.oslo.names import Reason
from broker.oslo.service import CallRule, policy, topics
from tests.tables import for_each

USER = Credentials(1000, int(Role.USER))
OWNER = Credentials(0, int(Role.OWNER))
GUEST = Credentials(1000, 0)


def payload(**said):
    return msgspec.json.encode(said) + b"\0"


def refused(call, *words):
    with pytest.raises(RpcError) as caught:
        call(*words)
    return caught.value.errno, str(caught.value)


# ---------------------------------------------------------------- requests


@for_each(
    ("topic", "expected"),
    [
        ("oslo.nova.compute.reboot", (Address("nova", "compute"), "reboot")),
        ("oslo.nova.compute.a1.lab.reboot", (Address("nova", "compute.a1.lab"), "reboot")),
    ],
)
def test_the_method_is_the_last_word_and_the_exchange_the_first(topic, expected):
    what = topics.asked(topic, None)
    assert (what.address, what.method) == expected
    assert (what.send.mode, what.send.args, what.send.mandatory) == ("call", {}, True)


def test_other_names_stand_in_the_payload():
    said = payload(exchange="a.b", topic="c", method="cancel", server="s@1", mode="cast", args={"n": 1})
    what = topics.asked("oslo.send", said)
    assert (what.address, what.method, what.send.mode) == (Address("a.b", "c", "s@1"), "cancel", "cast")


@for_each(
    ("topic", "said", "number", "text"),
    [
        ("oslo.nova.compute", None, errno.ENOSYS, "expected oslo.EXCHANGE.TOPIC.METHOD"),
        ("oslo.nova..reboot", None, errno.ENOSYS, "expected oslo.EXCHANGE.TOPIC.METHOD"),
        ("oslo.a.b.c", b"[]\0", errno.EINVAL, "expected a JSON object"),
        ("oslo.a.b.c", payload(arg={}), errno.EINVAL, "arg"),
        ("oslo.a.b.c", payload(args=[]), errno.EINVAL, "args"),
        ("oslo.a.b.c", payload(mode="shout"), errno.EINVAL, "mode"),
        ("oslo.a.b.c", payload(timeout=0), errno.EINVAL, "timeout"),
        ("oslo.a.b.c", payload(mode="fanout", server="s"), errno.EINVAL, "expected one of them"),
        ("oslo.a.b.c", payload(server="a\0b"), errno.EINVAL, "NUL"),
        ("oslo.send", payload(exchange="a", topic="b"), errno.EINVAL, "method"),
        (
            "oslo.send",
            payload(exchange="é" * 200, topic="b", method="c"),
            errno.EINVAL,
            "expected 255",
        ),
    ],
)
def test_what_cannot_be_sent(topic, said, number, text):
    seen, why = refused(topics.asked, topic, said)
    assert seen == number
    assert text in why


def test_the_server_sees_who_calls_and_nobody_can_pretend():
    forged = payload(
        ctxt={"headgate": {"userid": 0, "rolemask": 1}, "tenant": "t"}, namespace="n", version="1.1"
    )
    body = topics.body_of(topics.asked("oslo.a.b.c", forged), USER)
    assert msgspec.json.decode(body) == {
        "ctxt": {"tenant": "t", "headgate": {"userid": 1000, "rolemask": 2}},
        "message": {"method": "c", "args": {}, "namespace": "n", "version": "1.1"},
    }
    plain = msgspec.json.decode(topics.body_of(topics.asked("oslo.a.b.c", None), OWNER))
    assert plain["message"] == {"method": "c", "args": {}}


# ---------------------------------------------------------------- replies


@for_each("result", [None, 3, "x", [1], {"a": None}])
def test_results(result):
    assert topics.result_of(msgspec.json.encode({"result": result})) == result
    assert topics.result_of(zlib.compress(msgspec.json.encode({"result": result}))) == result


@for_each(
    ("failure", "text"),
    [
        ('{"class":"ValueError","module":"builtins","message":"no host","tb":["secret"]}', "ValueError: no host"),
        ('{"class":"Gone","module":"nova.exception","message":""}', "nova.exception.Gone"),
        ("no JSON", "the server raised an exception that cannot be read"),
        ("[1]", "the server raised an exception that cannot be read"),
        (7, "the server raised an exception that cannot be read"),
        ("[" * 100_000, "the server raised an exception that cannot be read"),
    ],
)  # fmt: skip
def test_what_a_server_raised(failure, text):
    assert refused(topics.result_of, msgspec.json.encode({"failure": failure})) == (errno.EIO, text)


def test_a_long_message_is_cut():
    text = topics.failure_text(msgspec.json.encode({"class": "E", "message": "x" * 5000}))
    assert (len(text), text[-4:]) == (topics.FAILURE_CHARS_MAX, "x...")


@for_each(
    "body", [b"", b"\xff", b"[]", b'{"other":1}', b'{"result":"\xff"}', b"[" * 100_000, b'{"result":1e999}']
)
def test_what_is_no_reply(body):
    assert refused(topics.result_of, body)[0] == errno.EPROTO


@for_each(
    ("error", "number"),
    [
        (CallTimeout("late"), errno.ETIMEDOUT),
        (Unroutable("nobody"), errno.EHOSTUNREACH),
        (Undelivered("nobody"), errno.EHOSTUNREACH),
        (Refused("no", Reason.DENIED), errno.EPERM),
        (Refused("no", Reason.BUSY), errno.EAGAIN),
    ],
)
def test_failures_of_the_pipelines(error, number):
    told = topics.error_of(error, topics.asked("oslo.a.b.c", None))
    assert told.errno == number
    assert str(told).startswith("a/b: ")


def test_the_address_is_said_once():
    what = topics.asked("oslo.a.b.c", None)
    assert str(topics.error_of(Unroutable("a/b: nobody listens there"), what)) == "a/b: nobody listens there"


# ---------------------------------------------------------------- who may


def may(rules, who, exchange="nova", topic="compute", method="show", mode="call"):
    try:
        policy.check(rules, who, Address(exchange, topic), method, mode)
    except RpcError as error:
        return error.errno != errno.EPERM
    return True


def test_without_rules_owners_may_everything_and_others_nothing():
    assert may((), OWNER)
    assert not may((), USER)
    assert not may((), GUEST)
    with pytest.raises(RpcError) as caught:
        policy.check((), USER, Address("nova", "compute"), "show", "cast")
    assert caught.value.errno == errno.EPERM
    assert "no rule lets you cast 'show' at nova/compute" in str(caught.value)


def test_the_first_fitting_rule_decides():
    rules = (CallRule(methods=("del*",), allow=False), CallRule(exchanges=("nova",), topics=("comp*",)))
    assert may(rules, USER)
    assert not may(rules, USER, method="delete")
    assert not may(rules, USER, exchange="cinder")
    assert not may(rules, USER, topic="scheduler")
    assert may(rules, OWNER, method="delete")


def test_rules_are_about_roles_users_and_modes():
    assert not may((CallRule(),), USER, mode="fanout")
    assert may((CallRule(modes=("fanout",)),), USER, mode="fanout")
    assert not may((CallRule(roles=int(Role.ADMIN)),), USER)
    assert may((CallRule(roles=int(Role.ADMIN)),), Credentials(1, int(Role.ADMIN | Role.USER)))
    assert may((CallRule(users=(1000,)),), USER)
    assert not may((CallRule(users=(1001,)),), USER)
    assert not may((CallRule(),), GUEST)


def test_the_context_is_written_by_owners_and_where_the_rule_says_so():
    rules = (CallRule(topics=("open",), ctxt=True), CallRule())

    def check(who, topic="compute", **more):
        policy.check(rules, who, Address("nova", topic), "show", "call", **more)

    check(USER)
    check(USER, "open", ctxt=True)
    check(OWNER, ctxt=True)
    for who, more in ((USER, {"ctxt": True}), (GUEST, {})):
        with pytest.raises(RpcError) as caught:
            check(who, **more)
        assert caught.value.errno == errno.EPERM
        assert ("does not let you write its ctxt" in str(caught.value)) == (who is USER)


def test_what_is_listed_is_what_something_may_be_called_at():
    rules = (CallRule(topics=("comp*",), methods=("show",), modes=("cast",)),)
    assert policy.may_see(rules, USER, "nova", "compute")
    assert not policy.may_see(rules, USER, "nova", "scheduler")
    assert not policy.may_see(rules, GUEST, "nova", "compute")
    assert policy.may_see((), OWNER, "nova", "scheduler")
