"""``/asyncapi.json`` is what AsyncAPI 3.0 calls a document, by the schema that its people publish."""

import json
from pathlib import Path

import jsonschema
import pytest

from gateway.web.routes import messages
from tests.conftest import OPTIONAL

pytestmark = pytest.mark.interop
SCHEMA = Path(__file__).parents[2] / "build/npm/node_modules/@asyncapi/specs/schemas/3.0.0-without-$id.json"


def test_it_is_a_document():
    if not SCHEMA.exists():
        pytest.skip(f"{OPTIONAL} AsyncAPI's schema is not here: `make npm` fetches it")
    validator = jsonschema.Draft7Validator(json.loads(SCHEMA.read_text()))
    assert [error.message for error in validator.iter_errors(messages("/gate"))] == []
    wrong = messages()
    wrong["operations"]["tell"]["action"] = "say"
    assert not validator.is_valid(wrong)
