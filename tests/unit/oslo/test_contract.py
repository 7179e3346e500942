"""Errors carry POSIX numbers and say what happened; addresses read well; settings that are equal share sockets."""

import errno

from broker.errors import HeadgateError
from broker.oslo.contract import (
    Address,
    CallTimeout,
    Closed,
    OsloFailure,
    Refused,
    Settings,
    Undelivered,
    Unroutable,
)
from broker.oslo.names import Reason
from tests.tables import for_each


@for_each(
    ("error", "number"),
    [
        (CallTimeout("late"), errno.ETIMEDOUT),
        (Unroutable("nobody"), errno.EHOSTUNREACH),
        (Refused("no", Reason.DENIED), errno.EPERM),
        (Refused("no", Reason.BUSY), errno.EAGAIN),
        (Undelivered("full"), errno.EAGAIN),
        (Closed("closed"), errno.ESHUTDOWN),
    ],
    ids=lambda value: repr(value),
)
def test_errors_have_numbers_and_texts(error, number):
    assert isinstance(error, OsloFailure)
    assert isinstance(error, HeadgateError)
    assert error.errno == number
    assert str(error) in ("late", "nobody", "no", "full", "closed")


def test_a_timeout_tells_whether_a_heartbeat_was_missing():
    assert not CallTimeout("late").monitor
    assert CallTimeout("late", monitor=True).monitor
    assert Refused("no", Reason.BUSY).reason is Reason.BUSY


def test_an_address_is_written_as_people_do():
    assert str(Address("openstack", "compute")) == "openstack/compute"
    assert str(Address("openstack", "volume", "node@lvm")) == "openstack/volume/node@lvm"


def test_equal_settings_are_one_key():
    one, other = (
        Settings("/run/x", directories=("tcp://a:9500",)),
        Settings("/run/x", directories=("tcp://a:9500",)),
    )
    assert len({one, other, Settings("/run/y")}) == 2
