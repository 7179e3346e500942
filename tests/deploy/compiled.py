"""``python -m tests.deploy.compiled SOURCES``: is every module that pyproject.toml wants compiled an extension here?"""

import sys
import tomllib
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path


def wanted(sources: Path) -> list[str]:
    """The modules that are compiled in the wheel.

    Raises:
        ValueError: a pattern of the list matches nothing.
    """
    tables = tomllib.loads((sources / "pyproject.toml").read_text())
    hook = tables["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]
    found: set[Path] = set()
    for pattern in hook["include"]:
        matches = set(sources.glob(pattern))
        if not matches:
            raise ValueError(f"{pattern} matches no file")
        found |= matches
    found -= {path for pattern in hook.get("exclude", []) for path in sources.glob(pattern)}
    return sorted(".".join(path.relative_to(sources).with_suffix("").parts) for path in found)


def pure(modules: list[str]) -> list[str]:
    """Those of ``modules`` that would be imported from somewhere else than an extension."""
    specs = {
        module.removesuffix(".__init__"): find_spec(module.removesuffix(".__init__")) for module in modules
    }
    return [
        f"{module}: {spec.origin if spec else 'not there'}"
        for module, spec in specs.items()
        if spec is None or not (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
    ]


def main() -> int:
    modules = wanted(Path(sys.argv[1]))
    found = pure(modules)
    print("\n".join([*found, f"{len(modules) - len(found)} of {len(modules)} modules are compiled"]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
