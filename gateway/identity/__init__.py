"""Who is a web client, and from where may it come.

``authenticate``  the one door: a request or a token -> a `Principal` or a refusal
``tokens``        bearer tokens: a file of hashes
``jwt``           JSON Web Tokens of an identity provider
``claims``        what a JWT or a provider says of a user, read alike       (pure)
``keys``          the public keys for them: PEM files, JWKS documents, rotation
``fetching``      what providers answer over HTTP, bounded
``certificates``  the names that a client certificate proves
``revocations``   which credentials count no more
``crl``           client certificates that their authority has taken back
``login``         one-time links, and the cookies of all logins
``cookies``       of logins, and of those that were begun
``shared``        logins that count at several gateways
``user_logins``   logins by a token or at a provider
``oidc``          OpenID Connect: to a provider and back
``provider``      one provider: metadata, keys, the exchange of codes
``users``         name -> userid and roles
``userids``       a userid of its own for each person of a provider

``hook``          the authorisation hook: who may do what, asked over HTTP

``origin``        from which pages browsers may come
``proxies``       who is behind a trusted proxy: X-Forwarded-For
``proxyheader``   the PROXY protocol, versions 1 and 2                      (pure)

``store``         the SQLite file that worker processes share: keys, revocations
``leases``        connections of each user over all workers
``attempts``      refused credentials by address: answers and log lines limited
"""
