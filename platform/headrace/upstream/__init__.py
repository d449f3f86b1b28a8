"""Functions whose work is done elsewhere: any server that speaks OpenAI's protocol, as Ollama and vLLM do."""

from headrace.upstream.events import Piece, Usage
from headrace.upstream.server import Message, Reply, Upstream

__all__ = ["Message", "Piece", "Reply", "Upstream", "Usage"]
