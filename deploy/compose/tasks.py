"""Tasks of the workers in the test cluster: `headgate nfp run demo hello -k who=me`."""

import os
import time

from broker.nfp.worker import Worker

worker = Worker("demo")


@worker.task
def hello(who="world"):
    """Greet somebody."""
    return f"hello {who}, from {os.uname().nodename}"


@worker.task
def add(left=1, right=1):
    """Add two numbers."""
    return left + right


@worker.task
def sleep(seconds=1.0):
    """Take a while."""
    time.sleep(seconds)
    return seconds
