"""What both halves of `generation.py` share: what is asked, and what is counted."""

from __future__ import annotations

import itertools
import time
from dataclasses import dataclass, field

MAX_TOKENS = 32

_WARM_S = 3.0  # of each round: not counted
_TOPICS = ("rivers", "mills", "turbines", "dams", "locks", "wells", "rain", "ice", "steam", "tides", "fog")
prompts = (
    f"Explain {topic} to a child of {age}." for age, topic in itertools.product(range(6, 1000), _TOPICS)
)


@dataclass
class Counted:
    """What one round gave.

    Args:
        began: when counting began, on the clock of `time.perf_counter`.
        until: when it ended.
        tokens: that came meanwhile.
        all_tokens: those from before counting began too.
        first_s: for answers that were asked for meanwhile, the seconds until their first token.
    """

    began: float
    until: float
    tokens: int = 0
    all_tokens: int = 0
    first_s: list[float] = field(default_factory=list[float])

    @classmethod
    def of(cls, seconds: float) -> Counted:
        """A round that begins now."""
        began = time.perf_counter() + _WARM_S
        return cls(began, began + seconds)

    def add(self, tokens: int) -> None:
        """So many tokens came now."""
        self.all_tokens += tokens
        if self.began <= time.perf_counter() < self.until:
            self.tokens += tokens

    def add_first(self, asked_at: float) -> None:
        """The first token of an answer came now."""
        if asked_at >= self.began:
            self.first_s.append(time.perf_counter() - asked_at)

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / (self.until - self.began)
