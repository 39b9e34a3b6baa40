"""For how long a manager keeps the lease of an attempt."""

from __future__ import annotations

from everwork.manager.leases import VERDICT_SECONDS, _is_kept
from everwork.manager.watchdog import HUNG_SECONDS, WATCH_SECONDS
from everwork.runtime.ledger import Entry, SlotState

TIMEOUT = 60.0


def an_entry(state: SlotState = SlotState.BEGUN) -> Entry:
    """An attempt that was leased at 100 and has begun at 101."""
    return Entry(slot=0, key=1, attempt=1, leased_at=100, begun_at=101, timeout=TIMEOUT, worker=0, state=state)


def test_a_lease_is_kept_through_the_attempt_s_time_and_its_judgement_and_no_longer() -> None:
    ends = 101 + TIMEOUT
    assert _is_kept(an_entry(), ends - 0.1)
    assert _is_kept(an_entry(), ends + HUNG_SECONDS + WATCH_SECONDS)
    assert not _is_kept(an_entry(), ends + VERDICT_SECONDS + 0.1)


def test_what_waits_is_kept_and_what_is_new_or_has_been_settled_is_not_asked_about() -> None:
    assert _is_kept(an_entry(SlotState.WAITING), 101 + 2 * TIMEOUT)
    assert not _is_kept(an_entry(), 100.1)
    assert not _is_kept(an_entry(SlotState.HUNG), 102)


def test_what_waits_for_its_outcome_to_be_stored_or_ends_with_its_process_is_kept_past_its_time() -> None:
    late = 101 + 2 * TIMEOUT
    assert _is_kept(an_entry(SlotState.ENDED), late)
    assert _is_kept(an_entry(), late, is_leaving=True)
    assert not _is_kept(an_entry(SlotState.HUNG), late, is_leaving=True)
