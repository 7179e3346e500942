"""Client certificates that their authority has taken back: lists in files, which are read again."""

import base64
import datetime as dt
import threading

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization

from broker.errors import ConfigError
from gateway.identity import certificates
from gateway.identity.certificates import RevocationLists, read
from gateway.principal import Denied
from gateway.settings.schema import AccessSection
from tests.tables import for_each
from tests.unit.gateway.identity.authority import DAY, Authority, common
from tests.unit.gateway.identity.doorway import ask, client_tls

NOW = dt.datetime.now(dt.UTC).replace(microsecond=0)


def list_of(authority, *certificates, until=DAY, extension=None):
    """A list of an authority, PEM."""
    builder = x509.CertificateRevocationListBuilder().issuer_name(authority.subject)
    builder = builder.last_update(NOW - 2 * DAY).next_update(NOW + until)
    for each in certificates:
        made = x509.RevokedCertificateBuilder().serial_number(each.serial_number).revocation_date(NOW - DAY)
        builder = builder.add_revoked_certificate(made.build())
    if extension is not None:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(authority.key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def place(**more):
    """What a list says that is a part of all."""
    said = {
        "full_name": None, "relative_name": None, "only_contains_user_certs": False, "only_contains_ca_certs": False,
        "only_some_reasons": None, "indirect_crl": False, "only_contains_attribute_certs": False,
    }  # fmt: skip
    return x509.IssuingDistributionPoint(**{**said, **more})


def uri(path):
    return x509.UniformResourceIdentifier(f"http://one.example/{path}.crl")


def of_a_later_version(authority):
    """A list of a version that does not exist: its number comes first of all."""
    crl = x509.load_pem_x509_crl(list_of(authority))
    encoded = crl.public_bytes(serialization.Encoding.DER).replace(b"\x02\x01\x01", b"\x02\x01\x05", 1)
    body = base64.encodebytes(encoded)
    return b"-----BEGIN X509 CRL-----\n" + body + b"-----END X509 CRL-----\n"


class Desk:
    """Two authorities, certificates of both, and the file of their lists."""

    def __init__(self, folder):
        self.file = folder / "lists.pem"
        self.authorities = [Authority("One"), Authority("Two")]
        (folder / "ca.pem").write_bytes(
            b"".join(each.certificate.public_bytes(serialization.Encoding.PEM) for each in self.authorities)
        )
        self.lists = RevocationLists([str(self.file)], [str(folder / "ca.pem")])
        self.alice, self.bob, self.other = (
            authority.leaf(common(name))[1]
            for authority, name in zip(
                (*self.authorities[:1] * 2, self.authorities[1]), ("alice", "bob", "other"), strict=True
            )
        )

    def write(self, *texts):
        self.file.write_bytes(b"\n".join(texts))
        self.lists.refresh()

    def check(self, certificate, now=NOW):
        """None, or the status of the refusal."""
        try:
            self.lists.check(self.shown(certificate), now.timestamp())
        except Denied as denied:
            return denied.status
        return None

    def shown(self, certificate):
        return read(certificate.public_bytes(serialization.Encoding.DER))


@pytest.fixture
def desk(tmp_path):
    return Desk(tmp_path)


def test_who_is_on_a_list_is_refused(desk):
    one, two = desk.authorities
    desk.write(list_of(one, desk.alice), list_of(two))
    assert desk.lists.problem == ""
    assert [desk.check(each) for each in (desk.alice, desk.bob, desk.other)] == [401, None, None]


def test_a_number_of_another_authority_is_another_certificate(desk):
    one, two = desk.authorities
    desk.write(list_of(one), list_of(two, desk.alice))
    assert desk.check(desk.alice) is None


def test_without_files_nobody_is_asked_for(desk):
    lists = RevocationLists([], [])
    lists.refresh()
    lists.check(desk.shown(desk.alice), NOW.timestamp())
    assert not lists.revoked(desk.shown(desk.alice).fingerprint)


def test_an_issuer_without_a_list_is_refused(desk):
    desk.write(list_of(desk.authorities[0]))
    assert [desk.check(each) for each in (desk.alice, desk.other)] == [None, 401]


def test_an_overdue_list_lets_nobody_in(desk):
    desk.write(list_of(desk.authorities[0]))
    later = NOW + DAY + dt.timedelta(seconds=1)
    assert [desk.check(desk.alice), desk.check(desk.alice, later)] == [None, 503]
    assert not desk.lists.revoked(desk.shown(desk.alice).fingerprint)


def test_what_came_in_before_is_revoked_once_a_new_list_says_so(desk):
    one = desk.authorities[0]
    desk.write(list_of(one))
    assert desk.check(desk.alice) is None
    before = desk.lists.generation
    desk.lists.refresh()
    assert desk.lists.generation == before
    desk.write(list_of(one, desk.alice))
    assert desk.lists.generation == before + 1
    assert desk.lists.revoked(desk.shown(desk.alice).fingerprint)
    assert not desk.lists.revoked("unknown")


@for_each(
    ("text", "problem"),
    [
        (lambda _desk: b"", "expected revocation lists"),
        (lambda _desk: b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "cannot be used"),
        (lambda _desk: list_of(Authority("One")), "signed by no authority of client_ca"),
        (lambda _desk: list_of(Authority("Nobody")), "signed by no authority of client_ca"),
        (lambda desk: list_of(desk.authorities[0], extension=x509.DeltaCRLIndicator(1)), "is a part"),
        *(
            (lambda desk, more=more: list_of(desk.authorities[0], extension=place(**more)), "is a part")
            for more in (
                {"only_contains_ca_certs": True},
                {"only_contains_attribute_certs": True},
                {"indirect_crl": True},
                {"only_some_reasons": frozenset({x509.ReasonFlags.key_compromise})},
                {"relative_name": common("a part").rdns[0]},
            )
        ),
        (
            lambda desk: list_of(
                desk.authorities[0],
                extension=x509.UnrecognizedExtension(x509.ObjectIdentifier("1.2.3.4"), b"\x05\x00"),
            ),
            "is a part",
        ),
        (lambda desk: of_a_later_version(desk.authorities[0]), "cannot be used"),
        (lambda _desk: b"x" * 2000, "more than 1000 bytes"),
    ],
)
def test_a_bad_file_leaves_what_was_read_before(desk, text, problem, monkeypatch):
    one = desk.authorities[0]
    desk.write(list_of(one, desk.alice))
    if "1000" in problem:
        monkeypatch.setattr(certificates, "FILE_BYTES", 1000)
    desk.write(text(desk))
    assert problem in desk.lists.problem
    assert [desk.check(each) for each in (desk.alice, desk.bob)] == [401, None]
    monkeypatch.undo()
    desk.write(list_of(one))
    assert (desk.lists.problem, desk.check(desk.alice)) == ("", None)


def test_of_several_lists_of_an_issuer_all_count_and_the_first_that_ends_ends_them(tmp_path):
    desk = Desk(tmp_path)
    one, files = desk.authorities[0], [tmp_path / "first.pem", tmp_path / "second.pem"]
    files[0].write_bytes(list_of(one, desk.alice))
    files[1].write_bytes(list_of(one, desk.bob, until=2 * DAY))
    for order in (files, files[::-1]):
        desk.lists = RevocationLists([str(each) for each in order], [str(tmp_path / "ca.pem")])
        desk.lists.refresh()
        assert [desk.check(each) for each in (desk.alice, desk.bob)] == [401, 401]
        carol = one.leaf(common("carol"))[1]
        assert [desk.check(carol), desk.check(carol, NOW + DAY)] == [None, 503]


def test_the_list_of_a_distribution_point_is_for_the_certificates_that_name_it(desk):
    """It counted as whole: who was on the list of another point came in."""
    one = desk.authorities[0]
    of_a, of_b, of_both, of_some = (
        one.leaf(common(name), points=points)[1]
        for name, points in (
            ("a", [(uri("a"),)]),
            ("b", [(uri("b"),)]),
            ("both", [(uri("c"), uri("a")), (uri("b"),)]),
            ("some", [(uri("a"), x509.ReasonFlags.key_compromise)]),
        )
    )
    part = list_of(one, extension=place(full_name=[uri("a"), uri("x")]))
    desk.write(part)
    assert desk.lists.problem == ""
    assert [desk.check(each) for each in (of_a, of_both)] == [None, None]
    assert [desk.check(each) for each in (of_b, of_some, desk.alice)] == [401, 401, 401]
    desk.write(part, list_of(one, of_both, extension=place(full_name=[uri("b")]), until=2 * DAY))
    assert [desk.check(each) for each in (of_a, of_b, of_both, desk.alice)] == [None, None, 401, 401]
    assert [desk.check(each, NOW + DAY) for each in (of_a, of_b)] == [503, None]
    desk.write(part, list_of(one))
    assert [desk.check(each) for each in (of_a, of_b, desk.alice)] == [None, None, None]


def test_a_list_of_users_says_nothing_of_who_may_sign_others(desk):
    one = desk.authorities[0]
    between = one.leaf(common("between"), ca=True)[1]
    desk.write(list_of(one, extension=place(only_contains_user_certs=True)))
    assert [desk.check(each) for each in (desk.alice, between)] == [None, 401]
    desk.write(list_of(one))
    assert [desk.check(each) for each in (desk.alice, between)] == [None, None]


def test_a_list_whose_authority_is_added_later_counts_then(desk, tmp_path):
    third = Authority("Three")
    desk.write(list_of(third))
    assert "signed by no authority" in desk.lists.problem
    with (tmp_path / "ca.pem").open("ab") as file:
        file.write(third.certificate.public_bytes(serialization.Encoding.PEM))
    desk.lists.refresh()
    assert (desk.lists.problem, desk.check(third.leaf(common("carol"))[1])) == ("", None)


def test_a_file_that_goes_is_a_problem_and_no_pardon(desk):
    desk.write(list_of(desk.authorities[0], desk.alice))
    desk.file.unlink()
    desk.lists.refresh()
    assert "No such file" in desk.lists.problem
    assert desk.check(desk.alice) == 401


def test_certificates_that_are_remembered_are_bounded(desk, monkeypatch):
    monkeypatch.setattr(certificates, "SHOWN", 1)
    desk.write(list_of(desk.authorities[0]))
    assert [desk.check(each) for each in (desk.alice, desk.bob)] == [None, None]
    assert list(desk.lists._shown) == [desk.shown(desk.bob).fingerprint]


# ---------------------------------------------------------------- at a listener


@pytest.fixture
def listed(mutual, tmp_path):
    """Settings of a listener with mutual TLS and a list; the authority and alice's certificate are of this test."""
    authority = Authority()
    authority.server(tmp_path / "server.pem")
    authority.save(tmp_path / "ca.pem")
    text, alice = authority.leaf(common("alice"))
    (tmp_path / "alice.pem").write_bytes(text)
    file = tmp_path / "clients.crl"
    file.write_bytes(list_of(authority))
    return mutual(access=AccessSection(client_crls=(str(file),))), authority, alice, file


async def test_a_revoked_certificate_is_refused_and_its_live_links_end(open_door, listed, tmp_path):
    settings, authority, alice, file = listed
    door = await open_door(settings)
    tls = client_tls(tmp_path / "ca.pem", tmp_path / "alice.pem")
    assert (await ask(door.port, tls=tls)).json()["name"] == "alice"
    shown = read(alice.public_bytes(serialization.Encoding.DER))
    mine = door.identity.users.principal(
        "alice", kind="tls", credential=f"tls:{shown.fingerprint}", expires=shown.expires
    )
    assert not door.identity.revoked(mine)
    door.identity.poll()
    file.write_bytes(list_of(authority, alice))
    assert await door.identity.reload() == []
    assert door.identity.poll(), "sessions are asked about"
    assert door.identity.revoked(mine)
    assert (await ask(door.port, tls=tls)).status == 401
    assert "was revoked by its authority" in door.denied[-1]


async def test_a_list_is_never_read_in_the_loop(open_door, listed, monkeypatch, tmp_path):
    """One of some 400 000 certificates takes more than a second."""
    readers = []
    read_one = certificates._add_lists
    monkeypatch.setattr(
        certificates,
        "_add_lists",
        lambda *each: (readers.append(threading.current_thread()), read_one(*each)),
    )
    settings, authority, alice, file = listed
    door = await open_door(settings)
    tls = client_tls(tmp_path / "ca.pem", tmp_path / "alice.pem")
    file.write_bytes(list_of(authority, alice))
    await ask(door.port, tls=tls)
    told = []
    await door.identity._watch(lambda: told.append(1))
    assert (await ask(door.port, tls=tls)).status == 401
    assert (told, len(readers)) == ([1], 2)
    assert threading.main_thread() not in readers


async def test_a_start_without_the_list_fails(open_door, listed):
    settings, _authority, _alice, file = listed
    file.unlink()
    with pytest.raises(ConfigError, match=r"clients.crl: No such file"):
        await open_door(settings)


async def test_a_reload_tells_of_a_bad_list(open_door, listed):
    settings, _authority, _alice, file = listed
    door = await open_door(settings)
    file.write_text("nonsense")
    assert "expected revocation lists" in (await door.identity.reload())[0]
