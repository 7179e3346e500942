"""What web users may show, and who they are then: `[tokens]`, `[jwt]`, `[[oidc]]` and `[[users]]`.

Documented as in `schema`.
"""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from broker.secret import SecretPlace
from broker.settings.ranges import Text, Userid

RoleName = Literal["owner", "user", "admin"]
Algorithm = Literal["Ed25519", "EdDSA", "RS256", "ES256"]
ALGORITHMS: tuple[Algorithm, ...] = ("Ed25519", "EdDSA", "RS256", "ES256")


class TokenSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[tokens]`: bearer tokens made by `headgate token add`."""

    file: Text | None = None
    """The token file (hashes only). Default `STATEDIR/tokens.json`. Read again when it changes."""


class JwtSection(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[jwt]`: JSON Web Tokens of an identity provider."""

    keys: tuple[SecretPlace, ...] = ()
    """PEM files of public keys, or `https://` / `file://` addresses of JWKS documents. Default none: no JWT is
    accepted. All keys are tried that fit `kid` and algorithm, so a new one may stand beside the old one."""

    algorithms: tuple[Algorithm, ...] = ALGORITHMS
    """Algorithms that are accepted; `Ed25519` and `EdDSA` are two names of one. Never HS256 or none: a public key must
    not become a secret."""

    issuer: Text | None = None
    """What `iss` must be. Needed with `keys`."""

    audience: Text | None = None
    """What `aud` must hold. Needed with `keys`."""

    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 5.0
    """Difference of clocks that is forgiven. Default 5."""

    refresh_s: Annotated[float, Meta(ge=1, le=86400)] = 300.0
    """How often JWKS documents are read again. Default 300; an unknown `kid` reads at once, at most every 10 s."""

    user_claim: Text = "sub"
    """The claim that names the user, or a path to it: `a.b` is b in the object a. Default `sub`. It is looked up in
    `users`. `email` does not count where `email_verified` says that it was not verified."""

    trust_claims: bool = False
    """Take `userid` and `roles` from the token for users that `users` does not name. Default false: only users that
    are named here come in. Never taken are the userids that `userid_claim` of a provider may not say either, nor one
    that another user came with before, nor a name that begins as those of a provider do."""


class OidcGroup(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[oidc.groups]]`: the roles that a group of the provider gives."""

    group: Text
    """The group, as the provider writes it."""

    roles: Annotated[tuple[RoleName, ...], Meta(min_length=1)]
    """What it gives; `owner` and `admin` need `access.allow_owner` or `access.allow_admin`."""


class OidcEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[oidc]]`: an identity provider that people log in at with their browser (OpenID Connect)."""

    name: Annotated[str, Meta(pattern="^[a-z0-9][a-z0-9_-]{0,31}$")]
    """Its name in addresses, in names of users and in the log: small letters, digits, `-` and `_`."""

    title: Text | None = None
    """What the button says after "Log in with". Default: the name."""

    issuer: Text
    """`https://...` (http: on this machine only), as the provider writes itself in `iss`; its metadata are read below
    it, at `/.well-known/openid-configuration`."""

    client_id: Text
    """As whom the provider knows this gateway."""

    client_secret_file: Text | None = None
    """File (0600) with the secret that belongs to it, read at each login. Default none: a public client, which PKCE
    alone protects."""

    url: Text
    """How browsers reach this gateway, like `https://gate.example.org`. As redirect URI the provider has to know
    `URL/v1/login/oidc/NAME/callback`."""

    scopes: tuple[Text, ...] = ("profile",)
    """Scopes that are asked for besides `openid`. Default profile; some providers tell groups by a scope of its own."""

    user_claim: Text = "sub"
    """The claim that names the user. Default `sub`. `email` counts only with `email_verified`. It may be a path:
    `a.b` is b in the object a."""

    user_prefix: str | None = None
    """What stands before it in the user's name, so that providers cannot name each other's users, nor those of `users`.
    Default: the provider's name and a colon. "" trusts the provider to name any user; one alone may have
    it."""

    groups_claim: Text = "groups"
    """The claim that holds the groups. Default `groups`. It may be a path, like `realm_access.roles`."""

    groups: tuple[OidcGroup, ...] = ()
    """`[[oidc.groups]]`: what groups give. A user that `users` names is who it is there instead. Default none: no
    group gives a role."""

    roles: tuple[RoleName, ...] = ()
    """Roles of everybody whom the provider lets in. Default none: who is in no group of `groups` and not in `users`
    stays outside."""

    userid: Literal[65534] | None = None
    """65534, nobody: users that `users` does not name have no userid to themselves, and own nothing: no jobs, no
    services, no private events. Default: each has one of `access.own_userids`."""

    userid_claim: Text | None = None
    """The claim that holds their userid instead, a number. Default none: the provider chooses no userids. Never taken
    are 0, the gateway's own, 65534, those of `users` and of `access.own_userids`; one that another person came with
    before is not given twice."""

    algorithms: Annotated[tuple[Algorithm, ...], Meta(min_length=1)] = ALGORITHMS
    """Algorithms of its signatures that are accepted."""

    leeway_s: Annotated[float, Meta(ge=0, le=300)] = 5.0
    """Difference of clocks that is forgiven. Default 5."""

    @property
    def prefix(self) -> str:
        """What the names of its users begin with."""
        return f"{self.name}:" if self.user_prefix is None else self.user_prefix


class UserEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[[users]]`: a user of the web, and as whom its messages are stamped."""

    name: Text
    """The name credentials refer to."""

    userid: Userid
    """The userid its messages carry. Two with one userid share jobs and services, of which `headgate config check`
    warns, and without the role *owner* receive no private events; who has that of the gateway's own process, and not
    that role, is stamped as 65534, nobody, and owns nothing."""

    roles: Annotated[tuple[RoleName, ...], Meta(min_length=1)] = ("user",)
    """Its roles. Default user: the least that may speak. `owner` and `admin` need `access.allow_owner` or
    `access.allow_admin`; an admin is a user, too."""

    certificates: tuple[Text, ...] = ()
    """Client certificates that are this user: `CN=...` (or a whole RFC 4514 subject), `DNS:name`, `email:address`,
    `URI:...`, or `SHA256:fingerprint`. Default none."""
