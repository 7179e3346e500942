"""The oslo wing: oslo.messaging's ZeroMQ driver, the proxy of each node, the directory between them.

It is OpenStack's blueprint ``zmq-patterns-usage`` (*New ZeroMQ driver implementation details*); the files
here quote its sections by name.

A message on its way, room by room::

    driver      what oslo.messaging loads for zmq://: its calls become bytes and addresses, its errors ours
    client      the application's side: one thread with all sockets, the choice of server, calls that wait, inboxes
    reactor     the loop that this thread and the proxy run on; sockets with bounded outboxes
    proxy       the node's side: four pipelines, each alone if need be; who may; which local server
    directory   who listens where: announced by pipelines, cached by everybody, shared by list or Redis
    service     the bridge to a Flux broker: requests by topic, notifications as events

A call on its way, from ``RPCClient.call`` to the endpoint and back, in ten files; what runs where is in brackets::

    [the caller's thread]
    driver.driver.ZmqDriver.send                  target and options become an address, context and message a body
    client.session.ClientSession.call             hands a PendingCall over to the thread of the sockets, and waits
    [the thread of the sockets]
    client.calls.CallSender.start                 keeps it until it is answered or its time is over
    client.calls.CallSender.place                 who listens there, whose turn it is (``routing``)
    client.links.NodeLink.submit                  sends it to the node's proxy (DEALER), or lets it wait
    [the proxy of the server's node]
    proxy.call.CallProxy.on_client_message        who sends (``frontend``, ROUTER), may they, which server, has it
                                                  credit; remembers whom to answer; to the process of that server
                                                  (``registration``, ROUTER)
    [the server's thread of the sockets]
    client.proxy_links.ControlLink.on_proxy_message  what comes from the proxy (DEALER)
    client.listeners.Listeners.on_message         whose inbox; whether it has had the call before
    client.inbox.ClientInbox.put                  waits there until a thread of the server takes it; credit then
    [the server's threads]
    driver.listener.Workers                       a thread of the server's executor takes it and runs the endpoint
    driver.listener.ZmqIncoming.reply             the result, or the exception, becomes a body
    [the server's thread of the sockets]
    client.listeners.ReplyCache.send              to the proxy; kept for a while, should it be asked for again
    [the proxy]
    proxy.call.CallProxy.on_server_reply          was this call given to this server? to the client's connection
    [the client's thread of the sockets]
    client.calls.CallSender.on_message            ends the PendingCall, which wakes the caller
    [the caller's thread]
    driver.serialization.read_reply               the result, or the remote exception, raised again

Back-pressure has two ways. A listener is given nothing beyond its **credit** (``client.inbox`` counts it there,
``proxy.listeners`` at the proxy): calls beyond it are refused at once and their clients choose again, casts and
notifications wait in its queue. Senders are **not read** while such a queue is nearly full and moves:
what they send waits in their own links, and then whoever sends.

Leaves, pure::

    names       pipelines, ports, files of a node's folder, reasons
    frames      the envelope, its kinds, the filters of publishing sockets
    bodies      JSON, or a compressed stream of it
    records     states and records of the directory, bodies of control messages
    contract    what the rooms tell each other: Address, Settings, failures
    node        what a proxy is told: NodeConfig; the folder of its sockets, and who connects to them

The driver alone imports oslo.messaging, and nobody here imports the rest of the broker, but for the bridge its client.
``README.md`` beside this file has a chart of each pipeline and the table of requirements.
"""
