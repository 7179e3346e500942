"""Write the lists of packages, with hashes, that the container images are built from:

    python deploy/lock.py        needs uv (pip install uv), and a package index

requirements.txt         what brokers, gateway, NFP and the oslo proxy need
requirements-spark.txt   what `headgate pipeline` needs beyond it
requirements-build.txt   what makes wheels; none of it is in an image

Versions are those of ../requirements.lock, where it names them. pyarrow is in the second list: only the pipeline, and
the dashboard's view of what it made, read and write tables.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
EXTRAS = ("all", "redis", "journal")
"""Of the usual image."""
BUILD = ("hatchling", "mypy", "pip", "setuptools", "wheel")
HEAD = "# {what}; every file by its hash. Written by: python deploy/lock.py\n"
ENTRY = re.compile(r"^(?=[A-Za-z0-9])", re.MULTILINE)


def compiled(sources=(), *, extras=()):
    """Name -> the lines of its entry: name==version and hashes."""
    with tempfile.TemporaryDirectory() as folder:
        wanted, found = Path(folder, "wanted.in"), Path(folder, "found.txt")
        wanted.write_text("\n".join(sources))
        command = ["uv", "pip", "compile", "--quiet", "--generate-hashes", "--no-header", "--no-annotate"]
        command += ["--python-version", "3.11", "--constraint", str(ROOT / "requirements.lock")]
        command += [word for extra in extras for word in ("--extra", extra)]
        command += [str(ROOT / "pyproject.toml")] if extras else []
        subprocess.run(
            [*command, str(wanted), "--output-file", str(found)], check=True, stdout=subprocess.DEVNULL
        )
        entries = ENTRY.split(found.read_text())[1:]
    return {entry.partition("==")[0].strip(): entry.rstrip() for entry in entries}


def write(name, what, entries):
    text = HEAD.format(what=what) + "".join(f"{entries[each]}\n" for each in sorted(entries))
    HERE.joinpath(name).write_text(text)
    print(f"{name}: {len(entries)} packages")


def main():
    usual = compiled(extras=EXTRAS)
    write("requirements.txt", "What the image runs with", usual)
    write("requirements-build.txt", "What its wheels are made with", compiled(BUILD))
    if "--without-spark" not in sys.argv[1:]:  # PySpark tells what it needs from within 400 MB
        more = compiled(extras=(*EXTRAS, "spark"))
        differs = [name for name in usual if more.get(name) != usual[name]]
        if differs:
            sys.exit(f"with Spark another version of {', '.join(differs)} is needed")
        write(
            "requirements-spark.txt",
            "What the image with Spark has besides",
            {name: entry for name, entry in more.items() if name not in usual},
        )


if __name__ == "__main__":
    main()
