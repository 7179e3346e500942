"""What the rooms of a broker are told of its links."""

import pytest

from broker.identity import PeerInfo
from broker.node.curve_keys import CurveKeys
from broker.node.link_options import client_options, overlay_config
from broker.routing.topology import Topology
from broker.settings import loads
from broker.transport.link import Flusher

CAP_BYTES = 32 << 20
SETTINGS = f"""
[limits]
event_policy = "drop"
response_cap_bytes = {CAP_BYTES}
owner_message_bytes = 20971520
[tree]
size = 4
""" + "".join(f'[[hosts]]\nrank = {rank}\naddress = "ipc:///run/tree-{rank}"\n' for rank in range(4))
PEER = PeerInfo("ipc:///run/tree-3")


@pytest.fixture
def made():
    """Options of the local socket, what the tree is told at rank 1, and a note of who was refused."""
    refused = []
    settings = loads(SETTINGS)
    common = client_options(settings, Flusher(), 1024)
    config = overlay_config(
        settings, Topology(4), 1, common, CurveKeys(settings), lambda *told: refused.append(told)
    )
    return common, config, refused


def test_rank_1_listens_for_its_child_and_knows_its_parent(made):
    config = made[1]
    assert (config.listen_uri, config.parent_uri) == ("ipc:///run/tree-1", "ipc:///run/tree-0")


def test_events_are_dropped_for_clients_where_that_is_set_and_never_within_the_tree(made):
    common, config, _ = made
    assert (common.limits.event_policy, common.limits.event_bytes) == ("drop", 16 << 20)
    for options in (config.listen, config.dial):
        assert (options.limits.event_policy, options.limits.event_bytes) == ("disconnect", CAP_BYTES)
        assert options.limits.cap_bytes == common.limits.cap_bytes == CAP_BYTES


def test_brokers_have_the_descriptors_in_reserve_and_messages_of_the_owners_size(made):
    common, config, _ = made
    assert not common.tree
    assert not common.has_reserve(PEER)
    for options in (config.listen, config.dial):
        assert options.tree
        assert options.has_reserve(PEER)
        assert options.max_bytes(PEER) == 20 << 20
        assert (options.flusher, options.budget) == (common.flusher, common.budget)


def test_a_broker_that_the_transport_turns_away_is_told_of(made):
    _, config, refused = made
    config.listen.refused(PEER, 1, "nobody knows its key")
    config.dial.refused(PEER, 2, "")
    assert refused == [(PEER, 1, "nobody knows its key"), (PEER, 2, "")]
