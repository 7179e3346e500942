"""The page about the pipeline shows the tables as the schema has them, and verbs that there are."""

import re
from pathlib import Path

import gateway.pipeline
from gateway.cli import pipeline
from gateway.cli.pipeline.describe import in_markdown
from gateway.pipeline import schema

PAGE = (Path(gateway.pipeline.__file__).parent / "README.md").read_text()


def test_the_tables_are_those_of_the_schema():
    _head, begun, rest = PAGE.partition("<!-- tables: begin -->\n")
    tables, ended, _tail = rest.partition("<!-- tables: end -->")
    assert begun
    assert ended
    here = in_markdown(schema.TABLES.values())
    assert tables == here, "`headgate pipeline describe --markdown` has what belongs here"


def test_the_verbs_are_there():
    named = set(re.findall(r"headgate pipeline ([a-z]+)", PAGE))
    assert named
    assert named <= set(pipeline.VERBS)
