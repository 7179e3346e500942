"""How many connections there may be, and which of them goes for a newer one."""

import random

from gateway.settings.schema import LimitsSection
from gateway.web import admission as room
from gateway.web.admission import ANONYMOUS, GRACE_S, Admission, Pool, Slot, fitted, key_of
from tests.tables import for_each

TOLD = (
    "connections end for newer ones by the limit anonymous_per_address, of 192.0.2.7; "
    "{} since the last such line"
)


class Connections:
    """Makes slots, and keeps the names of those that were cut."""

    def __init__(self, pool):
        self.pool = pool
        self.cut = []
        self.slots = {}

    def open(self, name, key, *, busy=False):
        self.slots[name] = slot = Slot(lambda: self.cut.append(name))
        slot.idle = not busy
        return self.pool.enter(slot, key)


def pool(most, each, *, spare=False):
    ended = []
    made = Pool(most, each, ("all", "each"), lambda why, key: ended.append((why, key)), spare=spare)
    return Connections(made), ended


def test_the_oldest_of_an_address_goes_at_its_cap():
    connections, ended = pool(10, 2)
    for number, key in enumerate("abababab"):
        assert connections.open(number, key)
    assert connections.cut == [0, 1, 2, 3]
    assert ended == [("each", "a"), ("each", "b")] * 2
    assert (len(connections.pool), connections.pool.of("a")) == (4, 2)


def test_the_oldest_of_all_goes_at_the_cap_of_all():
    connections, ended = pool(3, 3)
    for number in range(5):
        assert connections.open(number, str(number))
    assert connections.cut == [0, 1]
    assert ended == [("all", "0"), ("all", "1")]


def test_the_age_counts_from_the_last_request():
    connections, _ = pool(3, 3)
    for number in range(3):
        connections.open(number, None)
    connections.slots[0].set_busy()
    connections.slots[0].set_idle()
    connections.open(3, None)
    assert connections.cut == [1]


def test_an_idle_one_goes_before_one_at_work():
    connections, _ = pool(3, 3)
    connections.open(0, "a", busy=True)
    connections.open(1, "a", busy=True)
    connections.open(2, "a")
    connections.open(3, "a", busy=True)
    assert connections.cut == [2]


@for_each(("most", "each"), [(2, 9), (9, 2)])
def test_where_all_are_at_work_the_oldest_stranger_goes_and_no_user(most, each):
    connections, _ = pool(most, each)
    for number in range(3):
        assert connections.open(number, "a", busy=True)
    assert connections.cut == [0]
    connections, ended = pool(most, each, spare=True)
    assert [connections.open(number, "a", busy=True) for number in range(3)] == [True, True, False]
    assert connections.cut == ended == []
    assert len(connections.pool) == 2


def test_who_shows_a_credential_leaves_the_strangers():
    admission = Admission(LimitsSection(anonymous=2, anonymous_per_address=2, connections_per_user=1))
    slots = [Slot(lambda: None) for _ in range(3)]
    for slot in slots:
        assert admission.admit(slot, "192.0.2.7")
        assert slot.move(admission.users, "ada") or slot is slots[2]
        assert slot.move(admission.users, "ada") or slot is slots[2]
    # two of one user: the first has ended for the third
    assert (len(admission.strangers), len(admission.users)) == (0, 2)
    assert [slot.pool is None for slot in slots] == [True, False, False]
    assert admission.ended == {room.USER: 1}


def test_a_user_whose_connections_are_all_at_work_stays_a_stranger_with_the_next():
    admission = Admission(LimitsSection(connections_per_user=1))
    slots = [Slot(lambda: None) for _ in range(3)]
    for slot in slots:
        admission.admit(slot, "192.0.2.7")
        slot.set_busy()
    assert [slot.move(admission.users, "ada") for slot in slots] == [True, True, False]
    assert slots[2].pool is admission.strangers
    assert admission.strangers.of("192.0.2.7") == 1
    assert slots[2].move(admission.users, "bob")


def test_no_more_sockets_than_allowed_whoever_has_them():
    limits = LimitsSection(anonymous=2, anonymous_per_address=2, connections=3, connections_per_user=2)
    admission = Admission(limits)
    user, stranger = Slot(lambda: None), Slot(lambda: None)
    for slot in (user, stranger):
        admission.admit(slot, None)
    user.move(admission.users, "ada")
    admission.sockets = 5  # three more are WebSockets
    assert admission.admit(Slot(lambda: None), None)
    assert (stranger.pool, user.pool) == (None, admission.users)
    newest = next(iter(admission.strangers._idle))
    newest.set_busy()
    assert admission.admit(Slot(lambda: None), None)
    assert user.pool is None
    assert admission.ended == {room.ALL: 2}


def test_out_of_descriptors_idle_ones_go_strangers_first():
    admission = Admission(LimitsSection())
    for number in range(room.SHED + 10):
        slot = Slot(lambda: None)
        admission.admit(slot, str(number))
        if number % 2:
            slot.move(admission.users, str(number))
    assert admission.shed()
    assert len(admission.strangers) == 0
    assert admission.shed()
    assert not admission.shed()


def test_a_flood_of_newcomers_is_one_line(caplog):
    now = [0.0]
    admission = Admission(LimitsSection(anonymous_per_address=1), clock=lambda: now[0])
    for number in range(1000):
        now[0] = number / 1000
        admission.admit(Slot(lambda: None), "192.0.2.7")
    now[0] += room.LINE_S
    admission.admit(Slot(lambda: None), "192.0.2.7")
    first, second = caplog.messages
    assert first == TOLD.format(1)
    assert second == TOLD.format(999)


def test_what_a_pool_counts_is_what_is_in_it():
    """Whatever happens in whichever order: no slot is lost, none is counted twice, no cap is exceeded."""
    chance = random.Random(5)
    limits = LimitsSection(anonymous=12, anonymous_per_address=4, connections=20, connections_per_user=3)
    admission = Admission(limits)
    alive: list[Slot] = []
    for step in range(20_000):
        slot = chance.choice(alive) if alive else None
        match chance.randrange(6) if slot else 0:
            case 0:
                fresh = Slot(lambda: None)
                if admission.admit(fresh, chance.choice(["a", "b", "c", None])):
                    alive.append(fresh)
            case 1:
                slot.set_busy()
            case 2:
                slot.set_idle()
            case 3:
                slot.release()
            case 4:
                slot.move(admission.users, chance.choice("uvwxyz"))
            case 5:
                slot.move(admission.strangers, chance.choice(["a", "b", "c", None]))
        alive = [each for each in alive if each.pool is not None]
        for each, cap in ((admission.strangers, 12), (admission.users, 20)):
            mine = [one for one in alive if one.pool is each]
            assert len(each) == len(mine) <= cap
            assert {one for one in mine if one.idle} == set(each._idle)
            assert sum(len(of) for of in each._of.values()) == sum(one.key is not None for one in mine)
            assert all(0 < len(of) <= each.each for of in each._of.values()), step


@for_each("descriptors", [1024, 256, 64, 0])
def test_limits_fit_the_descriptors(descriptors):
    limits = fitted(LimitsSection(), descriptors)
    assert limits.connections + limits.anonymous <= max(room.LEAST, descriptors - room.RESERVE)
    assert 1 <= limits.anonymous_per_address <= limits.anonymous
    assert 1 <= limits.connections_per_user <= limits.connections


def test_enough_descriptors_change_nothing():
    assert fitted(LimitsSection(), 65536) == LimitsSection()


def test_what_has_no_address_counts_for_none():
    assert [key_of(each) for each in ("192.0.2.7", "2001:db8::5", "unix", "unknown")] == [
        "192.0.2.7",
        "2001:db8::/64",
        None,
        None,
    ]


def test_strangers_have_time_for_their_first_word_before_they_end_for_newer_ones():
    now, cut = [0.0], []
    limits = LimitsSection(anonymous=3, anonymous_per_address=3)
    admission = Admission(limits, clock=lambda: now[0])
    slots = [Slot(lambda number=number: cut.append(number)) for number in range(5)]
    assert admission.admit(slots[0], "192.0.2.1")
    assert admission.admit(slots[1], "192.0.2.1")
    assert admission.rest_s() == 0
    assert admission.admit(slots[3], "192.0.2.2")
    assert admission.rest_s() == GRACE_S, "all are as new: accepting rests"
    slots[0].set_busy()
    slots[0].set_idle()
    assert admission.rest_s() == GRACE_S, "the oldest idle one is another"
    now[0] = GRACE_S
    assert admission.rest_s() == 0
    assert admission.admit(slots[4], "192.0.2.3")
    assert cut == [1]
    assert admission.ended == {ANONYMOUS: 1}


def test_of_one_address_the_newest_gets_in_at_once():
    admission = Admission(LimitsSection(anonymous=2, anonymous_per_address=1), clock=lambda: 0.0)
    first, second = Slot(lambda: None), Slot(lambda: None)
    assert admission.admit(first, "192.0.2.1")
    assert admission.admit(second, "192.0.2.1")
    assert first.pool is None
