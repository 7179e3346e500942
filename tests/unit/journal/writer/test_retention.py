"""Which segments go: the oldest, until what is left fits, and those that are too old; never the open one."""

from broker.journal.writer.recovery import Kept, surplus

SEGMENTS = [Kept(f"w-{number}", number, size=100, written_s=number * 10.0) for number in range(5)]


def gone(*, keep_bytes=0, keep_s=0.0, now_s=40.0, open_path="w-4"):
    return [each.path for each in surplus(SEGMENTS, open_path, keep_bytes, keep_s, now_s)]


def test_as_many_go_as_make_room_and_no_more():
    assert {keep: gone(keep_bytes=keep) for keep in (500, 499, 300, 250, 1)} == {
        500: [],
        499: ["w-0"],
        300: ["w-0", "w-1"],
        250: ["w-0", "w-1", "w-2"],
        1: ["w-0", "w-1", "w-2", "w-3"],  # the open one stays, though it is too large by itself
    }


def test_what_was_written_to_too_long_ago_goes():
    assert gone(keep_s=30.0) == ["w-0", "w-1"]
    assert gone(keep_s=30.0, now_s=1000.0) == ["w-0", "w-1", "w-2", "w-3"]
    assert gone(keep_s=30.0, now_s=1000.0, open_path="") == [each.path for each in SEGMENTS]


def test_without_limits_all_stay():
    assert gone(now_s=1e9) == []
