"""Become one party."""

import importlib
import json
import sys

from tests.proof.layout import Call, Party
from tests.proof.parties.party import Place

MODULES = {
    "flux": "flux",
    "page": "page",
    "http": "http",
    "nfp-worker": "nfp",
    "nfp-client": "nfp",
    "oslo-server": "oslo",
    "oslo-client": "oslo",
}


def main(text: str) -> int:
    told = json.loads(text)
    fields = told["party"]
    party = Party(**{**fields, "calls": tuple(Call(*each) for each in fields["calls"])})
    module = importlib.import_module(f"tests.proof.parties.{MODULES[party.kind]}")
    return int(module.main(party, Place(**told["place"])))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
