"""Which tokens belong to which words: at every level, whatever white space stands between them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gatedrnn.core.errors import ArgumentError
from gatedrnn.data import DataConfig, Vocabulary, align

pytest.importorskip("tokenizers")

TEXT = [["the dog's dogs see the old 日本 cats", "a dog sees 42 naïve cats", "don't the dogs sleep? yes, the cats"] * 9]
VOCABULARIES = {
    "word": Vocabulary.learn(iter(TEXT), DataConfig(min_count=1)),
    "char": Vocabulary.learn(iter(TEXT), DataConfig(level="char", min_count=1)),
    "subword": Vocabulary.learn(iter(TEXT), DataConfig(level="subword", vocabulary_size=300)),
}
LINES = {
    "plain": "the dog's old cats",
    "spaces before": "   the dogs",
    "spaces behind": "the dogs   ",
    "spaces between": "the    old  dogs",
    "other spaces": "\tthe\u2003dogs \xa0 see\t",
    "other letters": "日本 naïve Ünïcödé 😀 本",
    "one word": "cats",
    "punctuation": "don't sleep, dogs...",
}


def letters(word):
    """A word as bytes, in the letters that byte-level tokens write them with."""
    from tokenizers.pre_tokenizers import ByteLevel

    return "".join(piece for piece, _ in ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(word))


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_the_subwords_of_a_word_spell_it(line):
    vocabulary = VOCABULARIES["subword"]
    found = align(vocabulary, line)
    assert found.words == line.split() and found.ids == vocabulary.encode(vocabulary.tokens(line))
    tokens = vocabulary.decode(found.ids)
    assert "".join(tokens) == letters(line)
    for k, word in enumerate(found.words):
        own = [token for token, owner in zip(tokens, found.owners, strict=True) if owner == k]
        assert vocabulary.splitter.join(own).split() == [word]
    assert any(len(token) > 1 for token in tokens) and found.owners == sorted(found.owners)


@pytest.mark.parametrize("line", LINES.values(), ids=LINES)
def test_the_characters_of_a_word_spell_it_and_spaces_belong_to_the_next(line):
    found = align(VOCABULARIES["char"], line)
    assert found.words == line.split() and len(found.ids) == len(found.owners) == len(line)
    pieces = [
        "".join(c for c, owner in zip(line, found.owners, strict=True) if owner == k) for k in range(len(found.words))
    ]
    assert "".join(pieces) == line
    for piece, word in zip(pieces[:-1], found.words[:-1], strict=True):
        assert piece.lstrip() == word
    assert pieces[-1].strip() == found.words[-1]


def test_alignment_by_hand():
    assert align(VOCABULARIES["char"], "  ab  c ").owners == [0, 0, 0, 0, 1, 1, 1, 1]
    found = align(VOCABULARIES["subword"], "  the dog ")
    assert VOCABULARIES["subword"].decode(found.ids) == ["Ġ", "Ġthe", "Ġdog", "Ġ"]
    assert found.owners == [0, 0, 1, 1]


@pytest.mark.parametrize("level", VOCABULARIES)
def test_a_line_of_nothing_has_no_word_and_no_token(level):
    found = align(VOCABULARIES[level], "")
    assert (found.words, found.ids, found.owners) == ([], [], [])


@pytest.mark.parametrize("level", ["char", "subword"])
@given(parts=st.lists(st.sampled_from(["the", "dog's", "日", "😀", " ", "  ", "\t", "\u2003", ".", "42"]), min_size=1))
def test_every_token_has_a_word_in_order(level, parts):
    line = "".join([*parts, "x"])
    found = align(VOCABULARIES[level], line)
    assert found.words == line.split() and found.ids == VOCABULARIES[level].encode(VOCABULARIES[level].tokens(line))
    assert found.owners == sorted(found.owners) and len(found.owners) == len(found.ids)
    assert set(found.owners) == set(range(len(found.words)))


@pytest.mark.parametrize(
    ("mapping", "seen"),
    [("exact", ["<unk>", "dogs", "<unk>"]), ("lower", ["the", "dogs", "<unk>"]), ("number", ["the", "dogs", "N"])],
)
def test_words_are_looked_up_by_the_named_rule(mapping, seen):
    vocabulary = Vocabulary.build([["the", "dogs", "N"]], min_count=1)
    found = align(vocabulary, " The  dogs 1984 ", mapping)
    assert (found.words, found.owners) == (["The", "dogs", "1984"], [0, 1, 2])
    assert vocabulary.decode(found.ids) == seen
    with pytest.raises(ArgumentError, match="mapping: must be one of exact, lower, number; got 'upper'"):
        align(vocabulary, "the", "upper")
