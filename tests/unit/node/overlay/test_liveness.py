from broker.node.overlay.liveness import SilenceTimer, TorpidTimer, lost_after_s
from tests.tables import for_each


def test_silence_lasts_while_the_count_stands_still():
    silence = SilenceTimer(5, 100.0)
    assert silence.seconds(5, 103.0) == 3.0
    assert silence.seconds(6, 104.0) == 0.0
    assert silence.seconds(6, 106.5) == 2.5


def test_a_count_that_goes_back_moved_too():
    assert SilenceTimer(5, 0.0).seconds(2, 9.0) == 0.0


def test_a_child_becomes_torpid_once_and_recovers_once():
    silence = TorpidTimer(0, 0.0)
    assert not silence.check(0, 29.9, 30.0)
    assert silence.check(0, 30.0, 30.0)
    assert silence.torpid
    assert not silence.check(0, 40.0, 30.0)
    assert silence.check(1, 41.0, 30.0)
    assert not silence.torpid


def test_zero_means_never_torpid_even_for_one_who_is():
    silence = TorpidTimer(0, 0.0)
    silence.check(0, 50.0, 30.0)
    assert silence.check(0, 51.0, 0)
    assert not silence.torpid
    assert not silence.check(0, 1e9, 0)


@for_each(("keepalive_s", "lost_s"), [(0.0, 0.0), (0.1, 20.0), (5.0, 20.0), (6.0, 24.0), (86400.0, 345600.0)])
def test_who_promised_no_keepalive_is_never_lost_and_who_is_slow_has_longer(keepalive_s, lost_s):
    assert lost_after_s(keepalive_s) == lost_s


def test_a_silence_may_begin_anew():
    silence = SilenceTimer(5, 0.0)
    silence.restart(7.0)
    assert silence.seconds(5, 8.0) == 1.0
