"""What a message costs does not depend on what others have open: bytecodes are counted, not seconds."""

from broker.routing.departure import depart
from broker.wire.message import DELIMITER, NORESPONSE, STREAMING, encode_part, request, response
from tests.tables import for_each
from tests.unit.routing.operations import bytecodes
from tests.unit.routing.sim import GUEST, Tree

FEW, MANY = 10, 1_000
FRONT = encode_part(b"web") + DELIMITER


def noticed(client, front=DELIMITER):
    client.ask("other.x", tag=7, front=front)
    client.ask("other.disconnect", tag=0, flags=NORESPONSE, front=front)


class World:
    """A service that never answers, many calls to it that are open, and a client that has little to do with them."""

    def __init__(self, count):
        self.tree = Tree(2, pending_max=1 << 20)
        self.mute, self.other = self.tree.client(services=["mute"]), self.tree.client(services=["other"])
        self.crowd, self.client = self.tree.client(cred=GUEST), self.tree.client(cred=GUEST)
        self.far = self.tree.links[1][0]  # the rank below, as rank 0 sees it
        for port in (self.mute.port, self.other.port, self.far, self.client.port):
            port.send = lambda _message: None
        self.router = self.tree[0].router
        self.open(self.crowd.port, count, DELIMITER)
        self.open(self.crowd.port, count // 2, FRONT)
        self.open(self.client.port, count // 2, DELIMITER)
        self.open(self.far, count // 2, FRONT)
        for number in range(count // 2):
            self.ask(self.far, "mute.x", 1, encode_part(b"%d" % number) + DELIMITER)
            self.ask(self.far, f"mute.s{number}.x", 2, encode_part(b"web2") + DELIMITER)
        for client in (self.client, self.crowd):
            noticed(client)  # what is remembered of a link's ways is remembered

    def open(self, port, count, front):
        for number in range(count):
            self.ask(port, "mute.x", number + 1, front)

    def ask(self, port, topic, tag, front, flags=0):
        message = request(topic, matchtag=tag, flags=flags)
        message.front = front
        self.router.request(port, message)

    def notice_of_a_client(self):
        noticed(self.client)

    def notice_of_a_sender_behind_a_client(self):
        noticed(self.crowd, FRONT)

    def notice_of_a_sender_behind_a_rank(self):
        self.ask(self.far, "other.x", 7, FRONT)
        self.ask(self.far, "other.disconnect", 0, FRONT, NORESPONSE)

    def departure_of_a_provider(self):
        self.client.ask("other.x", tag=9_999_999)
        depart(self.router, self.other.port)

    def departure_of_a_client(self):
        depart(self.router, self.tree.client().port)

    def service_that_comes_and_goes(self):
        self.router.services.add(b"new", self.other.port)
        self.router.invalidate()
        self.router.services.remove(b"new", self.other.port)
        self.router.invalidate()

    def call_and_answer(self):
        for flags in (0, STREAMING):
            asked = request("other.x", matchtag=9_999_999, flags=flags)
            self.router.request(self.client.port, asked)
            self.router.response(self.other.port, response(asked, errnum=61))

    def call_with_matchtag_0(self):
        self.ask(self.client.port, "other.x", 0, DELIMITER)

    def call_with_a_matchtag_in_use(self):
        self.ask(self.client.port, "mute.x", 1, DELIMITER)

    def call_of_a_new_sender(self):
        self.ask(self.far, "other.x", 1, encode_part(b"new") + DELIMITER)

    def event(self):
        self.client.publish("news")

    def stray_response(self):
        self.router.response(self.other.port, response(request("other.x", matchtag=5)))


KINDS = [name for name in vars(World) if not name.startswith("_") and name not in ("open", "ask")]


@for_each("kind", KINDS)
def test_cost_is_flat(kind):
    few, many = (bytecodes(getattr(world, kind)) for world in (World(FEW), World(MANY)))
    assert many <= 1.5 * few + 100
