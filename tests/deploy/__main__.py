"""``python -m tests.deploy``: every checker over everything in ``Dockerfile`` and ``deploy/``, one line each.

Nothing of it needs a container engine, a cluster or root. Its parts, which the tests beside it use, too::

    checks      the checkers of others: hadolint, compose-spec, kubernetes-validate, systemd-analyze
    compiled    whether a wheel is compiled as it should be
    commands    `headgate ...` as it stands in a unit, a manifest or a Dockerfile: would it parse?
    dockerfile  the instructions of a Dockerfile
    figures     the metrics that are served
    kubelet     what is done with a pod template, without a cluster
    machine     a machine of namespaces with the real systemd
    manifests   Kustomize's overlays, built with keys of their own
    units       systemd's unit files
"""

import sys
import time

from tests.deploy import checks


def main() -> int:
    """Print a line for each check and what it complains of; 1 when there is a complaint, or a checker is missing that
    could be there.
    """
    bad = 0
    for name, check in checks.everything():
        began = time.monotonic()
        try:
            complaints = check()
            word = "bad" if complaints else "ok"
        except checks.Missing as missing:
            complaints = [str(missing)]
            word = "skip" if str(missing).startswith("optional:") else "bad"
        bad += word == "bad"
        print(f"{word:<4} {time.monotonic() - began:5.2f} s  {name}", flush=True)
        for line in complaints:
            print(f"               {line}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
