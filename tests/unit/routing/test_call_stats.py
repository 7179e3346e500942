"""Rate, errors and duration of calls by method: each once, where it enters; bounded, whatever is asked for."""

import errno
from itertools import accumulate

import pytest

from broker.name_stats import BOUNDS_NS, ERRNOS_MAX, NAMES_MAX, OTHER, UNPROVEN_MAX, NameStats, grouped
from broker.routing.departure import depart
from broker.wire.message import NORESPONSE, STREAMING, request
from tests.tables import for_each
from tests.unit.routing.sim import GUEST, Tree


def stats(tree, rank=0):
    return tree[rank].router.call_stats


def passes(tree, ns):
    for rank in tree.ranks:
        rank.router.call_stats.now_ns += ns


@pytest.fixture
def tree():
    tree = Tree(3)
    passes(tree, 10**9)
    return tree


def test_a_call_is_counted_where_it_enters_and_nowhere_else(tree):
    provider, client = tree.client(0, services=["echo"]), tree.client(2)
    client.ask("echo.run")
    tree.settle()
    assert (stats(tree, 2).methods["echo.run"].calls, stats(tree, 2).methods["echo.run"].open) == (1, 1)
    passes(tree, 3_000_000)
    provider.answer(provider.requests[0])
    tree.settle()
    method = stats(tree, 2).methods["echo.run"]
    assert (method.calls, method.open, method.errors, method.total_ns) == (1, 0, {}, 3_000_000)
    took = method.buckets.index(1)
    assert BOUNDS_NS[took - 1] < 3_000_000 <= BOUNDS_NS[took]
    assert [stats(tree, rank).methods for rank in (0, 1)] == [{}, {}]


def test_each_call_is_in_the_bucket_of_the_time_it_took(tree):
    provider, client = tree.client(0, services=["echo"]), tree.client(0)
    took = (0, 0, 10**9, 10**9, 20_000, 10**9)
    for tag, ns in enumerate(took, 1):
        client.ask("echo.run", tag=tag)
        passes(tree, ns)
        provider.answer(provider.requests[-1])
    buckets = stats(tree).methods["echo.run"].buckets
    assert [sum(bound >= ns for ns in took) for bound in BOUNDS_NS] == list(accumulate(buckets))[:-1]


def test_an_error_says_what_whose_and_when(tree):
    provider, client = tree.client(0, services=["echo"]), tree.client(0, cred=GUEST)
    client.ask("echo.run")
    passes(tree, 5)
    provider.answer(provider.requests[0], errno.EIO, b"the disk is gone\0")
    method = stats(tree).methods["echo.run"]
    assert (method.errors, method.open) == ({errno.EIO: 1}, 0)
    assert (method.last_errno, method.last_text) == (errno.EIO, "the disk is gone")
    assert (method.last_userid, method.last_ns) == (GUEST.userid, 10**9 + 5)


def test_a_stream_is_timed_until_its_first_response_and_open_until_its_end(tree):
    provider, client = tree.client(0, services=["echo"]), tree.client(0)
    client.ask("echo.watch", flags=STREAMING)
    asked = provider.requests[0]
    for _ in range(3):
        passes(tree, 1000)
        provider.answer(asked)
    method = stats(tree).methods["echo.watch"]
    assert (method.total_ns, sum(method.buckets), method.open) == (1000, 1, 1)
    provider.answer(asked, errno.ENODATA)
    assert (method.errors, method.open, sum(method.buckets)) == ({}, 0, 1)


def test_a_provider_that_goes_is_an_error_of_its_calls(tree):
    provider, client = tree.client(0, services=["echo"]), tree.client(0)
    client.ask("echo.run", tag=1)
    client.ask("echo.run", tag=2)
    depart(tree[0].router, provider.port)
    method = stats(tree).methods["echo.run"]
    assert (method.errors, method.open, method.last_text) == ({errno.EHOSTUNREACH: 2}, 0, "client is gone")
    assert client.port.pending == {}


def test_what_a_caller_leaves_behind_is_not_open(tree):
    tree.client(0, services=["echo"])
    client = tree.client(0)
    for tag in (1, 2, 2, 0):
        client.ask("echo.run", tag=tag)
    method = stats(tree).methods["echo.run"]
    assert (method.calls, method.open) == (4, 1)
    depart(tree[0].router, client.port)
    assert (method.open, client.port.pending) == (0, {})


@pytest.mark.parametrize("flags", [0, STREAMING])
def test_calls_that_share_a_matchtag_are_not_timed_whoever_answers_first(tree, flags):
    one, two = tree.client(0, services=["one"]), tree.client(0, services=["two"])
    client = tree.client(0)
    client.ask("one.run", tag=7, flags=flags)
    client.ask("two.run", tag=7)
    tree.check_open_calls()
    two.answer(two.requests[0])
    one.answer(one.requests[0], errno.ENODATA if flags else 0)
    tree.check_open_calls()
    for name in ("one.run", "two.run"):
        method = stats(tree).methods[name]
        assert (method.calls, method.open, sum(method.buckets), method.errors) == (1, 0, 0, {})
    client.ask("one.run", tag=7)
    assert stats(tree).methods["one.run"].open == 1


def test_a_call_nobody_serves_is_an_error(tree):
    client = tree.client(0, cred=GUEST)
    client.ask("nobody.home")
    client.ask("nobody.home", flags=NORESPONSE)
    method = stats(tree).methods["nobody.home"]
    assert (method.calls, method.errors, method.open) == (2, {errno.ENOSYS: 2}, 0)
    assert method.last_userid == GUEST.userid


def test_who_is_refused_is_the_one_that_a_gateway_speaks_for(tree):
    message = request("nobody.home", matchtag=1, userid=GUEST.userid, rolemask=GUEST.rolemask)
    tree[0].router.request(tree.client(0).port, message)
    assert stats(tree).methods["nobody.home"].last_userid == GUEST.userid


def test_a_notice_is_no_call(tree):
    tree.client(0).ask("nobody.disconnect", flags=NORESPONSE)
    assert stats(tree).methods == {}


def test_what_wants_no_response_is_counted_and_not_open(tree):
    tree.client(0, services=["echo"])
    tree.client(0).ask("echo.tell", flags=NORESPONSE, tag=0)
    method = stats(tree).methods["echo.tell"]
    assert (method.calls, method.open) == (1, 0)


@pytest.mark.parametrize("topic", ["no{}x.run", "echo.no{}x"])
@pytest.mark.parametrize("rank", [0, 2])
def test_made_up_names_take_no_room(tree, topic, rank):
    """Wherever they are asked for, and whether their service is there or not."""
    provider, client = tree.client(0, services=["echo"]), tree.client(rank)

    def answered(errnum=0):
        tree.settle()
        while provider.requests:
            provider.answer(provider.inbox.pop(0), errnum)
        tree.settle()

    for number in range(3 * UNPROVEN_MAX):
        client.ask(topic.format(number), tag=number + 1)
        answered(errno.ENOSYS)
    methods = stats(tree, rank).methods
    assert len(methods) == UNPROVEN_MAX + 1
    assert methods[OTHER].calls == 2 * UNPROVEN_MAX
    for tag in (1, 2, 3):
        client.ask("echo.run", tag=tag)
        answered()
    assert methods["echo.run"].calls == 2, "the first one showed that it is there"
    assert methods[OTHER].open == methods["echo.run"].open == 0


def test_the_number_of_methods_is_bounded(tree):
    provider, client = tree.client(0, services=["echo"]), tree.client(0)
    for number in range(2 * NAMES_MAX):
        client.ask(f"echo.m{number}x")
        provider.answer(provider.inbox.pop())
    methods = stats(tree).methods
    assert len(methods) == NAMES_MAX + 1
    assert methods[OTHER].calls == NAMES_MAX


@for_each("topic", ["x" * 2_000_000, "x" * 256 + ".run", "x\x1b]0;title\x07.run", "x\n.run"])
def test_what_nobody_could_read_has_no_name(tree, topic):
    tree.client(0, cred=GUEST).ask(topic)
    assert list(stats(tree).methods) == [OTHER]


def test_the_newest_error_keeps_its_number():
    method = NameStats()
    for errnum in range(1, ERRNOS_MAX + 10):
        method.failed(errnum, "", 0, errnum)
    assert (len(method.errors), method.errors[0], method.last_errno) == (ERRNOS_MAX + 1, 9, ERRNOS_MAX + 9)


@for_each(
    ("topic", "group"),
    [
        ("job-list.list-id", "job-list.list-id"),
        ("resource.0.status", "resource.0.status"),
        ("kvs-watch.lookup", "kvs-watch.lookup"),
        ("12345678.run", "*.run"),
        ("shell-281474976710656.input", "shell-*.input"),
        ("x.deadbeefdeadbeef", "x.*"),
    ],
)
def test_ids_are_left_out(topic, group):
    assert grouped(topic) == group


def test_cleared_figures_start_at_zero_and_know_what_is_open(tree):
    provider, client = tree.client(0, services=["echo"]), tree.client(0)
    client.ask("echo.run")
    kept = stats(tree)
    kept.clear()
    method = kept.methods["echo.run"]
    assert (method.calls, method.open) == (0, 1)
    provider.answer(provider.requests[0])
    client.ask("echo.run", tag=2)
    assert (method.calls, method.open) == (1, 1)


def test_clearing_makes_room(tree):
    client = tree.client(0)
    for number in range(2 * UNPROVEN_MAX):
        client.ask(f"no{number}x.run")
    stats(tree).clear()
    tree[0].router.invalidate()
    client.ask("nobody.home")
    assert list(stats(tree).methods) == ["nobody.home"]
