"""Who is a web client, and from where may it come.

``authenticate``  the one door: a request or a token -> a `Principal` or a refusal; which credentials count no more
``tokens``        bearer tokens: a file of hashes
``jwt``           JSON Web Tokens of an identity provider; what claims say of a user, a provider's, too
``keys``          the public keys for them: PEM files, JWKS documents, rotation
``fetching``      what providers answer over HTTP, bounded
``certificates``  client certificates: the names that one proves, those that their authority has taken back
``login``         logins: by one-time links, by a token, at a provider; their cookies
``oidc``          OpenID Connect: to a provider and back
``provider``      one provider: metadata, keys, the exchange of codes
``users``         name -> userid and roles; a userid of its own for each person of a provider

``hook``          the authorisation hook: who may do what, asked over HTTP

``origin``        from which pages browsers may come
``proxies``       who is behind a trusted proxy: X-Forwarded-For
``proxyheader``   the PROXY protocol, versions 1 and 2                      (pure)

``store``         the SQLite file that worker processes share: keys, revocations
"""
