"""The queries of the gold tables: all are there, each once, and a statement of one needs no other."""

import re
from importlib.resources import files

from gateway.pipeline import schema
from gateway.pipeline.tables import queries

GIVEN = {queries.BRONZE, "before", *queries.KEPT}
"""Views of the session, of which statements are."""


def test_each_table_has_one_query_and_each_query_one_name():
    known = queries.queries()
    tables = {table.name for table in schema.GOLD}
    assert set(queries.NEEDS) == tables
    assert tables | {f"open {kind}" for kind in queries.LEAVES} <= known.keys()
    here = [each for each in files("gateway.pipeline.tables").iterdir() if each.name.endswith(".sql")]
    names = re.findall(r"^-- name: (.+)$", "\n".join(each.read_text("utf-8") for each in here), re.MULTILINE)
    assert sorted(names) == sorted(known), "two queries have one name"
    assert f":since_ns < {queries.NEVER} " in known["newest"]
    assert not {name: text for name, text in known.items() if not text or "--" in text}


def test_a_statement_names_what_it_is_given_and_nothing_else():
    for hops in (True, False):
        statements = [queries.rows_of(table.name, None, hops=hops) for table in schema.GOLD]
        statements += [queries.left_open(kind, hops=hops) for kind in queries.LEAVES]
        statements += [queries.statement("calls", hops=hops), queries.queries()[queries.LOOK]]
        for text in statements:
            assert set(re.findall(r"\b(?:FROM|JOIN)\s+(\w+)", text)) <= GIVEN, text


def test_hops_are_looked_for_where_a_row_lacks_an_origin_alone():
    assert " AS hops" in queries.statement("calls", hops=True)
    assert " AS hops" not in queries.statement("calls", hops=False)


def test_dates_are_asked_for_by_the_partition():
    assert queries.rows_of("rpc", ["2026-01-31"], hops=False).endswith(" WHERE dt IN (DATE'2026-01-31')")
    assert queries.rows_of("rpc", [], hops=False).endswith(" WHERE dt IN (NULL)")
