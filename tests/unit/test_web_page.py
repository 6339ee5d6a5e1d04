"""The page's own arithmetic under node: text, trees and numbers as Python computes them."""

import json
import math
import random
import shutil
import subprocess

import pytest
from pages import copy_page

from gatedrnn.data import Vocabulary, align
from gatedrnn.data.config import MAPPINGS
from gatedrnn.data.levels import Characters, Words
from gatedrnn.data.penn import penn_text, penn_words
from gatedrnn.data.subwords import Subwords
from gatedrnn.trees import brackets, distances_to_spans

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="needs node, which runs the page's JavaScript")

LINES = [
    "the cat sleeps .",
    "  The  CAT\tsleeps 42 times\u00a0.  ",
    "",
    "   ",
    "naïve café 日本語 text İstanbul ΣΑΣ x² ①",
    "it's we'll they've I'm  don't 's  3rd!?  a\u2028b\u0085c\x1cd \ufeffx",
    "<unk> the <eos> cat<eos>sleeps <unk><unk>",
    "🙂👩‍👩‍👧 e\u0301 (a) [b] \\ \u3000wide",
    "a    b     c  ",
    "กข\u200bคง \u200dx \u2066b\u2069 ไม่มี \U000e0067",
    "$5.00 1,234.5 www.example.org/?q=1 __init__ 12th ٣٤ Ⅷ",
]
HARNESS = """
import { readFileSync } from "node:fs";
import { isBlank, isDigit } from "./letters.js";
import { pennText, pennWords } from "./penn.js";
import { align, textOf, vocabularyOf } from "./text.js";
import { brackets, nodesOf, spansOf } from "./tree.js";
import { bitsOf, distanceOf, numbersOf, sample } from "./numbers.js";
const given = JSON.parse(readFileSync(0, "utf8"));
console.log(JSON.stringify(%s));
"""


@pytest.fixture(scope="module")
def javascript(tmp_path_factory):
    """`javascript(expression, given)`: its value, with `given` and the page's functions at hand."""
    folder = copy_page(tmp_path_factory.mktemp("page"))

    def run(expression, given):
        (folder / "harness.js").write_text(HARNESS % expression)
        ran = subprocess.run(["node", folder / "harness.js"], input=json.dumps(given), capture_output=True, text=True)
        assert ran.returncode == 0, ran.stderr
        return json.loads(ran.stdout)

    return run


def vocabulary_of(level):
    words = ["the", "cat", "sleeps", ".", "N", "café", "i̇stanbul", "σας", "日本語", "it's"]
    if level in ("word", "penn"):
        return Vocabulary(["<unk>", "<eos>", *words], splitter=Words("penn" if level == "penn" else "none"))
    if level == "characters":
        return Vocabulary(["<unk>", "<eos>", *"abcdehlnpstT.日🙂"], splitter=Words("characters"))
    if level == "char":
        return Vocabulary(["<unk>", "<eos>", *" abcdehlnpstT.日🙂"], splitter=Characters())
    pytest.importorskip("tokenizers", reason="needs tokenizers, of the extra hf")
    return Vocabulary.of(Subwords.learn([[*LINES, "the cat sleeps and the cats sleep"] * 3], 330))


@pytest.mark.parametrize("level", ["word", "penn", "characters", "char", "subword"])
def test_lines_are_read_as_in_python(javascript, level):
    vocabulary = vocabulary_of(level)
    tokenizer = json.loads(vocabulary.splitter.settings) if isinstance(vocabulary.splitter, Subwords) else None
    saved = {"level": vocabulary.level, "tokenize": vocabulary.tokenize, "words": vocabulary.words}
    given = {"saved": saved, "tokenizer": tokenizer, "lines": LINES}
    given["mappings"] = MAPPINGS
    made = "((v) => given.mappings.map((m) => given.lines.map((line) => align(v, line, m))))"
    found = javascript(f"{made}(vocabularyOf(given.saved, given.tokenizer))", given)
    for mapping, lines in zip(MAPPINGS, found, strict=True):
        for line, got in zip(LINES, lines, strict=True):
            expected = align(vocabulary, line, mapping)
            assert (got["words"], got["ids"], got["owners"]) == (expected.words, expected.ids, expected.owners), line
    tokens = [[*vocabulary.tokens(line), "<eos>", "<unk>", vocabulary.words[5]] for line in LINES]
    texts = javascript(
        "((v) => given.tokens.map((each) => textOf(v, each)))(vocabularyOf(given.saved, given.tokenizer))",
        given | {"tokens": tokens},
    )
    assert texts == [vocabulary.text(each) for each in tokens]


def test_a_long_word_of_many_merges_is_read_as_in_python_and_at_once(javascript):
    draw = random.Random(1)
    text = ["".join(draw.choices("abcdundefine", k=9)) for _ in range(300)]
    vocabulary = vocabulary_of("subword").of(Subwords.learn([text], 500))
    lines = ["".join(text)[:2000], "undefined", ""]
    given = {"saved": {"level": "subword", "words": vocabulary.words}, "lines": lines}
    given["tokenizer"] = json.loads(vocabulary.splitter.settings)
    made = "[given.lines.map((line) => align(v, line).ids), performance.now()]"
    found, milliseconds = javascript(f"((v) => {made})(vocabularyOf(given.saved, given.tokenizer))", given)
    assert found == [align(vocabulary, line).ids for line in lines]
    assert milliseconds < 5000  # it was 25 s


def test_blanks_and_digits_are_pythons(javascript):
    codes = [code for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    found = javascript(
        """given.reduce(([blank, digit], code) => {
  const c = String.fromCodePoint(code);
  if (isBlank(c)) blank.push(code);
  if (isDigit(c)) digit.push(code);
  return [blank, digit];
}, [[], []])""",
        codes,
    )
    assert found[0] == [code for code in codes if chr(code).isspace()]
    plane = [code for code in found[1] if code < 0x10000]  # beyond it, Unicode versions differ in their newest scripts
    assert plane == [code for code in codes if code < 0x10000 and chr(code).isdigit()]


SPOKEN = [
    "I can't say: \u201cgonna\u201d isn't wanna. It's Mr. Smith's, he'll \u2018do\u2019 it...",
    '"Well," she said, "that\'s $5.00 (or 10%) -- d\'ye see?" ',
    "the cat sleeps .  <unk> n't <eos> Another one. ",
    "'Twas the '90s; rock 'n' roll, more'n that! [sic] {a} -LRB- b -RRB- ''",
    "\u00bfQu\u00e9 tal? \u00abBien\u00bb \u20ac3 \uff08\u65e5\u672c\uff09\u3002 a:b 12:30, 1,000 x,y e.g. U.S. etc...",
    "g\u0131mme G\u0130MME '\u0130s 't\u0131s T\u0131S can\u017f\u2019\u017f",
    "cannot gimme lemme gotta don't I'd've y'all's \" a \" b \"",
    "",
    "a\u2026b\u2013c --- ** & @ # 50% \u00b2% .. . ? .)",
    "A (constructor) has toString, valueOf and hasOwnProperty: $constructor!",
]


def test_the_penn_treebanks_words_are_pythons(javascript):
    draw = random.Random(2)
    parts = [part for line in [*SPOKEN, *LINES] for part in line.split()]
    lines = [
        *SPOKEN,
        *LINES,
        *("".join(draw.choice([" ", " ", ""]) + draw.choice(parts) for _ in range(9)) for _ in range(400)),
    ]
    found = javascript("given.map((line) => [pennWords(line), pennText(pennWords(line))])", lines)
    for line, (words, text) in zip(lines, found, strict=True):
        assert words == penn_words(line), line
        assert text == penn_text(words), line


def test_trees_are_pythons(javascript):
    draw = random.Random(1)
    sentences = [[draw.choice([0.1, 0.2, 0.3, draw.random()]) for _ in range(n)] for n in [1, 2, 3, 5, 9, 40] * 5]
    found = javascript(
        """given.map((d) => [spansOf(d), brackets(spansOf(d), d.map((_, k) => `w${k}(\\\\`)),
                     nodesOf(spansOf(d), d.length).level])""",
        sentences,
    )
    for distances, (spans, text, level) in zip(sentences, found, strict=True):
        expected = distances_to_spans(distances, "unbiased")
        assert {tuple(span) for span in spans} == expected
        assert text == brackets(expected, [f"w{k}(\\" for k in range(len(distances))])
        deepest = max((sum(i <= k < j for i, j in expected) for k in range(len(distances))), default=0)
        assert level == (deepest if len(distances) > 1 else 0)
    odd = ["a\ufeffb", "a\x1cb", "a\x85b", "\ufeff", " "]
    assert javascript("given.map((word) => brackets([], [word]))", odd) == [brackets(set(), [word]) for word in odd]


def test_bits_and_distances(javascript):
    logits = [[3.0, -1.0, 700.0, 0.5], [0.0, 0.0, 0.0, 0.0], [-900.0, -901.0, -905.0, -1000.0]]
    gates = "['master_forget', 'master_input', 'both']"
    by_gate = f"{gates}.map((gate) => distanceOf({{ forget: [9, 9, 0.25, 0.5], input: [9, 9, 1, 0.5] }}, gate, 1, 2))"
    found = javascript(f"[given.map((_, row) => bitsOf(given.flat(), row, 4, 1)), {by_gate}]", logits)
    expected = []
    for row in logits:
        most = max(row)
        expected.append((math.log(sum(math.exp(x - most) for x in row)) + most - row[1]) / math.log(2))
    assert found[0] == pytest.approx(expected, rel=1e-12) and found[1] == [0.625, 0.75, 0.6875]


def test_sampling_is_seeded_greedy_at_zero_and_follows_the_probabilities(javascript):
    logits = [0.0, 1.0, 2.5, 1.0]
    found = javascript(
        """(() => {
  const many = (seed, temperature, banned) => {
    const draw = numbersOf(seed);
    return Array.from({ length: 4000 }, () => sample(given, temperature, draw, banned));
  };
  return { one: many(7, 1), again: many(7, 1), other: many(8, 1), greedy: many(1, 0), banned: many(1, 1, 2), nan: many(1, 0, 2) };
})()""",
        logits,
    )
    assert found["one"] == found["again"] != found["other"]
    assert set(found["greedy"]) == {2} and 2 not in found["banned"] and set(found["nan"]) == {1}
    weights = [math.exp(x) for x in logits]
    for token, weight in enumerate(weights):
        assert found["one"].count(token) / 4000 == pytest.approx(weight / sum(weights), abs=0.03)
