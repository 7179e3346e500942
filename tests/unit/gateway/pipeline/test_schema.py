"""The tables on paper: Arrow, DDL and Markdown say the same; versions; options of the source in words."""

import pytest

from gateway.pipeline import schema
from gateway.pipeline.columns import PARTITION, Table, version_of
from gateway.pipeline.errors import PipelineError
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
    assert f"### {table.name}" in schema.markdown((table,))


def test_versions_are_read_from_our_key_and_from_sparks() -> None:
    assert version_of({b"headgate.v": b"3"}) == 3
    field = '{"fields":[{"metadata":{"headgate.v":1}},{"metadata":{"headgate.v":"2"}},{"metadata":{}}]}'
    assert version_of({b"org.apache.spark.sql.parquet.row.metadata": field.encode()}) == 2
    assert version_of({}) is None
    with pytest.raises(PipelineError, match="f: version 3 of table traffic; this program knows up to 2"):
        schema.TRAFFIC.refuse_foreign({b"headgate.v": b"3", b"headgate.table": b"traffic"}, "f")
    with pytest.raises(
        PipelineError, match="f: version 1 of table traffic; this program reads from 2 on: make the"
    ):
        schema.TRAFFIC.refuse_foreign({b"headgate.v": b"1", b"headgate.table": b"traffic"}, "f")
    with pytest.raises(PipelineError, match="f: a file of table rpc; expected traffic"):
        schema.TRAFFIC.refuse_foreign({b"headgate.table": b"rpc"}, "f")


def test_a_table_that_is_not_there() -> None:
    with pytest.raises(PipelineError, match="no table 'nothing'; there are messages, traffic"):
        schema.table_named("nothing")
