"""A table is one case in which every entry is run, and every one that fails is named."""

import inspect

import pytest

from tests.tables import for_each


def test_every_entry_that_fails_is_named_and_the_others_are_run():
    seen = []

    @for_each(("number", "square"), [(1, 1), (2, 5), (3, 9), pytest.param(4, 15, id="four")])
    def squares(number: int, square: int) -> None:
        seen.append(number)
        assert number**2 == square

    with pytest.raises(AssertionError) as failed:
        squares()
    assert seen == [1, 2, 3, 4]
    first, *lines = str(failed.value).splitlines()
    assert first == "2 of 4 entries fail"
    assert [line.split(": ")[:2] for line in lines] == [["  1", "2, 5"], ["  3", "four"]]
    assert "assert (2 ** 2) == 5" in lines[0]
    assert "tests/unit/test_tables.py:" in lines[0]


def test_a_missing_error_and_a_foreign_one_are_failures_of_their_entry():
    @for_each("value", ["1", "one", None])
    def refused(value: object) -> None:
        with pytest.raises(ValueError, match="invalid literal"):
            int(value)  # type: ignore[call-overload]

    with pytest.raises(
        AssertionError, match=r"(?s)2 of 3 .*'1': Failed: DID NOT RAISE.*None: TypeError: int"
    ):
        refused()


async def test_a_coroutine_is_awaited_for_each():
    seen = []

    @for_each("value", [1, 2, 3])
    async def nothing(value: int) -> None:
        seen.append(value)
        assert value == 2

    with pytest.raises(AssertionError, match=r"(?s)2 of 3 .*0: 1: .*2: 3: "):
        await nothing()
    assert seen == [1, 2, 3]


def test_names_come_from_ids_where_there_are_some():
    for ids in (["low", "high"], lambda value: {0: "low", 9: "high"}[value]):

        @for_each("value", [0, 9], ids=ids)
        def nothing(value: int) -> None:
            raise AssertionError(value)

        with pytest.raises(AssertionError, match=r"(?s)0: low: .*1: high: "):
            nothing()


def test_fixtures_are_what_a_table_leaves_of_the_arguments():
    @for_each("one", [1])
    @for_each("two", [2])
    def test(one: int, two: int, tmp_path: object) -> None:
        """Say so."""

    assert list(inspect.signature(test).parameters) == ["tmp_path"]
    test(tmp_path=None)


def test_a_table_is_made_when_it_is_gone_through_and_an_empty_one_is_a_failure():
    calls = []

    def entries() -> list[int]:
        calls.append(1)
        return []

    @for_each("value", entries)
    def nothing(value: int) -> None:
        """Be never called."""

    assert not calls
    with pytest.raises(AssertionError, match="without entries"):
        nothing()
    assert calls


def test_when_the_clock_goes_off_the_rest_of_a_table_is_not_run():
    seen = []

    @for_each("value", [1, 2])
    def hang(value: int) -> None:
        seen.append(value)
        pytest.fail("Timeout (>120.0s) from pytest-timeout.")

    with pytest.raises(pytest.fail.Exception, match="Timeout"):
        hang()
    assert seen == [1]


def test_a_skip_hides_no_failure_before_it():
    @for_each("value", [1, 2])
    def second_is_skipped(value: int) -> None:
        if value == 2:
            pytest.skip("optional: not here")
        raise AssertionError(value)

    with pytest.raises(AssertionError, match=r"(?s)1: 2 is skipped.*after failures.*0: 1"):
        second_is_skipped()
