"""Sentences as people write them, cut into words and joined again, at once or piece by piece."""

import random
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.data import Corpus, DataConfig, Vocabulary, find_splits
from gatedrnn.data.levels import Words
from gatedrnn.data.penn import penn_forms, penn_text, penn_words, penn_words_of_pieces
from gatedrnn.serve.text import Pieces

SENTENCES = {
    "He can't eat strings.": "He ca n't eat strings .",
    'He said, "I don’t know (yet)."': "He said , `` I do n't know ( yet ) . ''",
    "`` yes '' he said , I do n't .": "`` yes '' he said , I do n't .",
    'a " quoted " word': "a `` quoted '' word",
    "„Haus“ und «mot»": "`` Haus '' und `` mot ''",
    "¿Qué pasa? ¡Hola!": "¿ Qué pasa ? ¡ Hola !",
    "это слово, да… है।": "это слово , да … है ।",
    "$1,000.50 at 10:30 is 5% of N.": "$ 1,000.50 at 10:30 is 5 % of N .",
    "Mr. Smith of the U.S. left.": "Mr. Smith of the U.S. left .",
    "<unk> said (<unk>). <eos> Next.": "<unk> said ( <unk> ) . <eos> Next .",
    "dogs' 'tis 'hello' we'd've gonna": "dogs ' 't is ` hello ' we 'd 've gon na",
    "S&n't AT&'s": "S & n't AT & 's",
    "abcUS$ -US$": "abcUS $ -US $",
    "AT&T's US$5 x—y a--b": "AT&T 's US$ 5 x — y a -- b",
    "-LRB- a -RRB-": "( a )",
    " \t two\u00a0words ": "two words",
    "He left. She stayed.": "He left. She stayed .",
    "": "",
}
PARTS = [
    *(
        "a",
        "the",
        "cannot",
        "don't",
        "<unk>",
        "<eos>",
        "U.S.",
        "1,000",
        "$5",
        "5%",
        "dogs'",
        "'tis",
        "'90s",
        "s&p",
        "US$",
    ),
    *(
        "``",
        "''",
        '"',
        "'",
        "’",
        "“",
        "”",
        "„",
        "«",
        "(",
        ")",
        ".",
        ",",
        "...",
        "--",
        "—",
        "?!",
        "¿",
        "…",
        "है।",
        "\u00a0",
    ),
]
TEXT = st.one_of(
    st.lists(st.tuples(st.sampled_from(PARTS), st.sampled_from(["", " "])), max_size=12).map(
        lambda parts: "".join(a + b for a, b in parts)
    ),
    st.text(max_size=30),
    st.text(alphabet="ab.'\"`()<>,… “”’$1n t", max_size=25),
)


def letters(text):
    """The text without white space, where quotation marks and brackets of all kinds are one."""
    text = re.sub("[‘’‚‛`]", "'", re.sub(r"-[LR][RSC]B-|[][(){}]", "(", text))
    return "".join(re.sub('["“”„‟«»]', "''", text).split())


@pytest.mark.parametrize("line", SENTENCES)
def test_words_of_a_sentence(line):
    assert penn_words(line) == SENTENCES[line].split()


@settings(max_examples=300)
@given(TEXT)
def test_what_is_cut_stays_and_nothing_is_lost(text):
    words = penn_words(text)
    assert penn_words(" ".join(words)) == words
    assert letters("".join(words)) == letters(text)


@settings(max_examples=300)
@given(TEXT)
def test_joined_text_is_stable_and_nothing_is_lost(text):
    once = penn_text(penn_words(text))
    assert penn_text(penn_words(once)) == once
    assert letters(once) == letters(text)


@pytest.mark.parametrize(
    "line", ["He can't eat strings.", 'He said, "No (not yet)," and left.', "It's 5% of $3.", "cannot"]
)
def test_a_sentence_comes_back_as_it_was(line):
    assert penn_text(penn_words(line)) == line


@pytest.mark.parametrize(
    ("words", "text"),
    [("he said , was it good ?", "he said, was it good?"), ("we can not , gim me it", "we cannot, gimme it")],
)
def test_second_halves_of_words_join_only_words(words, text):
    assert penn_text(words.split()) == text


def test_pieces_own_their_words():
    assert penn_words_of_pieces('"I can\'t," he') == (["``", "I", "ca", "n't", ",", "''", "he"], [0, 0, 1, 1, 1, 1, 2])


def test_words_of_a_treebank_are_looked_up_as_text_is():
    assert penn_forms(["-LRB-", '"', "don’t", '"', "a"]) == ["(", "``", "don't", "''", "a"]
    vocabulary = Vocabulary(["<unk>", "<eos>", "(", "``", "''"], None, Words("penn"))
    assert vocabulary.encode_foreign(["-LRB-", '"', '"', "("]) == [2, 3, 4, 2]
    vocabulary = Vocabulary(["<unk>", "<eos>", "and/or", "3/4", "*", "mgm\\/ua", "mgm/ua"], None, Words("penn"))
    for mapping in ("exact", "lower", "number"):
        assert vocabulary.encode_foreign(["and\\/or", "3\\/4", "\\*", "and/or"], mapping) == [2, 3, 4, 2]
        assert vocabulary.encode_foreign(["mgm\\/ua", "mgm/ua"], mapping) == [5, 6]  # as a text may have it too
        capitals = vocabulary.encode_foreign(["MGM\\/UA", "And\\/Or", "9\\/9"], mapping)
        assert capitals == ([0, 0, 0] if mapping == "exact" else [5, 2, 0])
    assert Vocabulary(["<unk>", "<eos>", "and/or"]).encode_foreign(["and\\/or"]) == [0]


@pytest.mark.parametrize(
    "piece", ["a" * 10**6, "a" * 10**6 + "$", "'s" * 10**5, '"' * 10**5, ")" * 10**5, "a.)" * 10**5, "¿" * 10**5]
)
def test_very_long_words_take_no_time(piece):
    assert "".join(penn_words(piece)).replace("''", '"').replace("``", '"') == piece


class TestVocabulary:
    def vocabulary(self, lines=("He can't go.", "He left.")):
        return Vocabulary.learn(iter([list(lines)]), DataConfig(tokenize="penn", min_count=1))

    def test_is_learned_kept_and_read_again(self, tmp_path):
        vocabulary = self.vocabulary()
        vocabulary.save(tmp_path / "vocabulary.json")
        again = Vocabulary.load(tmp_path / "vocabulary.json")
        assert again.tokenize == "penn" and again.words == vocabulary.words
        assert again.tokens("He can't.") == ["He", "ca", "n't", "."]
        assert again.text(["He", "ca", "n't", ".", "<eos>", "He"]) == "He can't.\nHe"
        assert again.fingerprint() == vocabulary.fingerprint()

    def test_lines_in_bulk_are_lines_one_by_one(self):
        vocabulary = self.vocabulary()
        lines = ["He can't go.", "", "left <eos> He"]
        each = [i for line in lines for i in (*vocabulary.encode(vocabulary.tokens(line)), 1)]
        assert vocabulary.line_encoder()(lines).tolist() == each

    def test_fingerprints_tell_the_setting(self):
        words = ["<unk>", "<eos>", "a"]
        assert Vocabulary(words).fingerprint() != Vocabulary(words, None, Words("penn")).fingerprint()

    def test_a_file_without_the_key_reads_as_none(self, tmp_path):
        Vocabulary(["<unk>", "<eos>", "a."]).save(tmp_path / "vocabulary.json")
        assert "tokenize" not in (tmp_path / "vocabulary.json").read_text()
        assert Vocabulary.load(tmp_path / "vocabulary.json").tokens("a.") == ["a."]

    def test_an_unknown_setting_in_the_file_is_refused(self, tmp_path):
        path = tmp_path / "vocabulary.json"
        path.write_text('{"level": "word", "tokenize": "pen", "words": ["<unk>", "<eos>"]}')
        with pytest.raises(DataError, match="must be one of none, penn, characters; got 'pen'"):
            Vocabulary.load(path)


def test_the_cache_of_tokens_is_made_again_for_another_setting(tmp_path):
    for split in ("train", "valid"):
        (tmp_path / f"{split}.txt").write_text("It ends.\n")
    files = find_splits(tmp_path)
    sizes = []
    for tokenize in ("none", "penn", "none"):
        corpus = Corpus(files, min_count=1, tokenize=tokenize)
        corpus.cache(tmp_path / "tokens")
        sizes.append(len(corpus["train"]))
    assert sizes == [3, 4, 3]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tokenize": "pen"}, "data.tokenize: must be one of none, penn, characters; got 'pen'. Did you mean 'penn'?"),
        (
            {"tokenize": "penn", "level": "char"},
            "data.tokenize: works only at level word; got tokenize=penn with level=char",
        ),
    ],
)
def test_settings_that_are_refused(given, told):
    with pytest.raises(ArgumentError, match=re.escape(told)):
        DataConfig(**given)


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


def test_a_prompt_s_mark_is_not_written_again(vocabulary):
    tokens = ["more", "na", "`", "do", "."]
    for cut in (2, 3, 4):
        pieces = Pieces(vocabulary, tokens[:cut])
        added = "".join(map(pieces.add, tokens[cut:])) + pieces.rest()
        assert vocabulary.text(tokens).endswith(added) and added.strip() == "".join(tokens[cut:]).replace("`", "'")


def test_a_mark_that_opens_waits_for_its_word(vocabulary):
    pieces = Pieces(vocabulary, ["said", ","])
    assert [pieces.add(token) for token in ("``", "I", "''", "he")] == ["", ' "I', '"', " he"]
    assert (pieces.add("``"), pieces.rest(), pieces.rest()) == ("", ' "', "")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("the '90s and '99 .", "the '90s and '99 ."),
        ("'90 years' he said", "'90 years ' he said"),
        ("the '1990 plan'", "the ` 1990 plan '"),
    ],
)
def test_years_keep_their_apostrophe(line, words):
    assert penn_words(line) == words.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("it cost €5, £6 or ¥7.", "it cost € 5 , £ 6 or ¥ 7 ."),
        ("he left. <eos> she came.", "he left . <eos> she came ."),
        ("etc. he left <eos> (she came.) <eos> so. did I", "etc. he left <eos> ( she came . ) <eos> so. did I"),
        ('he said " go ". then', "he said `` go '' . then"),
        ('he said " go ") then', "he said `` go '' ) then"),
    ],
)
def test_currency_sentences_inside_a_line_and_marks_before_a_closing_one(line, words):
    assert penn_words(line) == words.split()
