"""How the next token of a generation is chosen where it isn't simply the most likely one.

By chance: each token's score gets noise of its own from the generation's random numbers, and the highest is
taken, which draws each as often as it is likely (the Gumbel-max method: Maddison, Tarlow and Minka, A*
Sampling, 2014). Where scores are rounded otherwise, as by what else runs, that seldom changes which is the
highest; sums of probabilities, the usual method, would shift for all tokens at once. `top_p` is nucleus
sampling (Holtzman et al., The Curious Case of Neural Text Degeneration, 2020).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol, cast

_COLDEST: Final = 1e-3  # below, the most likely token is as good as certain
_LEAST_NOISE: Final = 1e-38  # so that its logarithm is finite
_FIRST_LOOK: Final = 512  # tokens among which a nucleus is looked for at first: all would have to be sorted


class Restriction(Protocol):
    """What may follow, as a grammar says."""

    def restrict(self, scores: Any) -> None:
        """Set the scores of tokens that may not come to minus infinity, in place."""
        ...

    def take(self, token: int) -> None:
        """This one comes."""
        ...


class Choice:
    """How one generation's tokens are chosen. What it has drawn goes on with it, so it serves one generation.

    Args:
        temperature: by which the scores are divided, from 0; at 0 the most likely token is taken.
        top_p: the most likely tokens that have this much of the probability together are drawn from.
        seed: of its random numbers; None: other ones each time.
        restriction: what may come at all.
    """

    def __init__(
        self,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int | None = None,
        restriction: Restriction | None = None,
    ) -> None:
        self.temperature = temperature
        self.top_p = top_p
        self.restriction = restriction
        self._seed = seed
        self._random: Any = None

    @property
    def by_chance(self) -> bool:
        """Whether more than the most likely token can be taken."""
        return self.temperature >= _COLDEST

    @property
    def is_plain(self) -> bool:
        """Whether simply the most likely token is taken."""
        return not self.by_chance and self.restriction is None

    def noise(self, size: int) -> Any:
        """The next of its random numbers, exponentially distributed: an array in fp32."""
        import numpy

        if self._random is None:
            self._random = numpy.random.default_rng(self._seed)
        return self._random.standard_exponential(size, dtype=numpy.float32)


class Choosing:
    """Chooses the tokens of some generations among those of a step.

    It takes the place of the processors of scores in transformers' continuous batching, which applies one
    setting to all rows where it draws. While all generations are plain, a step does nothing for it.
    """

    tensors_required: Final = 0
    """Of arguments that would be copied to the device at each step."""

    def __init__(self) -> None:
        self._choices: dict[str, Choice] = {}
        self._rows: list[tuple[int, Choice]] = []

    def begin(self, key: str, choice: Choice) -> None:
        """From now on a generation's tokens are chosen so; may be called from any thread."""
        if not choice.is_plain:
            self._choices[key] = choice

    def end(self, key: str) -> None:
        """The generation is over; may be called from any thread, also for one that is plain."""
        self._choices.pop(key, None)

    @property
    def do_processing(self) -> bool:
        """Whether this step has such a generation."""
        return bool(self._rows)

    def check_kwargs(self, kwargs: dict[str, Any]) -> None:
        """No request brings arguments of its own."""

    def fill_defaults(self, int32_tensor: Any) -> None:
        """There are no arguments."""

    def prepare_tensor_args(self, requests_in_batch: Sequence[Any], arg_storage: Any) -> Any:
        """Note which rows of the step's scores are chosen here: one row for each request with a new token."""
        self._rows = []
        if self._choices:
            keys = [one.state.request_id for one in requests_in_batch if one.has_new_token]
            found = ((row, self._choices.get(key)) for row, key in enumerate(keys))
            self._rows = [(row, choice) for row, choice in found if choice is not None]
        return arg_storage

    def __call__(self, input_ids: Any, scores: Any, logits_processor_args: Any) -> Any:
        """The scores of a step, after which the chosen token of each row has the highest."""
        choose(scores, self._rows)
        return scores


def choose(scores: Any, rows: Sequence[tuple[int, Choice]]) -> None:
    """Give the token that is chosen the highest score, in these rows; the others stay.

    Args:
        scores: a tensor, rows x vocabulary, in fp32; changed in place.
        rows: each with its generation's choice.
    """
    restricted = [(row, choice.restriction) for row, choice in rows if choice.restriction is not None]
    for row, restriction in restricted:
        restriction.restrict(scores[row])
    drawn = [(row, choice) for row, choice in rows if choice.by_chance]
    if drawn:
        at = [row for row, _ in drawn]
        scores[at, _drawn(scores[at], [choice for _, choice in drawn])] = float("inf")
    if restricted:
        at = [row for row, _ in restricted]
        tokens = scores[at].argmax(-1)
        scores[at, tokens] = float("inf")  # among equals another look might find another one
        for (_, restriction), token in zip(restricted, tokens.tolist(), strict=True):
            restriction.take(token)


def _drawn(scores: Any, choices: Sequence[Choice]) -> Any:
    """The token of each row whose score is the highest with noise."""
    import numpy
    import torch

    def column(values: list[float], dtype: Any) -> Any:
        return torch.tensor(values, dtype=dtype, device=scores.device).unsqueeze(1)

    # Less the highest first: no temperature makes it infinite.
    likely = scores - scores.amax(-1, keepdim=True)
    likely /= column([choice.temperature for choice in choices], torch.float32)
    cut = [row for row, choice in enumerate(choices) if choice.top_p < 1]
    if cut:
        top_p = column([choices[row].top_p for row in cut], torch.float64)
        outside = _nucleus(torch.softmax(likely[cut], -1), top_p) == 0
        likely[cut] = likely[cut].masked_fill(outside, float("-inf"))
    noise = cast("Any", torch).from_numpy(numpy.stack([one.noise(scores.shape[1]) for one in choices]))
    return (likely - noise.to(scores.device).clamp_(min=_LEAST_NOISE).log_()).argmax(-1)


def _nucleus(likely: Any, top_p: Any, size: int = _FIRST_LOOK) -> Any:
    """Without those beyond the most likely ones that have `top_p` together; equals of the last one stay."""
    import torch

    size = min(size, likely.shape[1])
    best = likely.topk(size).values
    before = best.cumsum(-1, dtype=torch.float64) - best
    last = (before < top_p).sum(-1, keepdim=True) - 1
    kept = likely.masked_fill(likely < best.gather(-1, last), 0)
    wide = (last.squeeze(1) == size - 1).nonzero().squeeze(1)
    if size < likely.shape[1] and len(wide):
        kept[wide] = _nucleus(likely[wide], top_p[wide], 16 * size)
    return kept
