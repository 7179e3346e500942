"""How it looks and is used: narrow screens, both themes, the keyboard, motion, and what its policy forbids."""

import pytest

from tests.live.brokers import eventually

TABS = ("events", "services", "trends", "log", "call", "sessions", "denied", "history")

CONTRAST = """() => {
    const channel = (value) => value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    const parse = (text) => {
        const parts = text.match(/[\\d.]+/g)?.map(Number) ?? [0, 0, 0, 0];
        return {rgb: parts.slice(0, 3), alpha: parts.length > 3 ? parts[3] : 1};
    };
    const weights = [0.2126, 0.7152, 0.0722];
    const light = ({rgb}) => rgb.reduce((sum, each, at) => sum + channel(each / 255) * weights[at], 0);
    const behind = (element) => {
        const box = element.closest('.node')?.querySelector('.node-box');
        if (box) return parse(getComputedStyle(box).fill);
        for (let at = element; at; at = at.parentElement) {
            const colour = parse(getComputedStyle(at).backgroundColor);
            if (colour.alpha > 0.99) return colour;
        }
        return {rgb: [255, 255, 255]};
    };
    const bad = [];
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walker.nextNode()) {
        const element = walker.currentNode.parentElement;
        if (!walker.currentNode.data.trim() || element.closest('script, button:disabled')) continue;
        if (!element.checkVisibility() || element.getClientRects().length === 0) continue;
        const style = getComputedStyle(element);
        const one = light(parse(element instanceof SVGElement ? style.fill : style.color));
        const two = light(behind(element));
        const ratio = (Math.max(one, two) + 0.05) / (Math.min(one, two) + 0.05);
        const large = parseFloat(style.fontSize) >= 18.66 && Number(style.fontWeight) >= 600;
        if (ratio < (large ? 3 : 4.5)) bad.push(`${ratio.toFixed(2)} ${walker.currentNode.data.trim().slice(0, 40)}`);
    }
    return bad;
}"""


@pytest.mark.patient
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_contrast(look, scheme):
    page = look.dashboard(color_scheme=scheme)
    page.click('.node[data-rank="1"]')
    bad = []
    for tab in TABS:
        page.click(f"#tab-{tab}")
        page.wait_for_timeout(200)
        bad += page.evaluate(CONTRAST)
    page.keyboard.press("?")
    bad += page.evaluate(CONTRAST)
    assert bad == []


@pytest.mark.patient
def test_the_theme_can_be_chosen_and_is_remembered(look):
    page = look.dashboard(color_scheme="light")
    colour = "getComputedStyle(document.body).backgroundColor"
    shade = "getComputedStyle(document.documentElement).backgroundColor"
    light = page.evaluate(shade)
    page.click("#theme")
    page.click("#theme")
    dark = page.evaluate(shade)
    assert dark != light
    page.reload()
    page.wait_for_selector(".node >> nth=3")
    assert page.evaluate(shade) == dark
    assert page.evaluate(colour) is not None


@pytest.mark.parametrize(
    "tab", [TABS[0], *(pytest.param(each, marks=pytest.mark.patient) for each in TABS[1:])]
)
def test_a_phone_needs_no_sideways_scrolling(look, tab):
    page = look.dashboard(tab, width=390, height=844)
    page.wait_for_timeout(300)
    width, wide = page.evaluate(
        """() => [document.documentElement.scrollWidth,
                  [...document.querySelectorAll('body *')].filter(each => each.checkVisibility()
                      && !each.closest('.tabs, .rows, pre, svg') && each.getBoundingClientRect().right > 391)
                      .map(each => each.outerHTML.slice(0, 80))]"""
    )
    assert (width, wide) == (390, [])


@pytest.mark.patient
def test_the_login_page_fits_a_phone(look):
    page = look.page(width=390, height=844)
    page.goto(look.url)
    page.wait_for_selector("#login:not([hidden])")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


@pytest.mark.patient
def test_everything_is_reached_with_the_tabulator(look):
    page = look.dashboard()
    page.wait_for_selector(".event-row")
    page.evaluate("document.activeElement?.blur()")
    seen, invisible = [], []
    for _ in range(40):
        page.keyboard.press("Tab")
        name, visible = page.evaluate(
            """() => {
                const at = document.activeElement;
                const style = getComputedStyle(at);
                const box = at.querySelector?.('.node-box');
                const ring = style.outlineStyle !== 'none' || (box && getComputedStyle(box).strokeWidth === '3px');
                const name = at.id || at.getAttribute('aria-label') || at.textContent.trim();
                return [name, Boolean(ring) || at === document.body];
            }"""
        )
        if name in seen:
            break  # once round
        seen.append(name)
        if not visible:
            invisible.append(name)
    assert invisible == []
    for wanted in ("theme", "help", "tab-events", "Topic prefix", "Follow", "Pause", "Clear", "Events"):
        assert wanted in seen, (wanted, seen)
    assert any(name.startswith("rank 0") for name in seen), seen
    assert (
        sum(name.startswith("rank ") for name in seen) == 1
    )  # one stop for the whole tree: arrows do the rest


def test_the_tree_is_walked_with_arrows(look):
    page = look.dashboard()
    focused = "document.activeElement.dataset.rank"
    page.keyboard.press("o")
    assert page.evaluate(focused) == "0"
    for key, rank in (
        ("ArrowDown", "1"),
        ("ArrowRight", "3"),
        ("ArrowLeft", "1"),
        ("End", "2"),
        ("Home", "0"),
    ):
        page.keyboard.press(key)
        assert page.evaluate(focused) == rank, key
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowLeft")
    eventually(lambda: page.locator(".node").count(), 3)
    assert page.get_attribute('.node[data-rank="1"]', "aria-expanded") == "false"
    page.keyboard.press("ArrowRight")
    eventually(lambda: page.locator(".node").count(), 4)
    page.keyboard.press("Enter")
    assert page.get_attribute('.node[data-rank="1"]', "aria-selected") == "true"
    page.keyboard.press("Escape")
    assert page.get_attribute('.node[data-rank="1"]', "aria-selected") == "false"


@pytest.mark.patient
def test_shortcuts_and_tabs(look):
    page = look.dashboard()
    for number, tab in enumerate(TABS, 1):
        page.keyboard.press(str(number))
        assert page.locator(f"#panel-{tab}").is_visible()
    page.focus("#tab-history")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-events"
    page.keyboard.press("/")
    assert page.evaluate("document.activeElement.classList.contains('filter')")
    page.keyboard.type("1?t")  # typed into the filter, no shortcut
    assert page.input_value("#panel-events .filter") == "1?t"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("?")
    assert page.locator("#help-dialog").is_visible()
    page.keyboard.press("Escape")
    assert page.locator("#help-dialog").is_hidden()
    page.keyboard.press("p")
    assert page.get_attribute("#panel-events .toggle >> nth=1", "aria-pressed") == "true"


@pytest.mark.patient
def test_a_list_is_read_with_the_keyboard(look):
    page = look.dashboard()
    for number in range(5):
        look.publish("keys.event", {"number": number})
    page.fill("#panel-events .filter", "keys.")
    eventually(lambda: page.locator(".event-row:visible").count(), 5)
    page.focus("#panel-events .rows")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert '"number": 1' in page.text_content("#panel-events .entry-text")
    # a list is drawn in the frame after the key, and both attributes with it
    named = "document.querySelector('#panel-events .rows').getAttribute('aria-activedescendant')"
    selected = "[...document.querySelectorAll('#panel-events .row[aria-selected=true]')].map(row => row.id)"
    eventually(lambda: page.evaluate(f"{selected}.join() === {named} && {named}.endsWith('-1')"), True)
    page.keyboard.press("Escape")
    assert page.locator("#panel-events .entry").is_hidden()


@pytest.mark.patient
def test_nothing_moves_for_who_wants_no_motion(look):
    page = look.dashboard(reduced_motion="reduce")
    page.wait_for_selector(".edge-flow[data-pace]", state="attached")
    names = page.evaluate(
        """[...document.querySelectorAll('*')].map(each => getComputedStyle(each).animationName)
        .filter(name => name !== 'none')"""
    )
    assert names == []


@pytest.mark.patient
def test_the_page_needs_no_more_than_its_policy_gives(look):
    """Everything comes from the own origin; a violation of the policy would be an error in the console."""
    page = look.page()
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(look.link())
    page.wait_for_selector(".node >> nth=3")
    assert {url.split("/")[2] for url in asked} == {look.url.split("/")[2]}
    policy = page.request.get(look.url + "/").headers["content-security-policy"]
    assert "unsafe" not in policy
