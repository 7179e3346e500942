"""Job events on the Flux broker: topic, payload, stamp, and what a choked link costs."""

from functools import partial
from types import SimpleNamespace

from broker.client.bridge import Publisher
from broker.identity import USERID_UNKNOWN, Role
from broker.nfp.management import EventBus
from broker.nfp.service.flux_service import publish_event, topic_of
from broker.wire.message import EVENT, PRIVATE
from broker.wire.payload import decode_json
from tests.tables import for_each
from tests.unit.nfp.service.stand_in import happening


class FakeHandle:
    def __init__(self):
        self.link = SimpleNamespace(outbox=SimpleNamespace(choked=False))
        self.ended = None
        self.sent = []

    def send(self, message):
        self.sent.append(message)


def publisher():
    """A publisher, its link, and a bus whose events it publishes."""
    made, bus = Publisher(), EventBus("epoch-1")
    made.handle = FakeHandle()
    bus.listen(partial(publish_event, made))
    return made, made.handle, bus


def test_an_event_is_private_and_stamped_with_whose_job_it_is():
    _, link, bus = publisher()
    bus.publish(happening("progress", "u1", userid=1000, body=b'{"message":"half"}'))
    (message,) = link.sent
    assert (message.type, message.topic, message.flags & PRIVATE) == (EVENT, "nfp.job.u1.progress", PRIVATE)
    assert (message.userid, message.rolemask) == (1000, Role.OWNER | Role.USER)
    said = decode_json(message.payload)
    assert (said["uuid"], said["kind"], said["sequence"], said["epoch"]) == ("u1", "progress", 1, "epoch-1")
    assert said["event"] == {"message": "half"}


def test_a_job_of_nobody_known_here_is_left_to_the_links_own_stamp():
    _, link, bus = publisher()
    bus.publish(happening("closed", "u1"))
    assert (link.sent[0].userid, link.sent[0].rolemask) == (USERID_UNKNOWN, 0)
    assert link.sent[0].flags & PRIVATE


def test_bytes_of_results_and_streams_stay_away():
    _, link, bus = publisher()
    bus.publish(happening("stream", "u1", body=b"x" * 100))
    bus.publish(happening("finished", "u1", body=b'{"w1":{"result":"secret"}}'))
    (message,) = link.sent
    said = decode_json(message.payload)
    assert (said["kind"], said["event"], said["size"]) == ("finished", None, 26)


def test_a_choked_link_drops_counts_and_tells():
    told, link, bus = publisher()
    link.link.outbox.choked = True
    for _ in range(3):
        bus.publish(happening("progress", "u1"))
    told.handle = None
    bus.publish(happening("progress", "u1"))
    told.handle = link
    link.link.outbox.choked = False
    bus.publish(happening("progress", "u1"))
    bus.publish(happening("closed", "u1"))
    assert [decode_json(message.payload).get("lost") for message in link.sent] == [4, None]
    assert (told.sent, told.dropped) == (2, 4)


@for_each(
    ("uuid", "word"),
    [
        ("a.b c", "a%2Eb%20c"),
        ("é/*", "%C3%A9%2F%2A"),
        ("x" * 200, None),
    ],
)
def test_any_job_id_makes_a_topic_of_four_words(uuid, word):
    topic = topic_of(happening("closed", uuid))
    words = topic.split(".")
    assert (words[:2], words[3], len(words)) == (["nfp", "job"], "closed", 4)
    assert words[2] == word or (word is None and len(words[2]) == 64)
