"""What ``deploy/broker.toml`` has beside the schema (``headgate config sample broker``): its head, and examples.

An example stands for a field whose default is none, is made on the spot, or says little.
"""

from typing import Any, Final

HEAD: Final = """\
Headgate broker: every setting, with its default. As it stands this file starts a tree of one broker.

  headgate config check broker.toml     says what is wrong, with the line
  headgate broker --config broker.toml  starts this machine's broker

A line that begins with "#name =" is a setting at its default, or an example where it says so; remove the "#" to change
it, and that of the section above it. A section in double brackets may stand there again, for a further one. All hosts
of a tree may share one file. Unknown keys are errors."""

_KEY: Final = "JTKVSB%%)wK0E.X)V>+}o?pNmC{O&4W4b!Ni{Lh6"

EXAMPLES: Final[dict[str, Any]] = {
    "broker.rank": 0,
    "broker.rundir": "/run/headgate",
    "broker.local_uri": "local:///run/headgate/local-0",
    "broker.attrs": {"site": "north hall"},
    "broker.metrics_listen": "http://127.0.0.1:9464",
    "tree.size": 1,
    "tree.curve_cert": "broker.cert",
    "hosts.rank": 0,
    "hosts.address": "tcp://node0:8050",
    "hosts.bind": "tcp://*:8050",
    "hosts.public_key": "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID",
    "hosts.next_key": "wgbH->-%fVuSct981*N+6en13UaQmEXPzNzoVHsH",
    "hosts.parent": 0,
    "hosts.hostname": "node0",
    "listen.uri": "tcp://127.0.0.1:8051",
    "clients.public_key": _KEY,
    "clients.userid": 1000,
    "clients.name": "dashboard",
    "limits.connections_per_user": 16384,
    "limits.reserved_descriptors": 4096,
    "journal.directory": "/var/lib/headgate/journal",
    "journal.keep_bytes": 16 * 2**30,
    "journal.ship_to": "s3://bucket/journals",
    "nfp.worker_endpoint": "tcp://127.0.0.1:5556",
    "nfp.base_dir": "/var/lib/headgate/nfp",
    "nfp.key_secret": "/etc/headgate/nfp.key_secret",
    "nfp.inventory": "inventory.yaml",
    "nfp.files": "/srv/nfp",
    "nfp.keys.key": _KEY,
    "nfp.keys.name": "lab-worker",
    "nfp.keys.userid": 1000,
    "nfp.keys.services": ["lab-*"],
    "nfp.tasks.idempotent": False,
    "oslo.node": "compute-7",
    "oslo.advertise": "compute-7.example",
    "oslo.ipc_dir": "/run/headgate-oslo",
    "oslo.ipc_group": "openstack",
    "oslo.directories": ["tcp://controller-1:9500", "tcp://controller-2:9500"],
    "oslo.directory_key": "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7",
    "oslo.redis": ["redis://controller-1:6379/0"],
    "oslo.redis_password_file": "redis.password",
    "oslo.curve_cert": "oslo.cert",
    "oslo.unlisted": "user",
    "oslo.metrics_listen": "http://127.0.0.1:9466",
    "oslo.keys.key": _KEY,
    "oslo.keys.name": "compute-8",
    "oslo.keys.userid": 164,
    "oslo.backlog.path": "oslo-backlog.db",
}
"""Section and field -> its example."""
