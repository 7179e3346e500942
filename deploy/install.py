"""Install what `pip install` would, into the environment of the Python that runs this, or of another:

    PYTHON deploy/install.py [--python OTHER] [--constraint FILE] [--editable] REQUIREMENT...

uv does it in a tenth of pip's time, and is fetched where there is none. It is told of the index, the certificates and
the constraints that pip is configured with. Where it is not to be had, cannot be told, or fails, pip does it.
"""

import ast
import os
import shutil
import subprocess
import sys

PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check")
INSTALL = ("install", "--quiet", "--no-compile")
"""What is used is compiled when it is first imported; all of it would take as long as the rest of an installation."""

TOLD = {  # option of pip -> variable of uv, and what is between several values
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "constraint": ("UV_CONSTRAINT", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
}
NO_MATTER = {
    *(
        "config-file",
        "disable-pip-version-check",
        "default-timeout",
        "timeout",
        "retries",
        "cache-dir",
        "no-compile",
    ),
    *("quiet", "no-input", "no-color", "progress-bar", "root-user-action", "require-virtualenv"),
}


def configured():
    """Return what pip is configured with, by its files and then by the environment."""
    listed = subprocess.run([*PIP, "config", "list"], capture_output=True, text=True, check=True).stdout
    lines = (line.partition("=") for line in listed.splitlines())
    found = {name: ast.literal_eval(value) for name, _, value in lines}
    sections = ("global.", "install.", ":env:.")
    return {
        name.removeprefix(section): value
        for section in sections
        for name, value in found.items()
        if name.startswith(section)
    }


def environment(options):
    """Return the environment that tells uv what `options` tell pip, or None where it cannot be told."""
    if options.keys() - TOLD.keys() - NO_MATTER:
        return None
    told = {"UV_INDEX_STRATEGY": "unsafe-best-match"}  # of several indexes the newest version, as pip does
    for name in TOLD.keys() & options.keys():
        variable, between = TOLD[name]
        told[variable] = between.join(options[name].split())
    return told | os.environ  # what names uv itself is stronger


def uv():
    """Return the path of uv: the user's, or one of this environment, where it is put when it is missing."""
    beside = os.path.join(os.path.dirname(sys.executable), "uv")
    if not (shutil.which("uv") or os.path.exists(beside)):
        subprocess.run([*PIP, *INSTALL, "uv"], stderr=subprocess.DEVNULL, check=False)
    return shutil.which("uv") or shutil.which(beside)


def main(words):
    python = sys.executable
    if words[0] == "--python":
        _, python, *words = words
    told, program = environment(configured()), uv()
    if told is not None and program is not None:
        command = [program, "pip", "install", "--quiet", "--python", python, *words]
        if subprocess.run(command, env=told, check=False).returncode == 0:
            return 0
        print("uv could not install this: pip tries", file=sys.stderr)
    subprocess.run(
        [*PIP, *INSTALL, "--upgrade", "pip"], check=False
    )  # one of 2023 takes more than twice the time
    return subprocess.run([*PIP, "--python", python, *INSTALL, *words], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
