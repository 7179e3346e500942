import errno

import pytest

from broker.errors import ProtocolError
from broker.wire.topic import (
    NOTICE_MAX_BYTES,
    SERVICE_MAX_BYTES,
    check_service,
    method_of,
    path_of,
    replace_last_word,
    service_of,
)
from tests.tables import for_each


@for_each(
    ("topic", "service", "method", "path"),
    [
        ("kvs.get", "kvs", "get", "kvs"),
        ("kvs.namespace.create", "kvs", "namespace.create", "kvs.namespace"),
        ("kvs", "kvs", "", "kvs"),
        ("", "", "", ""),
        (".", "", "", ""),
        (".get", "", "get", ""),
        ("kvs.", "kvs", "", "kvs"),
        ("a..b", "a", ".b", "a."),
        ("état.lire", "état", "lire", "état"),
    ],
)
def test_words_of_a_topic(topic: str, service: str, method: str, path: str) -> None:
    assert (service_of(topic), method_of(topic), path_of(topic)) == (service, method, path)
    data = topic.encode()
    assert (service_of(data), method_of(data), path_of(data)) == (
        service.encode(),
        method.encode(),
        path.encode(),
    )


@for_each(
    ("topic", "notice"),
    [
        ("kvs-watch.lookup", "kvs-watch.disconnect"),
        ("a.b.c", "a.b.disconnect"),
        ("echo", "echo.disconnect"),
        ("", ".disconnect"),
    ],
)
def test_topic_of_a_disconnect_notice(topic: str, notice: str) -> None:
    assert replace_last_word(topic, "disconnect") == notice
    assert replace_last_word(topic.encode(), b"disconnect") == notice.encode()


def test_bytes_that_are_not_utf8_have_words_too() -> None:
    assert service_of(b"\xff\xfe.get") == b"\xff\xfe"


@for_each("name", ["a", "job-manager", "1000-mine", "été", "x" * SERVICE_MAX_BYTES, " "])
def test_names_a_service_may_have(name: str) -> None:
    check_service(name)


@for_each(
    ("name", "why"),
    [
        ("", "is empty"),
        ("a.b", "period"),
        (".", "period"),
        ("a\0", "NUL"),
        ("\udcff", "UTF-8"),
        ("x" * (SERVICE_MAX_BYTES + 1), "245 bytes"),
        ("é" * 123, "246 bytes"),
    ],
)
def test_names_a_service_may_not_have(name: str, why: str) -> None:
    with pytest.raises(ProtocolError, match=why) as caught:
        check_service(name)
    assert caught.value.errno == errno.EINVAL


def test_the_longest_service_has_a_notice_that_deployed_brokers_can_build() -> None:
    assert len(replace_last_word("x" * SERVICE_MAX_BYTES + ".a", "disconnect")) == NOTICE_MAX_BYTES
