"""The client verbs against a running tree of three, as a person calls them."""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest

from broker.cli import exits
from broker.cli.main import main
from broker.cli.sub import since_of
from broker.client import blocking
from tests.live.brokers import eventually
from tests.tables import for_each

HEADGATE = [sys.executable, "-m", "broker.cli.main"]


def lines(capsys: pytest.CaptureFixture) -> list[str]:
    return capsys.readouterr().out.splitlines()


def values(capsys: pytest.CaptureFixture) -> list:
    return [json.loads(line) for line in lines(capsys)]


# ---------------------------------------------------------------- ping


def test_ping(broker, capsys):
    assert main(["ping", "--count", "2", "--interval", "0", "2"]) == 0
    said = lines(capsys)
    assert re.fullmatch(r"2!broker\.ping seq=1 time=\d+\.\d{3} ms \([0-9a-f]{8}(![0-9a-f]{8})+\)", said[1])
    assert re.fullmatch(r"2 sent, 2 answered, min \S+ median \S+ max \S+ ms", said[2])


def test_ping_as_json(broker, capsys):
    assert main(["ping", "-c", "1", "--rank", "1", "attr", "--json", "--pad", "70000"]) == 0
    echo, counts = values(capsys)
    assert echo["rank"] == 1
    assert echo["seq"] == 0
    assert len(echo["route"]) >= 3
    assert counts["sent"] == counts["received"] == 1
    assert counts["min_ms"] == counts["median_ms"] == counts["max_ms"] == echo["time_ms"]


def test_ping_of_nobody(broker, capsys):
    assert main(["ping", "-c", "1", "nobody"]) == exits.FAILED
    assert capsys.readouterr().err.startswith(
        "headgate ping: nobody.ping: No service matching nobody.ping is registered"
    )


def test_ping_of_a_rank_that_is_not_there(broker, capsys):
    assert main(["ping", "-c", "1", "7"]) == exits.FAILED
    assert capsys.readouterr().err == (
        "headgate ping: broker.ping: that broker is away, or not of this instance: it has ranks 0 to 2"
        " (No route to host) [EHOSTUNREACH 113]\n"
    )


def test_ping_without_an_answer(broker, capsys):
    with (
        blocking.connect(broker) as handle,
        handle.service("mute", {"ping": lambda request: time.sleep(0.4)}),
    ):
        assert main(["ping", "-c", "1", "--timeout", "0.05", "mute"]) == exits.TIMEOUT
    said = lines(capsys)
    assert said == ["any!mute.ping seq=0 no answer within 0.05 s", "1 sent, 0 answered"]


# ---------------------------------------------------------------- rpc


def test_rpc(broker, capsys):
    assert main(["rpc", "attr.get", '{"name": "size"}']) == 0
    assert values(capsys) == [{"value": "3", "flags": 1}]


def test_rpc_at_a_rank_and_above(broker, capsys):
    main(["rpc", "--rank", "2", "attr.get", '{"name": "rank"}'])
    main(["rpc", "--uri", broker.replace("local-0", "local-1"), "--upstream", "attr.get", '{"name": "rank"}'])
    assert [value["value"] for value in values(capsys)] == ["2", "0"]


def test_rpc_error(broker, capsys):
    assert main(["rpc", "attr.get", '{"name": "nope"}']) == exits.FAILED
    assert capsys.readouterr().err == "headgate rpc: attr.get: No such file or directory [ENOENT 2]\n"


def test_errors_say_more_than_a_number(broker, capsys):
    assert main(["attr", "get", "nope"]) == exits.FAILED
    assert "attr.get: no attribute 'nope' (No such file" in capsys.readouterr().err
    assert main(["rpc", "attr.get"]) == exits.FAILED
    assert "the payload lacks a key" in capsys.readouterr().err
    assert main(["rpc", "attr.get", '{"name": "x",,}']) == exits.USAGE
    assert "line 1, column 14: " in capsys.readouterr().err


@for_each(
    ("words", "told"),
    [
        (
            ("rpc", "attr.get", '{"name": "nope"}'),
            {
                "error": "No such file or directory", "exit_code": 1, "errno": 2, "name": "ENOENT",
                "topic": "attr.get",
            },
        ),
        (("sub", "--count", "x"), {"exit_code": 2, "name": "EINVAL"}),
        (("rpc", "attr.get", "[1]"), {"exit_code": 2, "name": "EINVAL"}),
        (("ping", "--uri", "local:///nowhere/x"), {"exit_code": 3, "name": "ENOENT"}),
        (("config", "check", "/nowhere.toml"), {"exit_code": 78}),
    ],
    ids=["far side", "option", "payload", "no broker", "file"],
)  # fmt: skip
def test_errors_as_json(broker, capsys, words, told):
    assert main([*words, "--json"]) == told["exit_code"]
    said = json.loads(capsys.readouterr().err)
    assert told.items() <= said.items()
    assert said["error"]


def test_rpc_payload_from_stdin(broker, monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"name": "rank"}\n')))
    assert main(["rpc", "attr.get", "-"]) == 0
    assert values(capsys)[0]["value"] == "0"


def test_rpc_stream_ends_where_the_service_ends_it(broker, capsys):
    def count(request):
        yield from ({"n": n} for n in range(3))

    with blocking.connect(broker) as handle, handle.service("counter", {"run": count}):
        assert main(["rpc", "--stream", "counter.run"]) == 0
    assert values(capsys) == [{"n": 0}, {"n": 1}, {"n": 2}]


def test_rpc_raw_bytes_go_both_ways(broker, rundir, capfdbinary):
    data = bytes(range(256))
    (rundir / "data").write_bytes(data)
    with blocking.connect(broker) as handle, handle.service("echo", {"run": lambda request: request.payload}):
        assert main(["rpc", "--raw", "echo.run", f"@{rundir}/data"]) == 0
    assert capfdbinary.readouterr().out == data


def test_rpc_without_response(broker, capsys):
    called = threading.Event()
    with blocking.connect(broker) as handle, handle.service("bell", {"ring": lambda request: called.set()}):
        assert main(["rpc", "--no-response", "bell.ring"]) == 0
        assert called.wait(5)
    assert lines(capsys) == []


def test_rpc_that_takes_too_long(broker, capsys):
    with blocking.connect(broker) as handle, handle.service("slow", {"run": lambda request: time.sleep(0.4)}):
        assert main(["rpc", "--timeout", "0.05", "slow.run"]) == exits.TIMEOUT
    assert capsys.readouterr().err == "headgate rpc: slow.run: no response within 0.05 s\n"


# ---------------------------------------------------------------- pub, sub


@contextlib.contextmanager
def publishing(broker: str, publish: Callable[[blocking.Handle], None]) -> Iterator[None]:
    """Publish again and again, for a subscriber that leaves when it has what it waits for."""
    enough = threading.Event()

    def again() -> None:
        with blocking.connect(broker) as handle:
            while not enough.wait(0.01):
                publish(handle)

    thread = threading.Thread(target=again)
    thread.start()
    try:
        yield
    finally:
        enough.set()
        thread.join(10)


def subscribed(capsys: pytest.CaptureFixture, *words: str) -> list[str]:
    """What a `sub` prints that has come to its end."""
    assert main(["sub", "--timeout", "30", *words]) == 0
    return lines(capsys)


def test_pub_and_sub(broker, capsys):
    with publishing(broker, lambda handle: (handle.publish("t2.x", {"a": 1}), handle.publish("t1.y"))):
        said = subscribed(capsys, "--count", "2", "t1.", "t2", "t2.more")
    first, second = (line.split(" ") for line in said)
    assert int(second[0]) > int(first[0])  # a heartbeat may have a number between them
    assert {tuple(first[1:]), tuple(second[1:])} == {("t2.x", '{"a":1}'), ("t1.y",)}


def test_sub_as_json(broker, capsys):
    with publishing(broker, lambda handle: handle.publish("t3.x", {"a": 1}, private=True)):
        (said,) = subscribed(capsys, "--count", "1", "--json", "t3.")
    event = json.loads(said)
    assert (event["topic"], event["payload"], event["private"]) == ("t3.x", {"a": 1}, True)
    assert event["userid"] == os.getuid()
    assert event["seq"] > 0


def test_events_keep_their_order_over_several_prefixes(broker, capsys):
    def publish(handle):
        for number in range(20):
            for topic in ("o1", "o3", "o2"):
                handle.publish_nowait(topic, {"n": number})
        handle.rank()

    with publishing(broker, publish):
        said = subscribed(capsys, "--count", "40", "o1", "o2", "o3")
    numbers = [int(line.split(" ")[0]) for line in said]
    assert len(numbers) == 40
    assert numbers == sorted(numbers)


def test_pub_prints_the_number(broker, capsys):
    assert main(["pub", "t4.x", '{"a":1}']) == 0
    assert main(["pub", "--json", "--private", "t4.x"]) == 0
    first, second = lines(capsys)
    told = json.loads(second)
    assert told.pop("seq") > int(first)  # a heartbeat may have a number between them
    assert told == {"topic": "t4.x"}


def test_sub_that_hears_nothing(broker, capsys):
    assert main(["sub", "--timeout", "0.05", "never.ever"]) == exits.TIMEOUT
    assert capsys.readouterr().err == "headgate sub: event: nothing came within 0.05 s\n"


def test_sub_since_prints_those_of_before(broker, capsys):
    for topic in ("since.a", "since.b", "since.c"):
        assert main(["pub", topic]) == 0
    first = int(lines(capsys)[0])
    for word, wanted in ((str(first), ["since.b", "since.c"]), ("1h", ["since.a", "since.b", "since.c"])):
        assert main(["sub", "--since", word, "--count", str(len(wanted)), "since."]) == 0
        assert [line.split()[1] for line in lines(capsys)] == wanted


@for_each("word", ["x", "", "5 minutes", "-1", "12345678901", "4294967296", "epoch:", "1.5", "999999999w"])
def test_sub_since_says_what_it_expects(word, capsys):
    assert main(["sub", "--since", word]) == exits.USAGE
    assert "expected how long ago" in capsys.readouterr().err


def test_sub_since_takes_a_position():
    assert since_of("8f4c-2:17") == ("8f4c-2", 17)
    assert since_of("90s") == timedelta(seconds=90)
    assert since_of(None) is None


# ---------------------------------------------------------------- attr, log


def test_attr(broker, capsys):
    assert main(["attr", "get", "rank", "--rank", "2"]) == 0
    assert main(["attr", "get", "size", "--json"]) == 0
    assert lines(capsys) == ["2", '{"name":"size","value":"3"}']
    assert main(["attr", "list", "--json"]) == 0
    shown = {each["name"]: each for each in values(capsys)}
    assert shown["size"] == {"name": "size", "value": "3", "immutable": True}
    assert shown["local-uri"]["value"] == broker
    assert main(["attr", "list"]) == 0
    assert any(re.fullmatch(r"size +3", line) for line in lines(capsys))


def test_attr_set_and_rm(broker, capsys):
    assert main(["attr", "set", "rank", "7"]) == exits.FAILED
    assert main(["attr", "get", "nope"]) == exits.FAILED
    assert main(["attr", "rm", "rank"]) == exits.FAILED
    errors = capsys.readouterr().err.splitlines()
    assert [line.split(":")[1].strip() for line in errors] == ["attr.set", "attr.get", "attr.rm"]


def test_attr_alone_shows_its_commands(capsys):
    assert main(["attr"]) == exits.USAGE
    assert "list" in capsys.readouterr().out


def test_log(broker, capsys):
    assert main(["log", "--clear", "--rank", "0"]) == 0
    assert main(["log", "--append", "the pump is on", "--severity", "notice"]) == 0
    assert main(["log"]) == 0
    found = [line for line in lines(capsys) if line.endswith("the pump is on")]
    assert len(found) == 1
    assert re.match(r"\d{4}-\d\d-\d\dT[\d:.]+Z \S+\.notice\[0\]: ", found[0])
    main(["log", "--json"])
    assert values(capsys)[-1]["severity"] == "notice"


def test_log_follow_new(broker, capsys):
    with blocking.connect(broker) as handle:
        handle.log("info", "old")
        assert main(["log", "--follow", "--new", "--timeout", "0.05"]) == exits.TIMEOUT
    assert not any("old" in line for line in lines(capsys))


@for_each("words", [["--clear", "--append", "x"], ["--severity", "loud"], ["--clear", "--follow"]])
def test_log_words_that_make_no_sense(words, broker):
    assert main(["log", *words]) == exits.USAGE


# ---------------------------------------------------------------- status, stats


def test_status(broker, capsys):
    assert main(["status"]) == 0
    head, *tree = lines(capsys)
    assert re.match(r"run for .*: 3 brokers, kary:2 \(3 full\); headgate ", head)
    assert [line.split(" ")[0:2] for line in tree] == [["0", tree[0].split(" ")[1]], ["├─", "1"], ["└─", "2"]]
    assert main(["status", "--json"]) == 0
    seen = values(capsys)[0]
    assert (seen["state"], seen["size"], seen["tree"]["status"]) == ("run", 3, "full")
    assert [child["rank"] for child in seen["tree"]["children"]] == [1, 2]


def test_status_from_a_leaf(broker, capsys):
    assert main(["status", "--uri", broker.replace("local-0", "local-2")]) == 0
    assert len(lines(capsys)) == 4


@pytest.mark.patient
def test_status_names_who_does_not_answer(broker, capsys):
    """Before the tree has lost it; what is below it cannot be heard."""
    main(["attr", "get", "broker.pid", "--uri", broker.replace("local-0", "local-1")])
    pid = int(lines(capsys)[0])
    os.kill(pid, signal.SIGSTOP)
    try:
        assert main(["status", "--json"]) == 0
        frozen, other = values(capsys)[0]["tree"]["children"]
        assert (frozen["rank"], frozen["status"], frozen["error"]) == (1, "silent", "no answer within 2 s")
        assert other["status"] == "full"
        assert main(["stats", "--services"]) == 0
        assert lines(capsys)[-1] == "no answer within 2 s: rank 1"
    finally:
        os.kill(pid, signal.SIGCONT)


def test_stats(broker, capsys):
    assert main(["stats", "--rank", "1", "--json"]) == 0
    figures = values(capsys)[0]
    assert figures["rank"] == 1
    assert figures["figures"]["rx.request"] > 0
    assert main(["stats", "--all"]) == 0
    head, *rows = lines(capsys)
    assert head.split()[0] == "rank"
    assert [row.split()[0] for row in rows] == ["0", "1", "2"]
    assert main(["stats", "--service", "overlay"]) == 0
    assert any(line.startswith("child-count") for line in lines(capsys))
    assert main(["stats", "--all", "--rank", "1"]) == exits.USAGE


def test_stats_of_calls_by_method(broker, capsys):
    """Each once, where it entered, with what failed first; the broker's own services only where asked for."""
    for name in ("callstest.run", "callstest.run"):
        main(["rpc", name, "--uri", broker.replace("local-0", "local-2")])
    capsys.readouterr()
    assert main(["stats", "--services", "--json"]) == 0
    seen = values(capsys)[0]
    first = next(each for each in seen["methods"] if each["method"] == "callstest.run")
    assert (first["calls"], first["errors"], first["open"], seen["silent"]) == (2, {"ENOSYS": 2}, 0, [])
    assert (first["last_error"]["rank"], first["rank"]) == (2, None)
    assert main(["stats", "--services"]) == 0
    assert any("ENOSYS 2" in line and "at rank 2" in line for line in lines(capsys))
    assert not any(each["method"].startswith("attr.") for each in seen["methods"])
    assert main(["stats", "--services", "--builtin", "--rank", "2", "--json"]) == 0
    shown = {each["method"]: each for each in values(capsys)[0]["methods"]}
    assert shown["callstest.run"]["calls"] == 2
    assert main(["stats", "--services", "--builtin", "--json"]) == 0
    shown = {each["method"]: each for each in values(capsys)[0]["methods"]}
    assert 0 < shown["attr.get"]["p50_ns"] <= shown["attr.get"]["p99_ns"]
    assert main(["stats", "--services", "--users"]) == exits.USAGE
    assert main(["stats", "--builtin"]) == exits.USAGE


def test_watch_shows_rates_until_interrupted(broker):
    command = [*HEADGATE, "stats", "--watch", "--interval", "0.1", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    looks = [json.loads(process.stdout.readline()) for _ in range(3)]
    process.send_signal(2)
    assert process.wait(10) == exits.INTERRUPTED
    assert process.communicate()[1] == ""
    assert "per_second" not in looks[0]
    assert looks[2]["per_second"]["rx.request"] > 0


# ---------------------------------------------------------------- which broker


def test_uri_goes_before_the_environment(broker, monkeypatch, capsys):
    monkeypatch.setenv("HEADGATE_URI", "local:///nowhere")
    assert main(["attr", "get", "rank", "--uri", broker]) == 0
    monkeypatch.delenv("HEADGATE_URI")
    monkeypatch.setenv("FLUX_URI", broker)
    assert main(["attr", "get", "rank"]) == 0
    assert lines(capsys) == ["0", "0"]


def test_the_socket_of_this_user_is_the_default(broker, monkeypatch, capsys):
    monkeypatch.delenv("HEADGATE_URI")
    monkeypatch.delenv("FLUX_URI", raising=False)
    monkeypatch.setenv("RUNTIME_DIRECTORY", os.path.dirname(broker.removeprefix("local://")))
    assert main(["attr", "get", "rank"]) == 0
    assert lines(capsys) == ["0"]


def test_no_broker(monkeypatch, capsys):
    monkeypatch.setenv("FLUX_LOCAL_CONNECTOR_RETRY_COUNT", "0")
    assert main(["ping", "--uri", "local:///nowhere/local-0"]) == exits.NO_CONNECTION
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "headgate doctor" in error


def test_no_address(capsys):
    assert main(["ping", "--uri", "nowhere"]) == exits.USAGE
    assert "local:///run/headgate/local-0" in capsys.readouterr().err


def test_half_a_key_is_a_configuration_error(monkeypatch, capsys):
    monkeypatch.setenv("HEADGATE_CERT", "/nowhere")
    assert main(["ping", "--uri", "tcp://127.0.0.1:1"]) == exits.CONFIG
    assert "HEADGATE_SERVER_KEY" in capsys.readouterr().err


# ---------------------------------------------------------------- services


def shown_services(capsys) -> dict[str, list[int]]:
    assert main(["services", "--json"]) == 0
    return {each["service"]: each["ranks"] for each in values(capsys)}


def test_services_of_clients_anywhere_and_who_provides_them(broker, capsys):
    with blocking.connect(broker.replace("local-0", "local-1")) as h:
        with h.service("calctest", {"add": lambda _request: {}}):
            eventually(lambda: shown_services(capsys).get("calctest"), [1])
            assert main(["services", "--json"]) == 0
            (mine,) = [each for each in values(capsys) if each["service"] == "calctest"]
            assert mine["providers"]["1"]
            assert main(["services"]) == 0
            head, *rows = lines(capsys)
            assert head.split() == ["service", "ranks", "providers"]
            assert any(row.split()[:2] == ["calctest", "1"] for row in rows)
            assert main(["rpc", "calctest.add"]) == exits.FAILED
            assert "registered here: calctest is on rank 1 (" in capsys.readouterr().err
            with blocking.connect(broker) as elsewhere:
                assert elsewhere.rpc("calctest.add", anywhere=True).json() == {}
                with elsewhere.stream("calctest.add", anywhere=True) as answers:
                    assert [answer.json() for answer in answers] == [{}]
            assert main(["rpc", "--anywhere", "calctest.add"]) == 0
            assert lines(capsys) == ["{}"]
            assert main(["rpc", "--anywhere", "--rank", "1", "calctest.add"]) == exits.USAGE
        eventually(lambda: "calctest" in shown_services(capsys), False)
