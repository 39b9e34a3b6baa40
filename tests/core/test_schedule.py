"""Which time points of a trigger are due, and which comes next."""

from __future__ import annotations

from everwork.core.limits import CATCHUP_POINTS_MAX
from everwork.core.schedule import GRACE_MS, Calendar, Due, Every, Plan, due_points, next_point

BEGAN = 1_000_000_000_007
MINUTE = 60_000
EVERY_MINUTE = Every(MINUTE)


def point(number: int) -> int:
    return BEGAN + number * MINUTE


class Ticks:
    """A calendar with a point at every multiple of a step, which counts how often it is asked."""

    def __init__(self, step_ms: int, *, silent: range = range(0)) -> None:
        self.step_ms = step_ms
        self.silent = silent
        self.asked = 0

    def __call__(self, after_ms: int) -> int:
        self.asked += 1
        at = (after_ms // self.step_ms + 1) * self.step_ms
        return self.silent.stop if at in self.silent else at


def test_the_first_point_of_an_interval_is_one_interval_after_its_beginning() -> None:
    plan = Plan(EVERY_MINUTE)
    assert due_points(plan, BEGAN, BEGAN, point(1) - 1) == Due([])
    assert next_point(plan, BEGAN, BEGAN, BEGAN) == point(1)
    assert due_points(plan, BEGAN, BEGAN, point(1)) == Due([point(1)])


def test_missed_points_are_caught_up_with_in_order() -> None:
    assert due_points(Plan(EVERY_MINUTE), BEGAN, point(2), point(5) + 1) == Due([point(3), point(4), point(5)])


def test_without_catch_up_only_a_point_that_is_hardly_late_is_due() -> None:
    plan = Plan(EVERY_MINUTE, is_catchup=False)
    assert due_points(plan, BEGAN, point(2), point(9) + GRACE_MS) == Due([point(9)])
    assert due_points(plan, BEGAN, point(2), point(9) + GRACE_MS + 1) == Due([])
    assert due_points(Plan(Every(100), is_catchup=False), BEGAN, BEGAN, BEGAN + 1_000) == Due([BEGAN + 1_000])
    assert next_point(plan, BEGAN, point(2), point(9) + MINUTE // 2) == point(10)


def test_points_after_the_end_of_life_are_never_due() -> None:
    plan = Plan(EVERY_MINUTE, lifetime_ms=2 * MINUTE)
    assert due_points(plan, BEGAN, BEGAN, point(9)) == Due([point(1), point(2)])
    assert next_point(plan, BEGAN, point(1), point(1)) == point(2)
    assert next_point(plan, BEGAN, point(2), point(2)) is None


def test_a_clock_that_was_set_back_makes_nothing_due_and_the_next_point_is_one_that_has_not_passed() -> None:
    plan = Plan(EVERY_MINUTE)
    assert due_points(plan, BEGAN, point(60), point(3)) == Due([])
    assert due_points(plan, BEGAN, point(60), BEGAN - 5) == Due([])
    assert next_point(plan, BEGAN, point(60), point(3)) == point(61)


def test_a_changed_interval_goes_on_after_the_last_point_in_steps_from_the_beginning() -> None:
    assert due_points(Plan(Every(5 * MINUTE)), BEGAN, point(3), point(11)) == Due([point(5), point(10)])


def test_the_latest_of_too_many_missed_points_of_an_interval_are_caught_up_with() -> None:
    due = due_points(Plan(EVERY_MINUTE), BEGAN, BEGAN, point(5_000_000))
    assert (len(due.points), due.skipped, due.is_more) == (CATCHUP_POINTS_MAX, 5_000_000 - CATCHUP_POINTS_MAX, False)
    assert (due.points[0], due.points[-1]) == (point(5_000_000 - CATCHUP_POINTS_MAX + 1), point(5_000_000))


def test_the_latest_of_years_of_missed_points_of_a_calendar_are_found_without_walking_through_all_of_them() -> None:
    ticks = Ticks(MINUTE)
    end = 5_000_000 * MINUTE
    due = due_points(Plan(Calendar(ticks)), 0, 0, end)
    assert due.points == list(range(end - (CATCHUP_POINTS_MAX - 1) * MINUTE, end + 1, MINUTE))
    assert due.is_more
    assert ticks.asked < 5 * CATCHUP_POINTS_MAX


def test_a_long_silence_before_and_after_dense_points_of_a_calendar_does_not_cost_a_walk_through_them() -> None:
    ticks = Ticks(100, silent=range(40_000_000, 400_000_000))
    due = due_points(Plan(Calendar(ticks)), 0, 0, 390_000_000)
    assert due.points == list(range(40_000_000 - CATCHUP_POINTS_MAX * 100, 40_000_000, 100))
    assert ticks.asked < 50 * CATCHUP_POINTS_MAX


def test_few_missed_points_of_a_calendar_are_all_caught_up_with_and_counted() -> None:
    due = due_points(Plan(Calendar(Ticks(MINUTE))), 0, 0, 3 * MINUTE)
    assert due == Due([MINUTE, 2 * MINUTE, 3 * MINUTE])
    many = due_points(Plan(Calendar(Ticks(MINUTE))), 0, 0, (CATCHUP_POINTS_MAX + 7) * MINUTE)
    assert (many.points[0], len(many.points), many.skipped) == (8 * MINUTE, CATCHUP_POINTS_MAX, 7)


def test_skipped_points_of_a_calendar_are_told_only_if_there_are_any() -> None:
    end = CATCHUP_POINTS_MAX * 3_000
    first = end - (CATCHUP_POINTS_MAX - 1) * 1_000
    assert due_points(Plan(Calendar(Ticks(1_000))), 0, 0, end)[1:] == (1, True)
    assert due_points(Plan(Calendar(Ticks(1_000, silent=range(first)))), 0, 0, end)[1:] == (0, False)


def test_a_calendar_without_further_points_has_nothing_due_and_nothing_next() -> None:
    plan = Plan(Calendar(lambda _: None))
    assert due_points(plan, BEGAN, BEGAN, point(3)) == Due([])
    assert next_point(plan, BEGAN, BEGAN, point(3)) is None
