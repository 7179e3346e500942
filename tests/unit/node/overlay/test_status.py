from broker.node.overlay.control import Status, Timed, combine, read
from tests.tables import for_each

FULL, PARTIAL, DEGRADED, LOST, OFFLINE, UNKNOWN = (
    Status.FULL,
    Status.PARTIAL,
    Status.DEGRADED,
    Status.LOST,
    Status.OFFLINE,
    Status.UNKNOWN,
)


@for_each(
    ("children", "expected"),
    [
        ([], FULL),
        ([FULL, FULL], FULL),
        ([FULL, UNKNOWN], FULL),
        ([FULL, PARTIAL], PARTIAL),
        ([OFFLINE, OFFLINE], PARTIAL),
        ([FULL, DEGRADED], DEGRADED),
        ([LOST, OFFLINE], DEGRADED),
        ([OFFLINE, LOST], DEGRADED),
        ([LOST, FULL, PARTIAL], DEGRADED),
    ],
)
def test_a_subtree_is_as_well_as_its_worst_child(children, expected):
    assert combine(children) is expected


def test_numbers_and_names_are_those_of_deployed_brokers():
    names = ["unknown", "full", "partial", "degraded", "lost", "offline"]
    assert [Status(number).label for number in range(6)] == names


def test_online_means_that_messages_can_be_sent_there():
    assert {status for status in Status if status.online} == {FULL, PARTIAL, DEGRADED}


@for_each("number", [-1, 6, 0xFFFFFFFF])
def test_a_number_that_means_nothing_is_no_status(number):
    assert read(number) is None


def test_every_number_that_means_something_is_read():
    assert [read(number) for number in range(6)] == list(Status)


def test_a_status_remembers_since_when():
    timed = Timed(PARTIAL, 10.0)
    assert timed.change(FULL, 12.0)
    assert not timed.change(FULL, 15.0)
    assert (timed.status, timed.since) == (FULL, 12.0)
