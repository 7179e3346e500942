"""What is different between two configurations, and whether it may be in a running broker."""

from broker import settings
from broker.node.reload import differences, dotted, may_change, summary
from broker.transport import curve
from tests.tables import for_each

KEY, OTHER = curve.generate(), curve.generate()


BASE = f"""\
[tree]
curve_cert = "a.cert"
[[hosts]]
rank = 0
address = "tcp://127.0.0.1:1"
public_key = "{KEY.public_key}"
[[clients]]
public_key = "{OTHER.public_key}"
userid = 7
"""


@for_each(
    ("before", "after", "path", "may"),
    [
        ('"a.cert"', '"b.cert"', "tree.curve_cert", True),
        (KEY.public_key, curve.generate().public_key, "hosts[rank 0].public_key", True),
        (':1"', ':2"', "hosts[rank 0].address", False),
        ("userid = 7", "userid = 8", f"clients.{OTHER.public_key}", True),
        ("[tree]", "[access]\nallow_guest_user = true\n[tree]", "access.allow_guest_user", True),
        ("[tree]", '[broker]\nlog_level = "debug"\n[tree]', "broker.log_level", True),
        ("[tree]", '[broker]\nrundir = "/x"\n[tree]', "broker.rundir", False),
        ("[tree]", '[broker.attrs]\na = "b"\n[tree]', "broker.attrs.a", False),
        ("[tree]", "[limits]\nstall_s = 3.0\n[tree]", "limits.stall_s", True),
        ("[tree]", "[limits]\nroutes_max = 3\n[tree]", "limits.routes_max", False),
        ("[tree]", '[tree]\ntopology = "kary:3"', "tree.topology", False),
        ("[tree]", '[nfp]\nendpoint = "tcp://127.0.0.1:5555"\n[tree]', "nfp", False),
        ("[[clients]]", '[[listen]]\nuri = "tcp://127.0.0.1:9"\n[[clients]]', "listen", False),
    ],
    ids=range(13),  # keys are drawn anew in each worker of a run
)
def test_what_is_different_and_whether_it_may_be(before, after, path, may):
    (found,) = differences(settings.loads(BASE), settings.loads(BASE.replace(before, after)))
    assert (dotted(found), may_change(found)) == (path, may)


def test_the_order_of_entries_means_nothing():
    host = (
        f'[[hosts]]\nrank = 1\naddress = "tcp://127.0.0.1:2"\npublic_key = "{curve.generate().public_key}"\n'
    )
    parts = BASE.partition("[[hosts]]")
    assert not list(
        differences(settings.loads(BASE + host), settings.loads(parts[0] + host + parts[1] + parts[2]))
    )
    (found,) = differences(settings.loads(BASE), settings.loads(BASE + host))
    assert (dotted(found), may_change(found)) == ("hosts[rank 1]", False)


def test_the_summary_is_short():
    assert summary(
        [("clients", "a"), ("clients", "b"), ("hosts", "10", "public_key"), ("hosts", "2", "next_key")]
    ) == [
        "2 of [[clients]]",
        "keys of rank 2, 10",
    ]
    assert summary([("access", "private_mode"), ("limits", "stall_s")]) == ["[access]", "limits.stall_s"]
