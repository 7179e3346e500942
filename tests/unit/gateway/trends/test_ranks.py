"""The brokers one by one: rates, what is silent, what has changed, and what is added up."""

from gateway.trends.ranks import CLIENTS_SHOWN, RANKS_MAX, ROWS_MAX, Ranks


def stats(pending=0, drops=None, peers=(), **rx):
    return {"pending": pending, "rx": rx, "tx": {}, "drops": drops or {}, "links": len(peers), "peers": peers}


def shape(rank, *children):
    return {"rank": rank, "size": 1, "children": list(children)}


def two():
    ranks = Ranks()
    ranks.place(shape(0, shape(1)))
    return ranks


def row(ranks, number, now=0.0):
    return next(each for each in ranks.answer(0, now, True)["ranks"] if each["rank"] == number)


def test_figures_are_the_difference_of_two_answers_over_all_brokers():
    ranks = two()
    ranks.take(0, stats(3, request=100), 1.0, 0.5)
    ranks.take(1, stats(2), 1.0, 0.7)
    assert ranks.figures() == {"ms:0": 0.5, "ms:1": 0.7}
    ranks.take(0, stats(1, {"queue full": 4}, request=120, event=10), 3.0, 0.5)
    ranks.take(1, stats(1, response=5), 1.5, 0.7)
    figures = ranks.figures()
    assert (figures["in:request"], figures["in:event"], figures["in:response"]) == (10.0, 5.0, 10.0)
    assert (figures["in"], figures["in:0"], figures["in:1"], figures["dropped"]) == (25.0, 15.0, 10.0, 2.0)
    total = ranks.answer(0, 3.0, True)["total"]
    assert (total["rx"]["request"], total["ms"], total["drops"]) == (10.0, 0.5, {"queue full": 4})
    assert row(ranks, 0)["pending"] == 1


def test_what_the_gateway_asks_is_no_traffic():
    ranks = Ranks()
    ranks.place(shape(0, shape(1, shape(3)), shape(2)))
    origin, counted = 3, dict.fromkeys(range(4), 0)
    on_the_way = {0: [3, 1, 0], 1: [3, 1], 2: [3, 1, 0, 2], 3: [3]}
    for at in (1.0, 3.0, 5.0):
        for asked, way in on_the_way.items():
            ranks.count_question(asked, origin)
            for rank in way:
                counted[rank] += 1
        for rank, ours in counted.items():
            users = {"rx": {"request": ours + 6 * int(at), "response": ours, "event": int(at)}}
            ranks.take(rank, stats() | users | {"tx": {"request": ours, "response": ours}}, at, 0.5)
    for rank in range(4):
        found = row(ranks, rank)
        assert found["rx"] == {"request": 6.0, "response": 0.0, "event": 1.0, "control": 0.0}
        assert not any(found["tx"].values())


def test_a_broker_that_comes_late_counts_with_the_others_until_it_is_silent():
    ranks = two()
    for at, count in ((1.0, 0), (2.0, 10)):
        ranks.take(0, stats(request=count), at, 0.5)
        ranks.take(1, stats(request=count), at, 0.5)
    ranks.take(0, stats(request=20), 3.0, 0.5)
    assert ranks.figures()["in"] == 20.0
    ranks.note_failure(1, "", answered=False)
    assert ranks.figures()["in"] == 10.0


def test_a_counter_that_was_cleared_counts_from_zero():
    ranks = two()
    ranks.take(0, stats(request=100), 1.0, 0.5)
    ranks.take(0, stats(request=7), 2.0, 0.5)
    assert row(ranks, 0)["rx"]["request"] == 7.0


def test_who_owes_an_answer_is_silent_after_two_seconds_and_has_no_rates():
    ranks = two()
    for at, count in ((1.0, 0), (2.0, 10)):
        ranks.take(1, stats(request=count), at, 0.5)
    ranks.note_asked(1, 3.0)
    assert row(ranks, 1, 4.9)["silent_s"] == 0
    ranks.note_failure(1, "", answered=False)
    ranks.note_asked(1, 5.0)
    told = row(ranks, 1, 7.0)
    assert (told["silent_s"], told["rx"], told["ms"]) == (4.0, None, None)
    ranks.take(1, stats(request=900), 9.0, 0.5)
    told = row(ranks, 1, 9.0)
    assert (told["silent_s"], told["rx"], told["ms"]) == (0, None, 0.5)


def test_one_that_cannot_be_reached_says_why_and_is_not_silent():
    ranks = two()
    ranks.note_asked(1, 1.0)
    ranks.note_failure(1, "no route", answered=True)
    told = row(ranks, 1, 60.0)
    assert (told["error"], told["silent_s"]) == ("no route", 0)


def test_what_changed_is_told_once():
    ranks = two()
    first = ranks.answer(0, 0.0, True)
    assert [(each["rank"], each["parent"]) for each in first["ranks"]] == [(0, None), (1, 0)]
    assert ranks.answer(first["next"], 0.0, True)["ranks"] == []
    ranks.take(1, stats(), 1.0, 0.5)
    later = ranks.answer(first["next"], 1.0, True)
    assert [each["rank"] for each in later["ranks"]] == [1]
    assert ranks.answer(later["next"], 1.0, True)["next"] == later["next"]


def test_a_large_tree_is_told_in_parts():
    ranks = Ranks()
    ranks.place(shape(0, *(shape(rank) for rank in range(1, ROWS_MAX + 10))))
    first = ranks.answer(0, 0.0, True)
    rest = ranks.answer(first["next"], 0.0, True)
    assert (len(first["ranks"]), len(rest["ranks"])) == (ROWS_MAX, 10)
    assert {each["rank"] for each in (*first["ranks"], *rest["ranks"])} == set(range(ROWS_MAX + 10))


def test_health_is_kept_with_its_time_and_who_is_lost_takes_those_below_along():
    ranks = Ranks()
    ranks.place(shape(0, shape(1, shape(3)), shape(2)))
    ranks.take_health({"rank": 0, "status": "degraded", "duration": 4.0}, 10.0)
    ranks.take_health({"rank": 1, "status": "lost", "duration": 3.0, "error": "keepalive"}, 10.0)
    ranks.take_health({"rank": 9, "status": "full"}, 10.0)
    said = {
        each["rank"]: (each["status"], each["since_s"], each["error"])
        for each in ranks.answer(0, 12.0, True)["ranks"]
    }
    assert said == {
        0: ("degraded", 6.0, ""), 1: ("lost", 5.0, "keepalive"), 2: ("unknown", None, ""), 3: ("lost", 5.0, ""),
    }  # fmt: skip
    number = ranks.answer(0, 12.0, True)["next"]
    ranks.take_health({"rank": 1, "status": "lost", "duration": 4.0, "error": "keepalive"}, 11.0)
    assert ranks.answer(number, 12.0, True)["ranks"] == [], "it is as it was"


def test_who_left_the_tree_is_forgotten():
    ranks = two()
    ranks.take(1, stats(), 1.0, 0.5)
    ranks.place(shape(0))
    assert set(ranks.ranks) == {0}
    ranks.clear()
    assert ranks.answer(0, 1.0, True)["ranks"] == []


def test_a_broker_of_another_make_tells_what_it_tells():
    ranks = two()
    for at, count in ((1.0, 1), (2.0, 3)):
        ranks.take(0, {"rx": {"request": count}, "tx": {}}, at, 0.5)
    told = row(ranks, 0)
    assert (told["rx"]["request"], told["pending"], told["drops"], told["kinds"]) == (2.0, None, None, {})
    total = ranks.answer(0, 2.0, True)["total"]
    assert total["drops"] is None


def test_brokers_without_charts_of_their_own_count_still():
    ranks = Ranks()
    for at, count in ((1.0, 0), (2.0, 3)):
        ranks.take(RANKS_MAX, stats(request=count), at, 0.5)
    figures = ranks.figures()
    assert figures["in"] == 3.0
    assert {f"in:{RANKS_MAX}", f"ms:{RANKS_MAX}"} & set(figures) == set()


def test_clients_are_counted_by_kind_and_named_up_to_a_bound():
    ranks = two()
    peers = [{"kind": "client", "uuid": str(at)} for at in range(2000)] + [{"kind": "child", "uuid": "c"}]
    for number in (0, 1):
        ranks.take(number, stats(peers=peers), 1.0, 0.5)
    assert row(ranks, 0)["kinds"] == {"client": 2000, "child": 1}
    assert ranks.answer(0, 0.0, False)["ranks"][0]["kinds"] == {}, "that is the owner's"
    clients = ranks.clients()
    assert len(clients) == CLIENTS_SHOWN
    assert clients[0] == {"kind": "client", "uuid": "0", "rank": 0}
