"""Text of a served completion, piece by piece: whole characters, the whole text, and nothing of a stop string."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatedrnn.data import DataConfig, Vocabulary
from gatedrnn.data.prompt import prompt_ids, prompt_tokens
from gatedrnn.serve import readings
from gatedrnn.serve.text import Piece, Pieces, Stops

TEXT = "naïve ☃ and 😀😀\n\n  the  cat's café\nend"


@pytest.fixture(scope="module", params=["word", "char", "subword"])
def vocabulary(request):
    size = {"vocabulary_size": 260} if request.param == "subword" else {"min_count": 1}
    return Vocabulary.learn([TEXT.split("\n")], DataConfig(level=request.param, **size))


def test_pieces_of_any_prompt_and_rest_are_the_text(vocabulary):
    tokens = prompt_tokens(vocabulary, TEXT)
    whole = vocabulary.text(tokens)
    assert whole == (TEXT if vocabulary.level != "word" else "naïve ☃ and 😀😀\n\nthe cat's café\nend")
    for cut in range(len(tokens) + 1):
        before = vocabulary.text(tokens[:cut])
        if before.endswith("\ufffd"):  # a prompt is never cut within a character
            continue
        pieces = Pieces(vocabulary, tokens[:cut])
        found = [pieces.add(token) for token in tokens[cut:]]
        assert before + "".join(found) + pieces.rest() == whole
        assert not any("\ufffd" in piece for piece in found)


def test_bytes_that_are_no_character_come_out_in_the_end(vocabulary):
    if vocabulary.level != "subword":
        return
    broken = prompt_tokens(vocabulary, "😀")[:3] * 4
    pieces = Pieces(vocabulary)
    assert "".join(pieces.add(token) for token in broken) + pieces.rest() == vocabulary.text(broken)


def test_a_preview_is_what_will_be_added(vocabulary):
    pieces = Pieces(vocabulary)
    for token in prompt_tokens(vocabulary, "the cat's end"):
        expected = pieces.preview(token)
        assert pieces.add(token) == expected


def test_a_prompt_is_read_back_as_the_text_that_tokens_make(vocabulary):
    ids = prompt_ids(vocabulary, prompt_tokens(vocabulary, "the cat's\r\nend\n"))
    assert vocabulary.text(vocabulary.decode(ids)) == "the cat's\nend\n"
    assert prompt_tokens(vocabulary, "") == []


texts = st.text("ab ", max_size=4)


@given(st.lists(texts, max_size=12), st.lists(st.text("ab ", min_size=1, max_size=4), max_size=3))
def test_text_before_the_first_stop(pieces, stops):
    gate, found = Stops(stops), []
    for piece in pieces:
        found += gate.put(Piece(piece))
        if gate.stopped:
            break
        whole = "".join(pieces)
        assert whole.startswith("".join(piece.text for piece in found))
    found += [] if gate.stopped else gate.rest()
    out, whole = "".join(piece.text for piece in found), "".join(pieces)
    # a stop is looked for piece by piece: the earliest one in the shortest text of whole pieces that holds one
    ends = ["".join(pieces[: k + 1]) for k in range(len(pieces))]
    first = next((end for end in ends if any(stop in end for stop in stops)), None)
    assert gate.stopped == (first is not None)
    assert out == (whole if first is None else first[: min(first.find(stop) for stop in stops if stop in first)])


def test_lines_are_those_of_a_file():
    assert readings._lines(["a\r\n", "b\x0cc\n", "d\r", "e\r\nf", ""]) == ["a", "b\x0cc", "d", "e f", ""]
    assert readings._lines("a\r\n\nb\x0cc\r") == ["a", "", "b\x0cc"]
