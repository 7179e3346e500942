"""The tables on paper: Arrow, DDL and Markdown say the same; versions; options of the source in words."""

import pytest

from gateway.cli.pipeline.describe import in_markdown
from gateway.delta import PARTITION
from gateway.pipeline import schema
from gateway.pipeline.errors import PipelineError
from gateway.pipeline.schema import Table, tables_of
from tests.tables import for_each

BINDING = (
    "seq ts ts_ns rank writer run capture peer peer_id role via via_id via_role transport direction reason kind type "
    "flags userid claimed rolemask nodeid errnum event_seq matchtag topic service origin routes payload_len wire_len "
    "delivered detail dt"
)


def test_bronze_has_its_columns_in_the_fixed_order() -> None:
    assert schema.MESSAGES.names == tuple(BINDING.split())
    assert schema.MESSAGES.version == 3


@for_each("table", schema.TABLES.values(), ids=lambda table: table.name)
def test_all_forms_of_a_table_agree(table: Table) -> None:
    assert len(set(table.names)) == len(table.names)
    assert PARTITION in table.names
    assert table.arrow(partition=True).names == list(table.names)
    assert PARTITION not in table.arrow().names
    assert [each.split()[0].strip("`") for each in table.ddl.split(", ")] == list(table.names)
    assert all(column.doc for column in table.columns)
    assert f"### {table.name}" in in_markdown((table,))


@for_each(
    ("settings", "text"),
    [
        ({"headgate.v": "3"}, "w: version 3 of table traffic; this program knows up to 2"),
        ({"headgate.v": "1"}, "w: version 1 of table traffic; this program reads from 2 on: make the"),
        ({"headgate.table": "rpc"}, "w: table rpc; expected traffic"),
    ],
)
def test_another_table_or_version_is_refused(settings: dict[str, str], text: str) -> None:
    traffic = schema.TABLES["traffic"]
    traffic.refuse_foreign({"headgate.v": "2", "headgate.table": "traffic"}, "w")
    with pytest.raises(PipelineError, match=text):
        traffic.refuse_foreign(settings, "w")


def test_a_column_is_said_once_and_one_that_came_later_has_its_version() -> None:
    one, other = tables_of("""
first 3 What
it is.
    rank       long   who
    dt         date   partition

second 1 More.
    rank
    a,b        string both
    c          int@2  later
""").values()
    assert (one.doc, one.version) == ("What it is.", 3)
    assert other.names == ("rank", "a", "b", "c", "dt")
    assert [each.since for each in other.columns] == [1, 1, 1, 2, 1]
    assert other.ddl == "`rank` bigint, `a` string, `b` string, `c` int, `dt` date"


def test_a_table_that_is_not_there() -> None:
    with pytest.raises(PipelineError, match="no table 'nothing'; there are messages, traffic"):
        schema.table_named("nothing")
