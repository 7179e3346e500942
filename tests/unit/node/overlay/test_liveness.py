from broker.node.overlay.liveness import Silence, Torpor


def test_silence_lasts_while_the_count_stands_still():
    silence = Silence(5, 100.0)
    assert silence.seconds(5, 103.0) == 3.0
    assert silence.seconds(6, 104.0) == 0.0
    assert silence.seconds(6, 106.5) == 2.5


def test_a_count_that_goes_back_moved_too():
    assert Silence(5, 0.0).seconds(2, 9.0) == 0.0


def test_a_child_becomes_torpid_once_and_recovers_once():
    torpor = Torpor(0, 0.0)
    assert not torpor.check(0, 29.9, 30.0)
    assert torpor.check(0, 30.0, 30.0)
    assert torpor.torpid
    assert not torpor.check(0, 40.0, 30.0)
    assert torpor.check(1, 41.0, 30.0)
    assert not torpor.torpid


def test_zero_means_never_torpid_even_for_one_who_is():
    torpor = Torpor(0, 0.0)
    torpor.check(0, 50.0, 30.0)
    assert torpor.check(0, 51.0, 0)
    assert not torpor.torpid
    assert not torpor.check(0, 1e9, 0)
