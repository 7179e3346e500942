"""Leaving in order: what was answered still arrives, sockets and children do not outlive the broker."""

import contextlib
import errno
import os
import signal

import pytest

from broker.wire.message import RESPONSE, request
from broker.wire.payload import decode_json, encode_json
from tests.live.brokers import eventually, tree
from tests.live.speaker import Closed, Speaker, path_of

pytestmark = pytest.mark.story


def test_responses_queued_reach_the_client_before_the_close(broker):
    """More than a socket buffer holds, so that some of it waits in the broker when it is told to leave."""
    count = 400
    with Speaker(broker.uri) as client, Speaker(broker.uri) as other:
        client.tell(
            *(
                request("broker.ping", encode_json({"pad": "p" * 8192}), matchtag=tag)
                for tag in range(1, count + 1)
            )
        )
        eventually(lambda: count in received(other))
        broker.signal(signal.SIGTERM)
        answers = [client.next() for _ in range(count)]
        assert [answer.matchtag for answer in answers] == list(range(1, count + 1))
        assert {(answer.type, answer.errnum) for answer in answers} == {(RESPONSE, 0)}
        with pytest.raises(Closed):
            client.receive()
    assert broker.wait() == 0


def received(client: Speaker) -> list[int]:
    """How many messages the broker has had from each client."""
    answer = client.ask(request("connector-local.stats-get", matchtag=1))
    return [one["rxcount"] for one in decode_json(answer.payload)["server"]["clients"]]


def test_a_reader_that_does_not_read_does_not_hold_it_up(broker):
    with Speaker(broker.uri) as deaf, Speaker(broker.uri) as other:
        deaf.tell(
            *(request("broker.ping", encode_json({"pad": "p" * 8192}), matchtag=tag) for tag in range(1, 301))
        )
        assert other.ping() == 0
        broker.signal(signal.SIGTERM)
        assert broker.wait(15) == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_leaves_with_0_and_removes_the_socket(broker, number):
    assert os.path.exists(path_of(broker.uri))
    broker.signal(number)
    assert broker.wait() == 0
    assert not os.path.exists(path_of(broker.uri))


def test_new_connections_are_refused_or_not_there_while_it_leaves(broker):
    broker.signal(signal.SIGTERM)
    assert broker.wait() == 0
    with pytest.raises(OSError):
        Speaker(broker.uri)


def test_rank_0_takes_its_tree_along(rundir):
    with tree(rundir, 4) as running:
        running.ranks[0].signal(signal.SIGTERM)
        assert [rank.wait() for rank in running.ranks] == [0, 0, 0, 0]
        assert list(rundir.glob("local-*")) == []


def test_a_drained_rank_leaves_with_those_below_it_and_answers_before(rundir):
    with tree(rundir, 4) as running, Speaker(running.ranks[0].uri) as owner:
        elsewhere = owner.ask(request("broker.drain", encode_json({"rank": 1}), matchtag=1))
        assert (elsewhere.errnum, elsewhere.payload) == (errno.EINVAL, b"this is rank 0\0")
        there = request("broker.drain", encode_json({"rank": 1}), matchtag=2, nodeid=1)
        assert owner.ask(there).errnum == 0
        assert [running.ranks[rank].wait() for rank in (1, 3)] == [0, 0]
        assert owner.ping() == 0


def clients(asking: Speaker) -> set[str]:
    detail = asking.ask(request("broker.stats-get", encode_json({"detail": True}), matchtag=1))
    return {each["uuid"] for each in decode_json(detail.payload)["peers"] if each["kind"] == "client"}


def test_a_client_that_is_sent_away_loses_its_connection_and_no_one_elses(broker):
    with Speaker(broker.uri) as owner, contextlib.ExitStack() as later:
        before = clients(owner)
        other = later.enter_context(Speaker(broker.uri))
        assert other.ping() == 0
        (new,) = clients(owner) - before
        uuid = encode_json({"uuid": new})
        assert owner.ask(request("broker.disconnect-client", uuid, matchtag=2)).errnum == 0
        with pytest.raises(Closed):
            other.receive()
        assert owner.ask(request("broker.disconnect-client", uuid, matchtag=3)).errnum == errno.ENOENT
        assert owner.ping() == 0
