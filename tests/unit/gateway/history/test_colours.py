"""Colours that are shown together are told apart, in light and dark, in the page, the picture and the dashboard."""

import itertools
import re
from pathlib import Path

from gateway.pipeline import picture, reportstyle
from gateway.pipeline.reportlines import PALETTE, PERCENTILES, TONES, toned
from tests.tables import for_each

DASHBOARD = Path(reportstyle.__file__).parents[1] / "dashboard"
TOGETHER = {
    "kinds": [TONES[name] for name in ("request", "response", "event", "control", "nfp", "oslo")],
    "percentiles": [tone for _, _, tone in PERCENTILES],
    "statuses": [TONES[name] for name in ("completed", "failed", "expired", "cancelled", "running")],
    "priorities": [TONES[name] for name in ("debug", "audit", "info", "warn", "error", "critical", "sample")],
    "others": list(PALETTE),
}
LEAST = 0.085
"""Between two colours in Oklab; orange and the brown of warnings have 0.06 and look alike."""


def sheets():
    """Each set of colours: where it is, and name -> #rrggbb."""
    texts = {
        "page": reportstyle.STYLE,
        "picture": picture.STYLE,
        "dashboard": (DASHBOARD / "styles" / "tokens.css").read_text(),
    }
    for name, text in texts.items():
        seen: dict[str, list[str]] = {}
        for key, value in re.findall(r"--([a-z]+): (#[0-9a-f]{6})", text):
            seen.setdefault(key, []).append(value)
        count = {"page": 2, "picture": 1, "dashboard": 3}[name]
        for at in range(count):
            yield f"{name} {at}", {key: given[at] for key, given in seen.items() if len(given) == count}


def oklab(colour):
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    r, g, b = (each / 12.92 if each <= 0.04045 else ((each + 0.055) / 1.055) ** 2.4 for each in parts)
    x = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b) ** (1 / 3)
    y = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b) ** (1 / 3)
    z = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b) ** (1 / 3)
    return (
        0.2104542553 * x + 0.7936177850 * y - 0.0040720468 * z,
        1.9779984951 * x - 2.4285922050 * y + 0.4505937099 * z,
        0.0259040371 * x + 0.7827717662 * y - 0.8086757660 * z,
    )


@for_each(("sheet", "colours"), list(sheets()))
@for_each("group", TOGETHER)
def test_no_two_look_alike(sheet, colours, group):
    for one, other in itertools.combinations(sorted(set(TOGETHER[group])), 2):
        pairs = zip(oklab(colours[one]), oklab(colours[other]), strict=True)
        distance = sum((a - b) ** 2 for a, b in pairs) ** 0.5
        assert distance >= LEAST, (sheet, one, other, distance)


def test_kinds_and_percentiles_have_a_colour_each():
    for group in ("kinds", "percentiles", "statuses", "others"):
        assert len(set(TOGETHER[group])) == len(TOGETHER[group])


def test_names_without_a_colour_take_one_that_is_free():
    names = ["request", "lab", "oslo", "store", "event", "x", "y", "z"]
    assert len(set(toned(names))) == 8
    assert toned(["request"] * 2) == ["request", "request"]
    assert len(toned([str(at) for at in range(12)])) == 12


def test_the_dashboard_has_the_same_colours():
    """Its program cannot import ours: what it says is compared."""
    text = (DASHBOARD / "panels" / "historyblocks.js").read_text()
    (block,) = re.findall(r"const TONES = \{(.*?)\};", text, re.DOTALL)
    assert dict(re.findall(r"(\w+): '(\w+)'", block)) == TONES
    (palette,) = re.findall(r"const PALETTE = \[(.*?)\];", text)
    assert tuple(re.findall(r"\w+", palette)) == PALETTE
    found = re.findall(r"\['(\w+_ns)', '([^']+)', '(\w+)'\]", text)
    assert tuple(found) == PERCENTILES
