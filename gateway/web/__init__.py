"""The gateway over HTTP: what a request may ask, who it is from, and every route in one table.

``routes``      every route with its parameters and answers; the application and ``/openapi.json`` come from it
``asyncapi``    ``/asyncapi.json``: the messages of the WebSocket and of streams of events
``app``         the routes as an aiohttp application: credentials, errors, security headers, CORS
``app_context`` what handlers need of the gateway behind them
``listener``    one place where clients connect: socket, TLS handshakes and PROXY headers under way, out of descriptors
``admission``   how many connections there may be, and which of them ends for a newer one
``connections`` aiohttp's side of one: how long a request head may take, what is answered to what is no HTTP
``requests``    topic, parameters and payload of a request
``answers``     what stands on every answer, payloads, problem bodies, and which error number is which status
``rpc``         calls and their link: ``POST /v1/rpc/{topic}``, one answer or NDJSON; ``POST /v1/events/{topic}``
``sse``         ``GET /v1/events``: server-sent events that resume
``login``       one-time link or token to cookie, to an identity provider and back, logout, who am I
``history``     ``GET /v1/history`` and its questions
``health``      ``/livez``, ``/readyz``
``metrics``     ``/metrics``: what this process has counted, added up with the others', written for Prometheus
``worker_counts`` the counts of all worker processes
``static``      the dashboard's files
"""
