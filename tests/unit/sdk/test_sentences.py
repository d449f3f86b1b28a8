"""Sentences of texts in several languages, and of what is hardly text, by their places."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from functions._sentences import LONGEST, has_something_to_read, language_of, sentences, separator

pytest.importorskip("sentencex")


def texts(text: str, language: str = "en") -> list[str]:
    return [text[start:end] for start, end in sentences(text, language)]


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        (
            "en",
            [
                "Dr. Smith paid $3.50 at 5 p.m. on Jan. 5.",
                "He left.",
                '"Why go?" she asked.',
                "See Fig. 3.2.",
            ],
        ),
        (
            "de",
            [
                "Am 3. Oktober kam Dr. Meier z. B. nach Berlin.",
                "Der 2. Versuch gelang.",
                "Er kostete 3,5 Mio. Euro.",
            ],
        ),
        ("es", ["¿Qué pasa?", "¡Nada!", "El Sr. Pérez vive en la Av. Central, núm. 5."]),
        ("fr", ["M. Dupont est arrivé.", "Mme. Durand dit : « Bonjour. Ça va ? »", "Puis il part."]),
        ("ru", ["А. С. Пушкин жил в Москве.", "Он умер."]),  # noqa: RUF001 - Cyrillic it is
        ("ar", ["ذهبت إلى السوق.", "هل تعرف ذلك؟", "د. أحمد هنا."]),
        ("hi", ["मैं बाज़ार गया।", "क्या तुम आओगे?", "डॉ. शर्मा यहाँ हैं।"]),
    ],
)
def test_sentences_end_by_the_rules_of_their_language(language, expected):
    text = " ".join(expected)
    assert texts(text, language) == expected
    assert language_of(text) == language
    assert separator(language) == " "


@pytest.mark.parametrize(
    ("language", "expected"),
    [
        ("zh", ["他说:“我们走吧。”", "然后他走了!", "你呢?"]),
        ("ja", ["彼は「行こう。」と言った。", "「はい。」", "彼女は笑った。"]),
    ],
)
def test_there_is_no_space_between_sentences_in_chinese_and_japanese(language, expected):
    text = separator(language).join(expected)
    assert texts(text, language) == expected
    assert language_of(text) == language


def test_a_blank_line_and_an_item_of_a_list_end_a_sentence_and_a_line_does_not():
    text = "Title\r\n\r\n- one thing\n- another\n1. third\n\nIt goes on\nhere. End"
    assert texts(text) == ["Title", "- one thing", "- another", "1. third", "It goes on\nhere.", "End"]


def test_an_endless_sentence_is_cut_after_a_clause_else_a_word_else_anywhere():
    clauses = texts("some words and others, " * 200)
    assert {one[-7:] for one in clauses} == {"others,"}
    assert {one.split()[-1] for one in texts("word " * 500)} == {"word"}
    letters = texts("x" * 2000)
    assert "".join(letters) == "x" * 2000
    for cut in (clauses, letters):
        assert len(cut) > 3
        assert max(map(len, cut)) <= LONGEST


def test_what_belongs_to_the_character_before_is_not_cut_off():
    letters = "e\u0301" * 900
    assert all(one.startswith("e") for one in texts("x" + letters)[1:])


def test_a_sentence_across_the_blocks_that_are_looked_at_is_whole():
    text = " ".join(f"This is the sentence number {n}, and it says nothing else." for n in range(2000))
    found = texts(text)
    assert len(found) == 2000
    assert found[777].startswith("This is the sentence number 777,")


@pytest.mark.parametrize("text", ["", " \n\t", "\x00\x01", "\u200b\u00a0"])
def test_what_has_nothing_to_read(text):
    assert not has_something_to_read(text)
    assert sentences(text, "en") == []


@pytest.mark.parametrize("text", ["🙂🙂", "\u0301", "\x00a\x01.", "!?", "»" * 5000, "\n- " * 50])
def test_whatever_can_be_seen_is_in_a_sentence(text):
    kept = "".join(texts(text))
    assert [c for c in text if c.isprintable() and not c.isspace()] == [
        c for c in kept if c.isprintable() and not c.isspace()
    ]


def test_the_library_gets_little_at_once_as_its_time_grows_with_the_square(monkeypatch):
    sentencex = pytest.importorskip("sentencex")
    blocks: list[int] = []
    find = sentencex.get_sentence_boundaries

    def recorded(language, text):
        blocks.append(len(text))
        return find(language, text)

    monkeypatch.setattr(sentencex, "get_sentence_boundaries", recorded)
    assert "".join(texts("»" * 50_000)) == "»" * 50_000
    assert max(blocks) <= 10_000
    assert sum(blocks) == 50_000


@given(
    st.text(
        st.one_of(
            st.characters(exclude_categories=["Cs"]), st.sampled_from(list(".!?。 \n\r\t\"'»«-1a,\u0301\x00"))
        ),
        max_size=1500,
    ),
    st.sampled_from(["en", "de", "ja", "ar", "zh", "fr", "xx", "pt-BR"]),
)
def test_sentences_are_places_in_the_text_in_order_and_lose_nothing(text, language):
    found = sentences(text, language)
    edges = [edge for span in found for edge in span]
    assert edges == sorted(edges)
    for start, end in found:
        assert 0 < end - start <= LONGEST
        assert text[start:end] == text[start:end].strip()
    seen = {at for start, end in found for at in range(start, end)}
    assert all(at in seen for at, one in enumerate(text) if one.isprintable() and not one.isspace())
    assert len(language_of(text)) == 2
