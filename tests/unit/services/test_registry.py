"""All services together: who may call what, and that no payload upsets any of them."""

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from broker.identity import Role
from broker.wire.message import NORESPONSE, STREAMING
from tests.tables import for_each
from tests.unit.services.desk import GUEST, NOBODY, OWNER, Desk, assert_no_lines

ALL, USER, OWNERS = int(Role.ALL), int(Role.USER), int(Role.NONE)
MASKS = {
    "attr": {"get": ALL, "list": ALL, "set": OWNERS, "rm": OWNERS},
    "broker": {
        "stats-get": USER,
        "calls": USER,
        "users": Role.ADMIN,
        "drain": OWNERS,
        "disconnect-client": OWNERS,
        "getenv": OWNERS,
        "conf-builtin": ALL,
    },
    "config": {"get": USER, "reload": OWNERS, "load": OWNERS},
    "connector-local": {"stats-get": OWNERS},
    "event": {"subscribe": USER, "unsubscribe": USER, "publish": USER, "since": OWNERS},
    "groups": {"get": USER, "join": OWNERS, "leave": OWNERS, "update": OWNERS},
    "heartbeat": {"stats-get": OWNERS},
    "job-manager": {"queue-list": USER, "queue-status": USER},
    "journal": {"status": OWNERS, "start": OWNERS, "stop": OWNERS, "denied": OWNERS},
    "log": {"append": OWNERS, "dmesg": OWNERS, "clear": OWNERS, "stats-get": OWNERS},
    "module": {"list": USER, "load": OWNERS, "remove": OWNERS, "trace": OWNERS},
    "overlay": {
        "health": USER,
        "topology": USER,
        "monitor": OWNERS,
        "disconnect-subtree": OWNERS,
        "trace": OWNERS,
    },
    "resource": {"status": USER},
    "rexec": {},
    "service": {"add": USER, "remove": USER, "providers": USER, "announce": OWNERS},
    "shutdown": {"start": OWNERS},
    "state-machine": {"get": USER, "wait": USER, "monitor": OWNERS},
}
"""Who may call what besides the owner: the table of the deployed broker (RFC 12, "Service Security Policy")."""
TOPICS = [f"{name}.{word}" for name, words in MASKS.items() for word in words]
COMMON = ("ping", "stats-get", "stats-clear", "rusage", "debug", "disconnect", "cancel", "nope")


def test_every_method_stands_in_the_table_with_its_mask():
    found = {
        service.name: {word: method.allow for word, method in service.methods().items()}
        for service in Desk().services
    }
    assert found == {
        name: {word: int(allow | Role.OWNER) for word, allow in words.items()}
        for name, words in MASKS.items()
    }


@for_each("topic", TOPICS)
@for_each("cred", [OWNER, GUEST, NOBODY])
def test_a_denial_is_the_deployed_one_and_nothing_else_is_denied_by_mask(topic, cred):
    name, word = topic.split(".")
    allow = MASKS[name][word]
    desk = Desk()
    me = desk.client(cred)
    answers = me.take(me.send(topic, b"", flags=STREAMING))
    denied = [
        answer.errnum == 1
        and answer.payload
        in (b"Request requires owner credentials\0", b"Request rejected due to insufficient privilege\0")
        for answer in answers
    ]
    assert any(denied) is not bool(cred.rolemask & (allow | Role.OWNER))


words = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.text(max_size=8)
    | st.floats(allow_nan=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = "name value topic flags payload service rank final matchtag update follow nobacklog names keys who path op"
keys = st.sampled_from([*KEYS.split(), "detail", "format"])
payloads = st.none() | st.binary(max_size=40) | st.dictionaries(keys, words, max_size=4)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(TOPICS + [f"{name}.{word}" for name in MASKS for word in COMMON]),
    payloads,
    st.sampled_from([OWNER, GUEST, NOBODY]),
    st.sampled_from([0, STREAMING]),
    st.sampled_from([0, 1, 3]),
)
def test_whatever_is_sent_no_service_breaks(topic, payload, cred, flags, rank):
    desk = Desk(rank=rank)
    me = desk.client(cred)
    with assert_no_lines():
        answers = me.take(me.send(topic, payload, flags=flags))
    assert 5 not in [answer.errnum for answer in answers]
    nothing_yet = topic == "overlay.monitor" and rank == 3  # a leaf: no child to tell of
    passed_on = topic.startswith("job-manager.") and rank
    assert passed_on or answers or nothing_yet or topic.endswith((".disconnect", ".cancel"))
    me.silent(topic.partition(".")[0] + ".disconnect", flags=NORESPONSE)
    desk.advance(10)
    desk.enter("cleanup")


def test_names_are_unique_and_unclaimed_words():
    names = [service.name for service in Desk().services]
    assert len(set(names)) == len(names)
    assert all(name and "." not in name for name in names)
