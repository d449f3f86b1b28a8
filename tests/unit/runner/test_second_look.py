"""Looking again for jobs that a claim has missed."""

from __future__ import annotations

from gpu_runner.jobs.second_look import DELAYS_S, SecondLook


def test_what_was_got_needs_no_second_look() -> None:
    look = SecondLook()
    look.heard()
    look.claiming()
    assert look.claimed(asked=4, got=1) is None


def test_a_claim_without_a_reason_needs_none() -> None:
    look = SecondLook()
    look.claiming()
    assert look.claimed(asked=4, got=0) is None


def test_full_slots_need_none() -> None:
    """The next free slot is a reason for a claim anyway."""
    look = SecondLook()
    look.heard()
    look.heard()
    look.claiming()
    assert look.claimed(asked=1, got=1) is None


def test_what_was_missed_is_looked_for_twice() -> None:
    look = SecondLook()
    look.heard()
    for delay in (*DELAYS_S, None):
        look.claiming()
        assert look.claimed(asked=4, got=0) == delay
    look.claiming()
    assert look.claimed(asked=4, got=0) is None


def test_what_is_heard_meanwhile_is_the_next_claims() -> None:
    look = SecondLook()
    look.claiming()
    look.heard()
    assert look.claimed(asked=4, got=0) is None
    look.claiming()
    assert look.claimed(asked=4, got=0) == DELAYS_S[0]
