"""Names belong to the first key that used them."""

from broker.nfp.access import Access
from broker.nfp.records import UNPINNED, Pinned
from broker.nfp.server import names as module
from broker.nfp.server.names import NameOwners
from broker.settings.nfp import KeyEntry
from tests.unit.nfp.server.scripted import RecordingJournal


class Broker:
    """What pins ask: who is connected, needed, listed; and the time."""

    def __init__(self, **listed):
        self.here, self.connected, self.needed, self.now = set(), set(), set(), 0.0
        self.journal = RecordingJournal()
        self.owners = NameOwners(
            self.journal,
            Access([KeyEntry(key=key, name=name) for name, keys in listed.items() for key in keys]),
            self.here.__contains__,
            self.connected.__contains__,
            lambda name, key: name in self.needed,
            lambda: self.now,
        )


def made(**listed):
    on = Broker(**listed)
    return on.owners, on.journal


def test_the_first_key_owns_a_name():
    owners, journal = made()
    assert owners.fits("w1", "K")
    owners.pin("w1", "K")
    owners.pin("w1", "L")
    assert owners.fits("w1", "K")
    assert not owners.fits("w1", "L")
    assert not owners.fits("w1", "")
    assert owners.violations == 2
    assert journal.ops == [Pinned("w1", "K")]


def test_without_a_key_nothing_is_pinned():
    owners, journal = made()
    owners.pin("w1", "")
    assert owners.fits("w1", "K")
    assert journal.ops == []


def test_pins_survive_and_can_be_taken_off():
    owners, journal = made()
    owners.restore([Pinned("w1", "K"), Pinned("gone", "")])
    assert len(owners) == 1
    assert not owners.fits("w1", "L")
    assert owners.release_name("w1")
    assert not owners.release_name("w1")
    assert owners.fits("w1", "L")
    assert journal.ops == [Pinned("w1", UNPINNED)]


def test_a_listed_name_is_its_keys_whoever_had_it_before():
    owners, journal = made(w1=("K", "L"))
    owners.restore([Pinned("w1", "S"), Pinned("w2", "S")])
    assert owners.key_of("w1") == "K"
    assert not owners.fits("w1", "S")
    assert not owners.fits("w1", "")
    assert owners.fits("w1", "L")
    owners.pin("w1", "S")
    assert journal.ops == []
    owners.pin("w1", "L")
    owners.pin("w1", "L")
    assert (owners.key_of("w1"), journal.ops) == ("L", [Pinned("w1", "L")])
    assert owners.fits("w1", "K")
    assert owners.fits("w2", "S")
    assert not owners.fits("w2", "K")


def test_the_name_of_a_peer_in_this_process_is_nobody_elses():
    on = Broker()
    on.here.add("fss")
    assert not on.owners.fits("fss", "K")
    on.here.remove("fss")
    assert on.owners.fits("fss", "K")


def test_the_name_that_was_not_used_for_longest_goes(monkeypatch):
    monkeypatch.setattr(module, "PINS_MAX", 3)
    on = Broker()
    for number in range(3):
        assert on.owners.pin(f"n{number}", f"K{number}")
    assert on.owners.pin("n0", "K0")  # used again
    assert on.owners.pin("n3", "K3")
    assert [on.owners.key_of(f"n{number}") for number in range(4)] == ["K0", "", "K2", "K3"]
    assert on.journal.ops[-2:] == [Pinned("n1", ""), Pinned("n3", "K3")]
    assert len(on.owners) == 3


def test_names_that_are_connected_or_needed_stay_and_new_ones_are_refused(monkeypatch):
    """However many they are, and however many names are invented."""
    monkeypatch.setattr(module, "PINS_MAX", 200)
    monkeypatch.setattr(module, "_PROBES", 16)
    on = Broker()
    names = [f"n{number}" for number in range(200)]
    for name in names:
        assert on.owners.pin(name, "K" + name)
    on.connected.update(names[:150])
    on.needed.update(names[150:])
    for number in range(300):
        assert not on.owners.pin(f"invented{number}", "E")
        assert len(on.owners) == 200
    assert on.owners.refused == 300
    on.connected.discard("n70")
    while not on.owners.pin("new", "N"):
        assert on.owners.refused < 400
    assert (on.owners.key_of("n70"), len(on.owners)) == ("", 200)


def test_a_key_owns_so_many_names_and_no_more(monkeypatch):
    monkeypatch.setattr(module, "NAMES_PER_KEY_MAX", 3)
    on = Broker()
    assert on.owners.pin("other", "L")
    for number in range(5):
        assert on.owners.pin(f"n{number}", "K")
    assert [on.owners.key_of(f"n{number}") for number in range(5)] == ["", "", "K", "K", "K"]
    on.connected.update({"n2", "n3", "n4"})
    assert not on.owners.pin("n5", "K")
    assert not on.owners.pin("n5", "K", lasting=False)
    assert on.owners.key_of("other") == "L"


def test_nobody_pushes_out_the_names_of_listed_keys(monkeypatch):
    monkeypatch.setattr(module, "PINS_MAX", 2)
    on = Broker(w1=("A",), w2=("B",), w3=("C",))
    assert on.owners.pin("w1", "A")
    assert on.owners.pin("w2", "B")
    assert not on.owners.pin("n1", "K")
    assert on.owners.pin("w3", "C")
    assert on.owners.key_of("w1") == "A"


def test_a_passing_clients_name_is_its_own_while_it_is_there_or_has_jobs():
    on = Broker()
    on.connected.add("c1")
    assert on.owners.pin("c1", "K", lasting=False)
    assert not on.owners.fits("c1", "L")
    on.connected.clear()
    on.needed.add("c1")
    on.owners.left("c1")
    assert not on.owners.fits("c1", "L")
    assert on.owners.fits("c1", "K")
    on.needed.clear()
    assert on.owners.fits("c1", "L")  # its jobs have ended since
    assert on.owners.pin("c2", "K", lasting=False)
    on.owners.left("c2")
    assert (on.owners.passing, len(on.owners), on.journal.ops) == (0, 0, [])


def test_a_client_with_jobs_from_before_a_restart_keeps_its_name():
    on = Broker()
    on.needed.add("c1")
    on.owners.expect("c1", "K")
    assert not on.owners.fits("c1", "L")
    assert on.owners.release_name("c1")
    assert on.owners.fits("c1", "L")


def restarted(on: Broker) -> NameOwners:
    """The next run of the broker, which still knows jobs that K has submitted as c1."""
    after = Broker()
    after.needed.add("c1")
    after.journal = on.journal
    after.owners.restore({pin.name: pin for pin in on.journal.ops}.values())
    after.owners.expect("c1", "K")
    return after.owners


def test_an_unpinned_name_is_the_next_keys_after_a_restart_too():
    on = Broker()
    on.needed.add("c1")
    on.owners.expect("c1", "K")
    assert on.owners.release_name("c1")
    assert [restarted(on).fits("c1", key) for key in ("K", "L")] == [True, True]
    assert on.owners.pin("c1", "L", lasting=False)
    assert [restarted(on).fits("c1", key) for key in ("K", "L")] == [False, True]


def test_unpinned_names_are_not_remembered_without_end():
    on = Broker()
    for number in range(module.NAMES_PER_KEY_MAX + 1):
        on.owners.pin(f"w{number}", "K")
        on.owners.release_name(f"w{number}")
    assert on.journal.ops[-1] == Pinned("w0", "")


def test_a_name_that_becomes_a_workers_is_written_down():
    on = Broker()
    on.owners.pin("w1", "K", lasting=False)
    on.owners.pin("w1", "K")
    assert (on.owners.passing, on.journal.ops) == (0, [Pinned("w1", "K")])


def test_the_last_use_is_written_down_now_and_then():
    on = Broker()
    on.owners.restore([Pinned("w1", "K")])
    on.owners.pin("w1", "K")
    on.now = module.USED_EVERY_S - 1
    on.owners.pin("w1", "K")
    assert len(on.journal.ops) == 1
    on.now += 1
    on.owners.pin("w1", "K")
    assert on.journal.ops == [Pinned("w1", "K")] * 2


def test_the_first_key_of_a_workers_client_is_told(caplog):
    caplog.set_level("INFO")
    on = Broker()
    for _ in range(2):
        on.owners.pin("w1-NFPClient", "K")
    assert caplog.text.count("w1-NFPClient is the client of a worker from now on, and its key is K") == 1
