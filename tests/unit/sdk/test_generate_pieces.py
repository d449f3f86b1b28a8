"""Tokens become text without broken characters."""

import pytest
from harness import tiny_lm

from functions._pieces import Pieces

pytest.importorskip("transformers")

TEXT = "Wasser fließt: 水力 🙂 e\u0301 ok"


@pytest.fixture(scope="module")
def tokenizer():
    return tiny_lm._tokenizer(None)


def shown(tokenizer, tokens, at_once=1, end=""):
    """The pieces; `end` is what is left then."""
    pieces = Pieces(tokenizer)
    found = [pieces.add(tokens[at : at + at_once]) for at in range(0, len(tokens), at_once)]
    assert (pieces.end(), pieces.end()) == (end, "")
    return found


@pytest.mark.parametrize("at_once", [1, 2, 3, 7, 100])
def test_the_pieces_are_the_text(tokenizer, at_once):
    pieces = shown(tokenizer, tokenizer(TEXT)["input_ids"], at_once)
    assert "".join(pieces) == TEXT
    assert not any("\ufffd" in piece for piece in pieces)


def test_a_character_is_shown_with_its_last_byte(tokenizer):
    assert shown(tokenizer, tokenizer("a🙂b")["input_ids"]) == ["a", "", "", "", "🙂", "b"]


def test_a_character_that_is_cut_off_is_left_to_the_end(tokenizer):
    assert "".join(shown(tokenizer, tokenizer("ok 水")["input_ids"][:-1], end="\ufffd")) == "ok "


def test_a_text_may_end_with_the_mark_of_what_is_broken(tokenizer):
    assert "".join(shown(tokenizer, tokenizer("ok\ufffd\ufffd")["input_ids"], 2, end="\ufffd\ufffd")) == "ok"


def test_bytes_that_are_no_text_are_shown_as_such_and_hide_nothing(tokenizer):
    tokens = tokenizer("a水b")["input_ids"]
    del tokens[2]
    assert "".join(shown(tokenizer, tokens)) == tokenizer.decode(tokens)
    lone = tokenizer("水")["input_ids"][1:2]
    # The last three may become something yet.
    assert len("".join(shown(tokenizer, lone * 10, end="\ufffd" * 3))) == 7


def test_special_tokens_are_not_shown(tokenizer):
    end = tokenizer.eos_token_id
    tokens = tokenizer("a b")["input_ids"]
    assert "".join(shown(tokenizer, [end, *tokens, end, end])) == "a b"
    marked = [*tokens[:1], end, *tokens[1:]]
    assert "".join(shown(tokenizer, marked)) == "a b"
