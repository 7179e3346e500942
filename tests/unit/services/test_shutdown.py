"""shutdown.start, as flux shutdown asks for it."""

import errno

from broker.services.log import Log
from tests.unit.services.desk import GUEST, Desk


def test_who_streams_hears_what_is_logged_until_the_goodbye():
    desk = Desk()
    log = desk.service(Log)
    me, late = desk.client(), desk.client()
    stream = me.stream("shutdown.start", {"loglevel": 6})
    assert desk.left == [("shutdown by userid 0", 0)]
    assert late.refused("shutdown.start", {"loglevel": 6}) == (22, "shutdown is already in progress")
    desk.run(log.note, 6, "state cleanup after 1.0 s in run")
    desk.run(log.note, 7, "nobody asked for this")
    assert stream.news() == [{"log": "broker.info[0]: state cleanup after 1.0 s in run\n"}]
    for state in ("cleanup", "shutdown", "finalize"):
        desk.enter(state)
    assert stream.news() == []
    desk.enter("goodbye")
    assert stream.news() == [errno.ENODATA]


def test_in_the_background_it_is_answered_at_once():
    desk = Desk()
    assert desk.client().ask("shutdown.start", {"loglevel": 6}).errnum == 0
    assert desk.left


def test_who_and_when_it_is_refused():
    assert Desk(rank=1).client().refused("shutdown.start", {"loglevel": 6}) == (
        22,
        "shutdown may only be initiated on rank 0",
    )
    join = Desk(state="join").client()
    assert join.refused("shutdown.start", {"loglevel": 6}) == (
        22,
        "shutdown cannot be initiated in state join",
    )
    assert Desk().client(GUEST).refused("shutdown.start") == (1, "Request requires owner credentials")
    assert Desk(leaves=False).client().refused("shutdown.start", {"loglevel": 6}) == (
        38,
        "this broker is ended by the program that runs it",
    )
