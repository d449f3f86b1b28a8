"""Single rules about models: whose room is used, what counts as its size, and what is final."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from gpu_runner.frames import Loaded, LoadFailed, Loading
from gpu_runner.residency import watch as watching
from gpu_runner.residency.book import Book, Place, Spec
from gpu_runner.residency.failures import Failures
from gpu_runner.residency.plan import Load, Unload, Want, plan
from gpu_runner.residency.preload import choose_preload
from gpu_runner.residency.verdicts import Verdicts
from gpu_runner.residency.watch import Offence, Watch


def a_book(*specs: Spec, places: int = 1, budget: int = 100) -> Book:
    book = Book(specs, places, budget)
    for place in book.places:
        place.is_up = True
    return book


def load(book: Book, place: Place, model: str, size: int, at: float = 1.0, seconds: float = 0.1) -> None:
    book.ask_load(place, model, at)
    book.loading(place, model, at)
    book.loaded(place, model, size, seconds, at)


def want(*models: str, at: tuple[int, ...] = (0,), since: float = 9.0) -> Want:
    return Want(models, since, frozenset(at), frozenset(at))


# ---------------------------------------------------------------------- room


def test_a_model_that_was_measured_as_nothing_makes_room_like_any_other() -> None:
    book = a_book(Spec("a"), Spec("b", memory=50))
    (place,) = book.places
    load(book, place, "a", 0)
    book.weighed(place, 90)  # most of it is the model's
    decided = plan(book, [want("b")], 10.0)
    assert decided.steps == [Unload(0, "a")]
    assert (0, "a") in decided.condemned


def test_while_something_loads_nothing_is_unloaded_in_vain() -> None:
    book = a_book(Spec("a"), Spec("b", memory=80), Spec("c"), places=2)
    load(book, book.places[0], "a", 10)
    book.places[1].base = 30
    book.ask_load(book.places[1], "c", 2.0)
    assert plan(book, [want("b")], 10.0).steps == []


def test_what_was_just_loaded_is_there_for_its_call() -> None:
    book = a_book(Spec("a", keep_alive=0.0), Spec("b", memory=60))
    load(book, book.places[0], "a", 60, at=10.0, seconds=1.0)
    older = want("b", since=8.0)
    # Its call starts in a turn of the loop: neither who has waited longer takes the room before that ...
    assert plan(book, [older, want("a")], 10.05).steps == []
    assert plan(book, [older, want("a")], 10.2).steps == [Unload(0, "a")]  # it has none
    # ... nor has its time passed.
    assert plan(book, [want("a")], 10.2).steps == []
    assert plan(book, [], 10.2).steps == [Unload(0, "a")]


# ---------------------------------------------------------------------- over the budget


def three_too_many() -> Book:
    book = a_book(Spec("m"), Spec("n"), places=3)
    for place in book.places:
        load(book, place, "m", 80, at=1.0 + place.index)
    return book


def test_what_turned_out_too_large_is_unloaded_where_it_was_used_longest_ago() -> None:
    book = three_too_many()
    assert plan(book, [], 100.0).steps == [Unload(0, "m"), Unload(1, "m")]
    book.began(book.places[0], ["m"])  # in use
    assert plan(book, [], 100.0).steps == [Unload(1, "m"), Unload(2, "m")]


def test_what_is_wanted_goes_last_and_is_left_once() -> None:
    book = three_too_many()
    assert plan(book, [want("m", at=(0,))], 100.0).steps == [Unload(1, "m"), Unload(2, "m")]
    assert plan(book, [want("m", at=(0, 1, 2))], 100.0).steps == [Unload(0, "m"), Unload(1, "m")]


def test_what_is_half_there_is_left_to_who_waits_for_it() -> None:
    book = a_book(Spec("m"), Spec("n"))
    load(book, book.places[0], "m", 110)
    assert plan(book, [want("m", "n")], 100.0).steps == []
    assert plan(book, [], 100.0).steps == [Unload(0, "m")]


def test_an_idle_executor_loads_more_rather_than_a_busy_one_less() -> None:
    book = a_book(Spec("m"), Spec("n"), places=2)
    load(book, book.places[0], "m", 10)
    book.measured["n"] = 10
    wanted = want("m", "n", at=(0, 1))
    assert plan(book, [wanted], 100.0).steps == [Load(0, "n")]
    book.places[0].is_running = True
    assert plan(book, [wanted], 100.0).steps == [Load(1, "m")]
    book.budget = 25  # no room for both there
    assert plan(book, [wanted], 100.0).steps == [Load(0, "n")]


def test_two_models_that_are_wanted_together_are_left_together() -> None:
    book = a_book(Spec("m"), Spec("n"), places=2)
    for model, index, at in (("m", 0, 1.0), ("n", 1, 2.0), ("n", 0, 3.0), ("m", 1, 4.0)):
        load(book, book.places[index], model, 40, at)
    steps = plan(book, [want("m", "n", at=(0, 1))], 100.0).steps
    assert steps == [Unload(0, "m"), Unload(0, "n")]


def test_models_are_not_to_blame_for_executors_that_take_all_there_is() -> None:
    book = a_book(Spec("m"))
    load(book, book.places[0], "m", 10)
    book.weighed(book.places[0], 130)
    assert plan(book, [], 100.0).steps == []


def test_executors_that_start_together_share_the_room_beside_what_is_declared() -> None:
    book = Book([Spec("m"), Spec("n", memory=10)], 3, 100)
    first = choose_preload(book, book.places[0], (), Failures(), 0.0, together=3)
    assert (first.models, first.share) == (("m", "n"), pytest.approx(0.4))  # 10 and a third of 90
    assert {held.limit for held in book.places[0].held.values()} == {40}
    last = choose_preload(book, book.places[1], (), Failures(), 0.0, together=1)
    assert last.share == pytest.approx(0.9)
    assert choose_preload(Book([Spec("m")], 1), Place(0), (), Failures(), 0.0, 4).share == 0.25


def test_one_that_was_given_a_share_only_is_loaded_again_with_all_the_room_and_then_has_failed() -> None:
    book, failures = Book([Spec("m")], 2, 100), Failures()
    verdicts = Verdicts(book, failures)
    choose_preload(book, book.places[0], (), failures, 0.0, together=2)
    full = LoadFailed("m", "no room", is_over=True)
    assert verdicts.failed(book.places[0], full, 1.0)
    assert "m" not in failures
    book.places[0].is_up = True
    assert plan(book, [want("m")], 2.0).steps == [Load(0, "m")]
    assert book.ask_load(book.places[0], "m", 2.0) == 100
    assert not verdicts.failed(book.places[0], full, 3.0)
    assert "m" in failures


# ---------------------------------------------------------------------- what a model needs


def test_a_page_less_does_not_make_a_model_too_large_whose_load_was_broken_off() -> None:
    book = a_book(Spec("m"), Spec("n"), budget=1000)
    (place,) = book.places
    book.weighed(place, 300, is_new=True)
    book.weighed(place, 296)
    book.at_least.update(m=300, n=300)
    assert book.can_ever_fit(("m",))
    assert book.can_ever_fit(("m", "n"))
    book.at_least["m"] = 704  # as much as was left by then
    assert book.can_ever_fit(("m",))
    book.lost(place)  # until the next is there
    assert book.room == 704
    assert book.can_ever_fit(("m",))
    book.at_least["m"] = 705
    assert not book.can_ever_fit(("m",))


def test_one_of_two_that_was_broken_off_is_loaded_beside_the_other() -> None:
    book = a_book(Spec("a"), Spec("b"), Spec("c"))
    (place,) = book.places
    place.note_base(10)
    load(book, place, "a", 40)
    load(book, place, "c", 5)
    book.at_least["b"] = 30
    assert plan(book, [want("a", "b")], 100.0).steps == [Unload(0, "c")]
    book.gone(place, "c")
    assert plan(book, [want("a", "b")], 100.0).steps == [Load(0, "b")]
    assert book.ask_load(place, "b", 100.0) == 50
    assert book.used == 100


# ---------------------------------------------------------------------- growth


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> dict[int | None, int]:
    """What processes have in memory, by pid."""
    taken: dict[int | None, int] = {}
    monkeypatch.setattr(watching, "resident", taken.get)
    return taken


def test_one_load_over_the_budget_ends_one_executor(taken: dict[int | None, int]) -> None:
    book = Book([Spec("m")], 4, 100)
    watch = Watch(book, 600)
    for place in book.places:
        choose_preload(book, place, (), Failures(), 0.0)
        watch.begins(place, Loading("m", 0), place.index)
    for tick in range(4):
        taken.update((index, 26 + tick) for index in range(4))
        ended = [offence.place for offence in watch.offences(time.monotonic())]
        assert ended == ([3] if tick == 0 else [])
    assert watch.ends(book.places[3])
    book.lost(book.places[3])
    assert not watch.ends(book.places[3])


@pytest.mark.parametrize(
    "start_call", [lambda watch, place: watch.shares(place.index), None], ids=["beside", "alone"]
)
def test_growth_is_final_only_where_no_calls_run(
    taken: dict[int | None, int], start_call: Callable[[Watch, Place], None] | None
) -> None:
    book, failures = a_book(Spec("m"), budget=100), Failures()
    (place,) = book.places
    verdicts = Verdicts(book, failures)

    def offence() -> Offence:
        watch = Watch(book, 600)
        book.ask_load(place, "m", 0.0)
        watch.begins(place, Loading("m", 10), 1)
        if start_call:
            start_call(watch, place)
        taken[1] = 150
        (found,) = watch.offences(time.monotonic())
        book.lost(place)
        return found

    verdicts.offended(offence(), 1.0)
    if start_call is None:
        assert failures.next_at(1.0) == float("inf")
        assert "m" in failures
        return
    assert "m" not in failures
    assert book.can_ever_fit(("m",))
    verdicts.offended(offence(), 1.0)  # each time costs calls: it isn't tried on and on
    assert "m" in failures
    assert failures.next_at(1.0) == 11.0
    assert book.can_ever_fit(("m",))


def test_what_was_measured_beside_calls_degrades_nothing() -> None:
    book = a_book(Spec("m"))
    verdicts = Verdicts(book, Failures())
    book.ask_load(book.places[0], "m", 0.0)
    verdicts.loaded(book.places[0], Loaded("m", 120, 0.1), 1.0, is_sure=False)
    book.lost(book.places[0])
    assert book.measured == {"m": 120}
    assert book.can_ever_fit(("m",))
    verdicts.loaded(book.places[0], Loaded("m", 40, 0.1), 2.0, is_sure=True)
    book.lost(book.places[0])
    verdicts.loaded(book.places[0], Loaded("m", 120, 0.1), 3.0, is_sure=False)
    assert book.measured == {"m": 40}
