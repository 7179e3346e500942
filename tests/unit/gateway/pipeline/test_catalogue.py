"""The queries of the gold tables: all are there, each once, and a statement of one needs no other."""

import re
from importlib.resources import files

from gateway.pipeline import schema
from gateway.pipeline.tables import catalogue
from gateway.pipeline.tables.made import NEVER

GIVEN = {catalogue.BRONZE, "before", *catalogue.KEPT}
"""Views of the session, of which statements are."""


def test_each_table_has_one_query_and_each_query_one_name():
    queries = catalogue.queries()
    tables = {table.name for table in schema.GOLD}
    assert set(catalogue.NEEDS) == tables
    assert tables | {f"open {kind}" for kind in catalogue.LEAVES} <= queries.keys()
    here = [each for each in files("gateway.pipeline.tables").iterdir() if each.name.endswith(".sql")]
    names = re.findall(r"^-- name: (.+)$", "\n".join(each.read_text("utf-8") for each in here), re.MULTILINE)
    assert sorted(names) == sorted(queries), "two queries have one name"
    assert f":since_ns < {NEVER} " in queries["newest"]
    assert not {name: text for name, text in queries.items() if not text or "--" in text}


def test_a_statement_names_what_it_is_given_and_nothing_else():
    for hops in (True, False):
        statements = [catalogue.rows_of(table.name, None, hops=hops) for table in schema.GOLD]
        statements += [catalogue.left_open(kind, hops=hops) for kind in catalogue.LEAVES]
        statements += [catalogue.statement("calls", hops=hops), catalogue.queries()[catalogue.LOOK]]
        for text in statements:
            assert set(re.findall(r"\b(?:FROM|JOIN)\s+(\w+)", text)) <= GIVEN, text


def test_hops_are_looked_for_where_a_row_lacks_an_origin_alone():
    assert " AS hops" in catalogue.statement("calls", hops=True)
    assert " AS hops" not in catalogue.statement("calls", hops=False)


def test_dates_are_asked_for_by_the_partition():
    assert catalogue.rows_of("rpc", ["2026-01-31"], hops=False).endswith(" WHERE dt IN (DATE'2026-01-31')")
    assert catalogue.rows_of("rpc", [], hops=False).endswith(" WHERE dt IN (NULL)")
