"""What is in ``Dockerfile``, ``deploy/`` and releases, checked without a container engine, a cluster or root.

    __main__    ``python -m tests.deploy``: every check, one line each; exit 1 when one complains
    checks      the checkers of others: hadolint, compose-spec, kubernetes-validate, systemd-analyze
    compiled    whether a wheel is compiled as it should be
    commands    `headgate ...` as it stands in a unit, a manifest or a Dockerfile: would it parse?
    dockerfile  the instructions of a Dockerfile
    kubelet     what is done with a pod template, without a cluster
    machine     a machine of namespaces with the real systemd
    manifests   Kustomize's overlays, built with keys of their own
    units       systemd's unit files

The tests of ``tests/unit/deploy`` use the same parts to compare what stands in one file with what stands in another.
"""

from pathlib import Path

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
