"""A large tree: what is wrong comes first, and a broker is found by what is typed."""

import pytest

pytestmark = pytest.mark.patient

TREE = """async (size) => {
    const { Rank } = await import('./model/instance.js');
    const { Tree } = await import('./panels/tree.js');
    const { TreeFind } = await import('./panels/treefind.js');
    const ranks = new Map(Array.from({ length: size }, (_, rank) => [rank, new Rank(rank)]));
    for (const rank of ranks.values()) {
        Object.assign(rank, { host: `node${rank.rank}`, told: 'full' });
        rank.parent = ranks.get(rank.rank ? (rank.rank - 1) >> 1 : -1) ?? null;
        rank.parent?.children.push(rank);
    }
    window.instance = { ranks, root: ranks.get(0), get list() { return [...ranks.values()]; } };
    document.body.replaceChildren();
    const [find, place] = ['div', 'div'].map((tag) => document.body.appendChild(document.createElement(tag)));
    window.tree = new Tree(place, instance, () => {});
    window.find = new TreeFind(find, instance, tree);
    window.draw = () => { tree.draw(); window.find.draw(); };
    draw();
}"""
FOUND = "[...document.querySelectorAll('.found button')].map((each) => each.innerText)"


@pytest.fixture
def page(look):
    return look.bench()


def test_what_is_wrong_comes_first_and_is_brought_into_view(page):
    page.evaluate(TREE, 127)
    assert page.evaluate(FOUND) == []
    page.evaluate("Object.assign(instance.ranks.get(100), {told: 'lost', error: 'keepalive'}); draw()")
    page.evaluate("instance.ranks.get(49).told = 'degraded'; draw()")
    assert page.evaluate(FOUND) == ["rank 49 node49: degraded", "rank 100 node100: lost: keepalive"]
    assert page.locator('.node[data-rank="100"]').count() == 0, "its part of the tree is folded"
    page.click(".found button >> nth=1")
    assert page.evaluate("tree.selected") == 100
    assert page.get_attribute('.node[data-rank="100"]', "aria-selected") == "true"


def test_a_broker_is_found_by_rank_host_and_status(page):
    page.evaluate(TREE, 31)
    field = page.get_by_label("Find a broker")
    field.fill("7")
    assert page.evaluate(FOUND) == ["rank 7 node7: full", "rank 17 node17: full", "rank 27 node27: full"]
    field.press("Enter")
    assert page.evaluate("tree.selected") == 7
    field.fill("lost")
    assert page.evaluate(FOUND) == []
    assert page.get_attribute(".found", "data-more") == "no broker like that"
    field.press("Escape")
    assert field.input_value() == ""


def test_a_small_tree_is_seen_at_a_glance(page):
    page.evaluate(TREE, 7)
    assert page.get_by_label("Find a broker").is_hidden()
