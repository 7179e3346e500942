"""``broker/nfp/MANAGEMENT.md`` names every task there is, and who may ask for it. The story tests run its examples."""

import re
from pathlib import Path

import broker.nfp
from broker.cli.nfp.manage import BrokerPart, Function
from broker.nfp.management import SERVICES
from broker.nfp.names import ASKED_BY_MMI, INTERNAL, MMI_WORKER
from broker.nfp.worker import builtin
from tests.tables import for_each

PAGE = (Path(broker.nfp.__file__).parent / "MANAGEMENT.md").read_text()
TABLES = dict(re.findall(r"^`([a-z.]+)`[^\n]*:\n\n((?:\|.*\n)+)", PAGE, re.MULTILINE))


def tasks(service):
    """Task -> who, of the page's table for ``service``."""
    return dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", TABLES[service], re.MULTILINE))


def test_every_service_has_its_table():
    assert set(TABLES) == ASKED_BY_MMI


@for_each("service", sorted(INTERNAL))
def test_the_tables_of_the_broker_are_complete(service):
    assert tasks(service) == {name: least.value for name, (least, _) in SERVICES[service].items()}


def test_the_table_of_workers_is_complete():
    assert list(tasks(MMI_WORKER)) == list(builtin._FUNCTIONS) == [each.value for each in Function]


def test_the_page_shows_everything_that_can_be_shown():
    assert {
        what
        for what in BrokerPart
        if re.search(rf"manage show {what.value}\b", PAGE) or what is BrokerPart.broker
    } == set(BrokerPart)
