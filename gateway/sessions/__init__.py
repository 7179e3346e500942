"""What a web client is to the gateway, and everything it may do here.

``session``        the corridor of one client: what it sends, stamped and forwarded; what it is sent
``sessions``       all of one process: who is connected, how many may be, how they leave
``counters``       what they have done, in numbers
``delivery``       what is carried between them and the upstream
``decisions``      one kind of request or event: where it goes, and the header it leaves with
``requests``       requests that are answered here: ``event.*``, ``service.*``, ``gateway.*``
``answers``        what the gateway itself says: responses it makes, refusals
``calls``          a session's open calls, and whom to tell when it ends
``any_rank_retry`` requests to any rank whose service is at another one
``provider``       requests a session was delivered as a service, and what it may answer
``registrations``  which session serves which name, as the upstream knows it
``authorization``  what the authorisation hook is asked, in front of a session and behind it
``resume``         a client that comes back: what it missed, then live; and the turns of all who do
``deadlines``      credentials that expire, subscriptions and resumptions that wait
``pressure``       which sessions are not read because the upstream takes no more
``event_traces``   each event at each subscriber, for owners who look on
"""
