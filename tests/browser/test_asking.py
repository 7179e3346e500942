"""What open pages cost the brokers: all of them together what one does."""

import pytest

pytestmark = pytest.mark.patient

ASKED = ("broker.", "overlay.", "state-machine.", "attr.")
SECONDS = 6


def asked(look) -> int:
    """Questions about the brokers that came in by the gateway."""
    methods = look.rpc("broker.calls")["methods"]
    return sum(each["calls"] for name, each in methods.items() if name.startswith(ASKED))


def asked_while(look, page) -> int:
    before = asked(look)
    page.wait_for_timeout(SECONDS * 1000)
    return asked(look) - before


def test_two_pages_ask_the_brokers_what_one_does(look):
    page = look.dashboard("services")
    page.wait_for_timeout(1000)
    one = asked_while(look, page)
    others = [look.dashboard("services"), look.dashboard("trends")]
    page.wait_for_timeout(1000)
    three = asked_while(look, page)
    assert one >= SECONDS * 4, "four brokers, every second"
    assert three < one * 1.3
    assert [other.locator(".node[data-status=full]").count() for other in others] == [4, 4]
