"""The built-in `embed` without batching: what joining calls gains, by comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

from functions import embed as built_in
from headrace import Call, function, uses

if TYPE_CHECKING:
    from functions._encoder import Encoder


@function(name="embed", limits=built_in.embed.manifest.limits, budget=built_in.embed.manifest.budget)
def embed_singly(
    input: built_in.EmbedInput,  # noqa: A002 - the platform's word
    *,
    call: Call,
    encoder: Encoder = uses(built_in.minilm),
) -> built_in.EmbedOutput:
    """Embed the texts of one call."""
    (output,) = built_in.embed.fn([input], calls=[call], encoder=encoder)
    return output
