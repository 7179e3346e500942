import dataclasses

import pytest

from broker.errors import ConfigError
from gateway.cluster.shape import SIZE_MAX, Shape
from tests.tables import for_each


def test_every_rank_but_the_first_is_a_child_of_its_parent():
    for size in (1, 2, 3, 7, 20):
        for fanout in (1, 2, 3, 32):
            shape = Shape("t", size, fanout)
            assert shape.parent(0) is None
            children = [child for rank in shape.ranks() for child in shape.children(rank)]
            assert sorted(children) == list(range(1, size))
            assert all(
                shape.parent(child) == rank for rank in shape.ranks() for child in shape.children(rank)
            )


def test_hosts_have_names_of_the_pattern():
    shape = Shape("t", 3, host_pattern="hg-{rank}.tree.default.svc")
    assert [shape.host(rank) for rank in shape.ranks()] == [f"hg-{r}.tree.default.svc" for r in range(3)]
    assert shape.topology == "kary:2"


@for_each("rank", [-1, 3, 4000])
def test_other_ranks_are_refused_by_everything(rank):
    shape = Shape("t", 3)
    for ask in (shape.host, shape.parent, shape.children, shape.check):
        with pytest.raises(ConfigError, match="expected 0 to 2"):
            ask(rank)


@for_each(
    ("field", "value"),
    [
        *(("name", name) for name in ("", "A", "a_b", "-a", "a-", "a" * 33, "../x", "a b")),
        *(("size", size) for size in (0, -1, SIZE_MAX + 1)),
        *(("fanout", fanout) for fanout in (0, -2)),
        *(("port", port) for port in (0, 65536, 8051)),
        *(("client_port", port) for port in (-1, 65536, 8050)),
        *(("image", image) for image in ("", "--privileged", "a b", "a\nb", "a}", "$a", 'a"')),
        *(
            ("host_pattern", pattern)
            for pattern in (
                "broker",
                "{host}-{rank}",
                "{rank",
                "b..{rank}",
                "-{rank}",
                "a b{rank}",
                "",
                "b.{rank}.x",
            )
        ),
        ("host_pattern", "{rank}" + 250 * "a"),
    ],
)
def test_what_no_cluster_can_be_is_refused(field, value):
    with pytest.raises(ConfigError, match=field):
        dataclasses.replace(Shape("t", 3), **{field: value})


def test_one_host_needs_no_rank_in_its_name():
    assert Shape("t", 1, host_pattern="gate").host(0) == "gate"
