"""The oslo wing: oslo.messaging's ZeroMQ driver, the proxy of each node, the directory between them (seed 003).

A message on its way, room by room::

    driver      what oslo.messaging loads for zmq://: its calls become bytes and addresses, its errors ours
    client      the application's side: one thread with all sockets, the choice of server, calls that wait, inboxes
    reactor     the loop that this thread and the proxy run on; sockets with bounded outboxes
    proxy       the node's side: four pipelines, each alone if need be; who may; which local server
    directory   who listens where: announced by pipelines, cached by everybody, shared by list or Redis
    service     the bridge to a Flux broker: requests by topic, notifications as events

Leaves, pure::

    names       pipelines, ports, files of a node's folder, reasons
    frames      the envelope, its kinds, the filters of publishing sockets
    bodies      JSON, or a compressed stream of it
    records     states and records of the directory, bodies of control messages
    contract    what the rooms ask of each other: Port, Intake, Item, Settings, failures
    node        what a proxy is told: NodeConfig

The driver alone imports oslo.messaging, and nobody here imports the rest of the broker, but for the bridge its client.
``README.md`` beside this file has a chart of each pipeline and the table of requirements.
"""
