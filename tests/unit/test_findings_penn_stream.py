"""Completions of a run with `tokenize: penn`: pieces that are sent one by one are the text that `generate` prints."""

import random

import pytest

from gatedrnn.data import DataConfig, Vocabulary
from gatedrnn.serve.text import Pieces

LINES = [
    'He said, "I can\'t go (now)." Then he left.',
    '"Strings." she said; it\'s U.S. $5 gold.',
    "'quoted' words 'here' too",
    'The "a" and "b" [c] {d} -- e... f; "why?" - "no!" 50% of it.',
    "the dogs' bones, and 1,000 more: cannot, gonna",
]


@pytest.fixture(scope="module")
def vocabulary():
    return Vocabulary.learn([LINES], DataConfig(tokenize="penn", min_count=1))


@pytest.mark.parametrize("line", LINES)
def test_pieces_after_any_prompt_are_the_rest_of_the_line(vocabulary, line):
    tokens = vocabulary.tokens(line)
    assert vocabulary.text(tokens) == line
    for cut in range(len(tokens) + 1):
        pieces, before = Pieces(vocabulary, tokens[:cut]), vocabulary.text(tokens[:cut])
        if line.startswith(before):  # a mark at the end of a prompt may be written in another way than before its word
            assert before + "".join(map(pieces.add, tokens[cut:])) + pieces.rest() == line


def test_pieces_of_random_texts(vocabulary):
    draw = random.Random(1)
    for _ in range(100):
        tokens = vocabulary.tokens(" ".join(draw.choices([*LINES, '"', "(", "--", "the", "$", "%", "'"], k=8)))
        pieces = Pieces(vocabulary)
        assert "".join(map(pieces.add, tokens)) + pieces.rest() == vocabulary.text(tokens)


def test_a_mark_that_opens_waits_for_its_word(vocabulary):
    pieces = Pieces(vocabulary, ["said", ","])
    assert [pieces.add(token) for token in ("``", "I", "''", "he")] == ["", ' "I', '"', " he"]
    assert (pieces.add("``"), pieces.rest(), pieces.rest()) == ("", ' "', "")
