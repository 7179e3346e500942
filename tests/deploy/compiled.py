"""``python -m tests.deploy.compiled SOURCES``: is every file of SOURCES with the compiler's mark an extension here?"""

import runpy
import sys
from importlib.machinery import EXTENSION_SUFFIXES
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
HOOK = runpy.run_path(str(ROOT / "deploy/compile.py"))
marked = HOOK["marked"]


def module(file: str) -> str:
    """Its name.

    >>> module("broker/wire/message.py"), module("broker/routing/__init__.py")
    ('broker.wire.message', 'broker.routing')
    """
    return file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def pure(modules: list[str]) -> list[str]:
    """Those of ``modules`` that would be imported from somewhere else than an extension."""
    specs = {name: find_spec(name) for name in modules}
    return [
        f"{name}: {spec.origin if spec else 'not there'}"
        for name, spec in specs.items()
        if spec is None or not (spec.origin or "").endswith(tuple(EXTENSION_SUFFIXES))
    ]


def main() -> int:
    modules = [module(file) for file in marked(Path(sys.argv[1]))]
    found = pure(modules)
    print("\n".join([*found, f"{len(modules) - len(found)} of {len(modules)} modules are compiled"]))
    return 1 if found or not modules else 0


if __name__ == "__main__":
    sys.exit(main())
