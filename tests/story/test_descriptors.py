"""Whoever takes all the descriptors there are: the owner gets in, everybody is answered, the log says why, once."""

import errno
import os
import resource

import pytest

from tests.live.brokers import START_S, BrokerProcess, eventually, one_config
from tests.live.speaker import Closed, Speaker

pytestmark = [
    pytest.mark.story,
    pytest.mark.skipif(os.geteuid() != 0, reason="optional: needs root to connect as other users"),
]

SOFT, HARD = 100, 256
GUESTS = (2001, 2002, 2003, 2004, 2005)
LIMITED = ("sh", "-c", f'ulimit -Sn {SOFT} && ulimit -Hn {HARD} && exec "$0" "$@"')


@pytest.fixture
def broker(rundir):
    config = one_config(rundir, "[access]\nallow_guest_user = true\n")
    running = BrokerProcess(config, 0, f"local://{rundir}/local-0", prefix=LIMITED)
    try:
        running.wait_ready()
        yield running
        assert running.stop() == 0
    finally:
        running.kill()


def connect_until_refused(uri, uid, most=HARD):
    """Connections of one user, and the greeting that ended the series."""
    mine = []
    for _ in range(most):
        try:
            mine.append(Speaker(uri, uid))
        except Closed as closed:
            return mine, str(closed)
    raise AssertionError(f"{most} connections, and no refusal")


def greeted(number):
    return f"greeted with {bytes((number,))!r}"


def count(broker, text):
    return sum(text in line for line in broker.lines())


def test_guests_cannot_take_the_descriptors_of_the_owner(broker):
    assert resource.prlimit(broker.pid, resource.RLIMIT_NOFILE) == (HARD, HARD), "raised to what is allowed"
    at_rest = broker.fds()
    guests, refusals = [], []
    for uid in GUESTS:
        mine, refusal = connect_until_refused(broker.uri, uid)
        guests += mine
        refusals.append(refusal)
        if uid == GUESTS[0]:
            assert len(mine) == HARD // 4
    assert refusals[:2] == [greeted(errno.EAGAIN)] * 2
    assert refusals[-1] == greeted(errno.EMFILE)
    kept = HARD // 8  # whoever was turned away last may not be closed yet
    eventually(lambda: HARD - kept - 4 <= broker.fds() <= HARD - kept)
    assert count(broker, f"userid {GUESTS[0]} has 64 connections, limits.connections_per_user allows 64") == 1
    assert count(broker, "limits.reserved_descriptors") == 1

    owners = [Speaker(broker.uri) for _ in range(HARD // 8 - 4)]
    assert [each.ping() for each in owners] == [0] * len(owners)
    more, refusal = connect_until_refused(broker.uri, None)
    owners += more
    assert refusal == greeted(errno.EMFILE), "nobody is left in silence, not even when nothing is left"
    assert owners[0].ping() == 0
    for each in (*guests, *owners):
        each.close()
    eventually(broker.fds, at_rest)
    eventually(lambda: comes_in(broker.uri, GUESTS[0]), timeout=START_S)


def comes_in(uri, uid):
    try:
        with Speaker(uri, uid) as guest:
            return guest.ping() == 0
    except Closed:
        return False
