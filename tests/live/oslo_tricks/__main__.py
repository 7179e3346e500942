"""Run the tricks, patched by eventlet when the words say so."""

import json
import sys
import time
import traceback

WORDS = json.loads(sys.argv[1])
if WORDS.get("green"):
    import eventlet

    eventlet.monkey_patch()

from eventlet import patcher  # noqa: E402

from tests.live.oslo_tricks import ends, notifications, rpc, stage  # noqa: E402


def run(function):
    began = time.monotonic()
    text = ""
    try:
        function()
    except Exception:
        text = traceback.format_exc()
    return {
        "trick": function.__name__,
        "ok": not text,
        "seconds": round(time.monotonic() - began, 2),
        "text": text,
    }


def main():
    stage.begin(WORDS["servers"], WORDS["clients"])
    assert bool(patcher.is_monkey_patched("thread")) is bool(WORDS.get("green"))
    for module in (rpc, ends, notifications):
        for function in module.TRICKS:
            if WORDS.get("only", "") in function.__name__:
                print(json.dumps(run(function)), flush=True)


main()
