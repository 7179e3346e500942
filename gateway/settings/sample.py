"""What ``deploy/gateway.toml`` has beside the schema (``headgate config sample gateway``): its head, and examples.

As ``broker.settings.sample``.
"""

from typing import Any, Final

HEAD: Final = """\
Headgate gateway: every setting, with its default. As it stands this file serves http://127.0.0.1:8280 in front of the
broker of this user.

  headgate config check gateway.toml            says what is wrong, with the line
  headgate gateway --config gateway.toml        serves web clients; prints the URLs
  headgate token add NAME --config gateway.toml makes a bearer token for a user of [[users]]

A line that begins with "#name =" is a setting at its default, or an example where it says so; remove the "#" to change
it, and that of the section above it. A section in double brackets may stand there again, for a further one. Unknown
keys are errors. Files are taken from this directory.
SIGHUP and the method gateway.reload read [[users]], [[rules]], access.allow_owner and allow_admin, certificates, tokens
and keys again, and ask again what open sessions may; the rest is read at start."""

EXAMPLES: Final[dict[str, Any]] = {
    "gateway.upstream": "local:///run/headgate/local-0",
    "gateway.upstream_cert": "gateway.cert",
    "gateway.upstream_key": "rank-0.pub",
    "gateway.statedir": "/var/lib/headgate",
    "gateway.redis": "redis://127.0.0.1:6379/0",
    "gateway.redis_password_file": "/etc/headgate/redis.password",
    "gateway.metrics_listen": "http://127.0.0.1:9465",
    "listen.url": "https://gate.example.org:443",
    "listen.cert": "gate.pem",
    "listen.key": "gate.key",
    "listen.client_ca": "clients.pem",
    "listen.client_cert": "optional",
    "listen.trusted_proxies": ["10.0.0.0/8"],
    "tokens.file": "tokens.json",
    "jwt.keys": ["https://id.example.org/jwks.json"],
    "jwt.issuer": "https://id.example.org/",
    "jwt.audience": "headgate",
    "oidc.name": "corp",
    "oidc.title": "Example Corp",
    "oidc.issuer": "https://id.example.org",
    "oidc.client_id": "headgate",
    "oidc.client_secret_file": "corp.secret",
    "oidc.url": "https://gate.example.org",
    "oidc.user_prefix": "corp:",
    "oidc.userid": 65534,
    "oidc.userid_claim": "uidNumber",
    "oidc.groups.group": "operators",
    "oidc.groups.roles": ["user"],
    "users.name": "ada",
    "users.userid": 1001,
    "users.certificates": ["CN=ada"],
    "access.hook_url": "http://127.0.0.1:9000/allow",
    "access.client_crls": ["clients.crl"],
    "access.allowed_origins": ["https://grafana.example.org", "tauri://localhost"],
    "rules.roles": ["user"],
    "rules.kinds": ["call", "subscribe"],
    "rules.prefixes": ["job-info.", "heartbeat."],
    "rules.preset": "viewer",
    "history.warehouse": "/var/lib/headgate/warehouse",
}
