"""A session with a lesser role: what it sees, and what it is told where it sees nothing."""

import pytest

from tests.browser.stage import hurry


@pytest.mark.patient
def test_panels_say_which_role_they_need(look):
    page = look.guest()
    page.wait_for_selector(".node >> nth=3")
    page.wait_for_selector("#panel-events .needs:has-text('needs the role')")
    for tab, topic in (("log", "log.dmesg"), ("sessions", "gateway.sessions"), ("denied", "gateway.denied")):
        page.click(f"#tab-{tab}")
        said = page.locator(f"#panel-{tab} .needs:has-text('Calling {topic} needs the role')")
        said.wait_for()
        assert "owner" in said.text_content()
        assert "This session has the role user." in said.text_content()


@pytest.mark.patient
def test_looking_at_the_dashboard_is_no_denied_access(look):
    """The panels ask the rules first: what they may not show is not in the list of refusals."""
    before = look.rpc("gateway.denied")["total"]
    page = look.guest()
    for tab in ("log", "sessions", "denied"):
        page.click(f"#tab-{tab}")
        page.wait_for_selector(f"#panel-{tab} .needs:not([hidden])")
    assert look.rpc("gateway.denied")["total"] == before


@pytest.mark.patient
def test_a_refused_call_names_the_role_and_the_owner_sees_it(look):
    owner = look.dashboard("denied", hurried=True)
    page = look.guest()
    page.click("#tab-call")
    page.fill("#call-topic", "secret.method")
    page.click("#panel-call button.primary")
    page.wait_for_selector(".outcome[data-mood=bad]:has-text('EPERM (1)')")
    assert "needs the role owner" in page.text_content(".answer")
    row = owner.locator("#panel-denied tr:has-text('secret.method')")
    hurry(owner, lambda: row.count() > 0)
    assert "bob" in row.first.text_content()
    assert owner.locator("#tab-denied .badge").is_visible()


@pytest.mark.patient
def test_a_prefix_that_the_role_may_see_is_subscribed(look):
    page = look.guest()
    page.wait_for_selector("#panel-events .needs:has-text('Enter a prefix')")
    page.fill("#panel-events .filter", "open.")
    page.press("#panel-events .filter", "Enter")
    page.wait_for_selector("#panel-events .needs", state="hidden")
    look.publish("open.news", {"for": "everybody"})
    look.publish("closed.news", {"for": "nobody"})
    look.publish("open.end", {})
    page.wait_for_selector(".event-row:has-text('open.end')")
    assert page.locator(".event-row:has-text('open.news')").count() == 1
    assert page.locator(".event-row:has-text('closed.news')").count() == 0
