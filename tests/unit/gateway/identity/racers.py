"""Processes that race for the same thing; each opens the store itself, as workers do."""

import asyncio
import multiprocessing
import os
import signal
import time

from gateway.fleet import siblings
from gateway.fleet.peers import Peers
from gateway.fleet.siblings import Siblings
from gateway.identity.login import Logins
from gateway.identity.proxies import Client
from gateway.identity.store import Store
from gateway.principal import Denied
from gateway.settings.schema import AccessSection

HERE = Client("127.0.0.1", "127.0.0.1", "http", local=True, loopback_listener=True)


def redeem(statedir, secrets, start, results):
    store = Store(statedir)
    logins = Logins(store, AccessSection(login_links="owner"))
    start.wait(30)
    won = 0
    for secret in secrets:
        while True:
            try:
                logins.redeem(secret, HERE)
                won += 1
            except Denied as denied:
                if denied.status == 503:  # the store is busy: as told, again
                    time.sleep(0.01)
                    continue
            break
    results.put(won)
    store.close()


def acquire(folder, tries, limit, start, results):
    siblings.TURN_S = 10.0  # a machine that stops who has the turn for longer than 20 ms is another test's

    async def work():
        peers = Peers()
        await Siblings(folder, peers).start()
        await asyncio.to_thread(start.wait, 30)
        return sum(peers.acquire("alice", limit) for _ in range(tries))

    results.put(asyncio.run(work()))
    results.close()
    results.join_thread()  # what was put is on its way before we die
    os.kill(os.getpid(), signal.SIGKILL)  # a worker that gives nothing back


def key(statedir, start, results):
    start.wait(30)
    store = Store(statedir)
    results.put(store.key("resume"))
    store.close()


def race(work, racers, *arguments):
    """Run `work(*arguments, start, results)` in several processes at once; returns what each of them put."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["__main__", __name__])  # imported once, not by each of them
    start, results = context.Barrier(racers), context.Queue()
    processes = [context.Process(target=work, args=(*arguments, start, results)) for _ in range(racers)]
    for process in processes:
        process.start()
    try:
        return [results.get(timeout=45) for _ in processes]
    finally:
        for process in processes:
            process.join(10)
            process.kill()
            process.join(10)
            process.close()
        results.close()
        results.join_thread()
