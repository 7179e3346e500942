"""npm packages into one script for a browser, without a bundler: each module a function, ``require`` a table.

Only as much of CommonJS as published packages need: relative paths, packages by ``browser`` or ``main``, and empty
stand-ins for Node's own modules, which browsers do not have.
"""

import json
import re
from pathlib import Path

REQUIRE = re.compile(r"""\brequire\(\s*["']([^"']+)["']\s*\)""")


class Bundle:
    """Modules by path, found from their ``require`` calls."""

    def __init__(self, packages: Path) -> None:
        self.packages = packages
        self.sources: dict[str, str] = {}
        self.names: dict[str, dict[str, str]] = {}

    def add(self, name: str, beside: Path | None = None) -> str:
        """The key of module ``name``, as required from a file in ``beside``; its own requirements are added, too."""
        file = self._file(name, beside)
        key = str(file.relative_to(self.packages)) if file else f"(absent) {name}"
        if key not in self.sources:
            self.sources[key] = file.read_text() if file else ""
            self.names[key] = {}
            if file and file.suffix == ".js":
                for wanted in REQUIRE.findall(self.sources[key]):
                    self.names[key][wanted] = self.add(wanted, file.parent)
        return key

    def _file(self, name: str, beside: Path | None) -> Path | None:
        if name.startswith("."):
            assert beside is not None
            return self._existing((beside / name).resolve())
        folder = self.packages / name.rstrip("/")
        if not (folder / "package.json").exists():
            return self._existing(folder) if folder.parent != self.packages else None
        about = json.loads((folder / "package.json").read_text())
        browser = about.get("browser")
        return self._existing(
            folder / (browser if isinstance(browser, str) else about.get("main", "index.js"))
        )

    @staticmethod
    def _existing(path: Path) -> Path | None:
        for each in (path, path.with_name(path.name + ".js"), path / "index.js"):
            if each.is_file():
                return each
        return None

    def script(self, roots: dict[str, str]) -> str:
        """JavaScript that leaves each root module in a global variable; ``roots`` is variable -> package."""
        keys = {variable: self.add(package) for variable, package in roots.items()}
        modules = ",\n".join(
            f"{json.dumps(key)}: [function (require, module, exports, process, global) {{{source}\n}}, "
            f"{json.dumps(self.names[key])}]"
            for key, source in self.sources.items()
        )
        globals_ = "\n".join(
            f"window.{variable} = load({json.dumps(key)});" for variable, key in keys.items()
        )
        return f"""(() => {{
  const modules = {{{modules}}};
  const loaded = {{}};
  const process = {{ env: {{}}, nextTick: (work, ...rest) => queueMicrotask(() => work(...rest)) }};
  const load = (key) => {{
    if (!loaded[key]) {{
      const module = loaded[key] = {{ exports: {{}} }};
      const [body, names] = modules[key];
      body.call(module.exports, (name) => load(names[name]), module, module.exports, process, window);
    }}
    return loaded[key].exports;
  }};
  {globals_}
}})();"""
