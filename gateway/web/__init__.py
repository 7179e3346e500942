"""The gateway over HTTP: what a request may ask, who it is from, and every route in one table.

``routes``      every route with its parameters and answers; the application and ``/openapi.json`` come from it
``app``         the routes as an aiohttp application: credentials, errors, security headers, CORS
``app_context`` what handlers need of the gateway behind them
``listener``    one place where clients connect: socket, TLS, PROXY header
``acceptor``    accepts there: PROXY headers and TLS handshakes under way, out of descriptors
``admission``   how many connections there may be, and which of them ends for a newer one
``connections`` aiohttp's side of one: how long a request head may take, what is answered to what is no HTTP
``headers``     what stands on every answer
``rpc``         ``POST /v1/rpc/{topic}``, one answer or NDJSON
``publish``     ``POST /v1/events/{topic}``
``stream``      ``GET /v1/events``: server-sent events that resume
``sse``         their link and their text
``exchange``    HTTP calls as a Link: those of a connection are one session, a stream has its own
``bodies``      payloads as HTTP bodies and back
``errors``      problem bodies, and which error number is which status
``login``       one-time link or token to cookie, logout, who am I
``oidc``        to an identity provider and back
``history``     ``GET /v1/history`` and its questions
``health``      ``/livez``, ``/readyz``
``metrics``     ``/metrics``
``tally``       what this process has counted
``samples``     counts as plain data: added up, and written for Prometheus
``worker_peers`` the counts of all worker processes
``openapi``     ``/openapi.json``
``static``      the dashboard's files
"""
