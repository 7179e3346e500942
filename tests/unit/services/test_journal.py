"""journal.status, start, stop, denied: what they pass on, what they refuse, and that only owners may ask."""

import asyncio
import errno

import pytest

from broker.errors import ConfigError
from broker.services.context import Denial
from broker.services.journal import NONE_TEXT
from broker.wire.message import NORESPONSE
from tests.tables import for_each
from tests.unit.services.desk import GUEST, Desk, value

TOLD = {"topic": "ops.dig", "errno": 1, "userid": 1000, "rolemask": 2}


class PaperJournal:
    """Writes nothing, remembers what it was told."""

    def __init__(self):
        self.state = "on"
        self.denials = []
        self.hindrance = None

    def status(self):
        return {"state": self.state, "written": 7}

    async def start(self):
        await asyncio.sleep(0)
        if self.hindrance is not None:
            raise self.hindrance
        self.state = "on"

    async def stop(self, reason):
        await asyncio.sleep(0)
        self.state = f"off: {reason}" if reason else "off"

    def denied(self, denial):
        self.denials.append(denial)


@pytest.fixture
def journal():
    return PaperJournal()


@pytest.fixture
def desk(journal):
    return Desk(journal=journal)


def switched(desk, topic, data=None):
    """The one answer to a request that is answered late."""
    return desk.client().ask(topic, data)


def test_status_is_the_journals(desk):
    assert value(desk.client().ask("journal.status")) == {"state": "on", "written": 7}


@for_each(("word", "data"), [("status", None), ("start", None), ("stop", None), ("denied", TOLD)])
def test_without_a_journal_the_answer_says_how_to_have_one(word, data):
    assert Desk().client().refused(f"journal.{word}", data) == (errno.ENOSYS, NONE_TEXT)


@for_each("word", ["status", "start", "stop", "denied"])
def test_only_owners_may(desk, journal, word):
    assert desk.client(GUEST).refused(f"journal.{word}", TOLD)[0] == errno.EPERM
    assert (journal.state, journal.denials) == ("on", [])


def test_off_and_on(desk):
    assert value(switched(desk, "journal.stop")) == {"state": "off", "written": 7}
    assert value(switched(desk, "journal.start")) == {"state": "on", "written": 7}
    assert value(switched(desk, "journal.stop", {"reason": "to copy it"}))["state"] == "off: to copy it"


def test_what_hinders_the_start_is_told(desk, journal):
    journal.hindrance = ConfigError("journal.directory /j: No space left on device", errno.ENOSPC)
    answer = switched(desk, "journal.start")
    assert answer.errnum == errno.ENOSPC
    assert value(answer) == "journal.directory /j: No space left on device"


def test_a_denial_is_taken_as_told(desk, journal):
    me = desk.client()
    me.silent("journal.denied", TOLD, flags=NORESPONSE)
    more = {
        "claimed": 77,
        "session": "s1",
        "address": "192.0.2.7",
        "transport": "websocket",
        "type": "event",
    }
    assert me.ask("journal.denied", TOLD | more).errnum == 0
    unknown = 0xFFFFFFFF
    assert journal.denials == [
        Denial(1, "ops.dig", "request", 1000, 2, unknown, "websocket", "", ""),
        Denial(1, "ops.dig", "event", 1000, 2, 77, "websocket", "s1", "192.0.2.7"),
    ]


def test_long_names_are_cut(desk, journal):
    desk.client().ask("journal.denied", TOLD | {"topic": "t" * 5000, "session": "s" * 5000})
    (denial,) = journal.denials
    assert (len(denial.topic), len(denial.session)) == (255, 255)


@for_each(
    "wrong",
    [
        {"topic": 7},
        {"topic": "a\0b"},
        {"errno": -1},
        {"errno": "1"},
        {"userid": 2**32},
        {"rolemask": -1},
        {"claimed": True},
        {"type": "control"},
        {"transport": "pigeon"},
        {"session": None},
    ],
)
def test_a_denial_that_makes_no_sense(desk, journal, wrong):
    assert desk.client().refused("journal.denied", TOLD | wrong)[0] == errno.EPROTO
    assert journal.denials == []


@for_each("missing", TOLD)
def test_a_denial_with_something_missing(desk, journal, missing):
    told = {name: each for name, each in TOLD.items() if name != missing}
    assert desk.client().refused("journal.denied", told)[0] == errno.EPROTO
    assert journal.denials == []
