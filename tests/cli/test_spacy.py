"""The component of spaCy pipelines: the numbers of the command line, on disk and back, in batches and in processes."""

import importlib
import pickle
import shutil
import sys
from importlib.metadata import entry_points

import pytest
from nltk.tree import Tree
from terminal import records, works

from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.training.run import load_run

spacy = pytest.importorskip("spacy", reason="no spaCy")

from spacy.tokens import Doc  # noqa: E402 - where there is one

from gatedrnn.spacy_component import Component, component  # noqa: E402

LINES = ["the pilot laughs", "The PILOT thinks that the ( old ) zebra sleeps", "yes", "Mary sleeps"]
TEXT = "the old pilot, he laughs.\n\n  Mary doesn't sleep 4711 times! Strings. A "


def pipeline(run, language="en", **config):
    nlp = spacy.blank(language)
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("gatedrnn", config={"run": str(run)} | config)
    return nlp


def of_lines(nlp, lines=LINES):
    """One document, whose tokens are the words of lines and whose sentences are the lines."""
    words = [word for line in lines for word in line.split()]
    starts = [k == 0 for line in lines for k in range(len(line.split()))]
    return nlp.get_pipe("gatedrnn")(Doc(nlp.vocab, words=words, sent_starts=starts))


def values(doc, name):
    return [token._.get(name) for token in doc]


@pytest.fixture
def text(tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{line}\n" for line in LINES))
    return tmp_path / "a.txt"


@pytest.mark.parametrize(
    ("language", "config", "said", "parsed"),
    [
        *((language, {}, [], []) for language in ("en", "de", "xx")),
        ("en", {"layer": 1, "mapping": "lower"}, ["--mapping", "lower"], ["--layer", 1, "--mapping", "lower"]),
        (
            "en",
            {"layer": "mean", "gate": "master_input", "algorithm": "biased"},
            [],
            ["--layer", "mean", "--gate", "master_input", "--algorithm", "biased"],
        ),
    ],
    ids=["en", "de", "xx", "one layer", "biased"],
)
def test_numbers_are_those_of_the_commands(work, text, language, config, said, parsed):
    doc = of_lines(pipeline(work / "run", language, **config))
    for sentence, found in zip(doc.sents, records("surprisal", work / "run", text, *said), strict=True):
        assert values(sentence, "surprisal") == pytest.approx(found["surprisal_bits"][:-1], abs=1e-5)
    for sentence, found in zip(doc.sents, records("parse", work / "run", text, *parsed), strict=True):
        assert values(sentence, "distance") == pytest.approx(found["distances"], abs=1e-6)
        assert sentence._.parse_string == found["tree"]


def test_a_named_gate_is_read_where_there_are_no_trees_too(levels):
    gates = ("master_forget", "master_input", "both")
    docs = [pipeline(levels / "char", gate=gate)("the pilot laughs") for gate in gates]
    erased, written, both = ([token._.distance for token in doc] for doc in docs)
    assert both == pytest.approx([(a + b) / 2 for a, b in zip(erased, written, strict=True)], abs=1e-6)
    assert erased != pytest.approx(written, abs=1e-3)


@pytest.mark.parametrize("level", ["char", "subword"])
def test_pieces_are_summed_to_tokens(levels, tmp_path, level):
    sentence = "the old pilot, he laughs."
    doc = pipeline(levels / level)(sentence)
    assert len(doc) == 7
    (tmp_path / "a.txt").write_text(sentence + "\n")
    (found,) = records("surprisal", levels / level, tmp_path / "a.txt")
    bits = values(doc, "surprisal")
    assert [*bits[:2], sum(bits[2:4]), bits[4], sum(bits[5:])] == pytest.approx(found["surprisal_bits"][:-1], abs=1e-5)
    assert [values(doc, "distance")[k] for k in (0, 1, 2, 4, 5)] == pytest.approx(found["distances"][:-1], abs=1e-6)
    with pytest.raises(ArgumentError, match=f"needs a run of words; got level {level}"):
        _ = next(doc.sents)._.parse_string


def test_constituents_are_those_of_the_tree(work):
    for sentence in of_lines(pipeline(work / "run")).sents:
        tree = Tree.fromstring(sentence._.parse_string)
        each = list(sentence._.constituents)
        escaped = [[w.text.replace("(", "-LRB-").replace(")", "-RRB-") for w in span] for span in each]
        assert escaped == [node.leaves() for node in tree.subtrees()]
        for span, node in zip(each, tree.subtrees(), strict=True):
            assert span._.labels == ("X",) and span._.parse_string == " ".join(str(node).split())
            assert next(inner.text for inner in span._.constituents) == span.text
        if len(sentence) > 2:
            spans = {(span.start, span.end) for span in each}
            one = next(k for k in range(sentence.start, sentence.end - 2) if (k, k + 2) not in spans)
            other = sentence.doc[one : one + 2]
            assert other._.labels == ()
            with pytest.raises(ArgumentError, match="must be a constituent of its sentence"):
                _ = other._.parse_string
    doc = sentence.doc
    assert doc[0 : len(doc)]._.labels == ()


def test_white_space_is_no_word(work):
    doc = pipeline(work / "run")(TEXT)
    assert any(token.is_space for token in doc)
    for token in doc:
        assert (token._.surprisal is None) == (token._.distance is None) == token.is_space
    for sentence in doc.sents:
        words = [token.text for token in sentence if not token.is_space]
        assert Tree.fromstring(sentence._.parse_string).leaves() == words
        assert next(sentence._.constituents) == sentence and sentence._.labels == ("X",)


def test_short_documents(work):
    nlp = pipeline(work / "run")
    assert len(nlp("")) == 0
    assert values(nlp("  \n "), "surprisal") == [None]
    (one,) = nlp("pilot").sents
    assert one._.parse_string == "(X pilot)" and list(one._.constituents) == [one] and one[0]._.surprisal > 0
    (blank,) = nlp("  \n ").sents
    assert blank._.parse_string == "" and list(blank._.constituents) == [] and blank._.labels == ()


def test_a_batch_is_read_in_one_call(work, monkeypatch):
    nlp, calls, read = pipeline(work / "run"), [], component.read
    texts = [TEXT, "", "Mary sleeps.", TEXT * 2, "  "] * 3
    alone = [values(nlp(text), "surprisal") for text in texts]
    monkeypatch.setattr(component, "read", lambda *given, **how: calls.append(1) or read(*given, **how))
    for doc, wanted in zip(nlp.pipe(texts, batch_size=5), alone, strict=True):
        assert values(doc, "surprisal") == [None if v is None else pytest.approx(v, abs=1e-5) for v in wanted]
    assert len(calls) == 3


def test_processes(work):
    nlp = pipeline(work / "run")
    one = [(values(doc, "surprisal"), [s._.parse_string for s in doc.sents]) for doc in nlp.pipe([TEXT] * 6)]
    two = [(doc, *one[0]) for doc in nlp.pipe([TEXT] * 6, n_process=2, batch_size=2)]
    for doc, bits, trees in two:
        assert values(doc, "surprisal") == [None if v is None else pytest.approx(v, abs=1e-5) for v in bits]
        assert [s._.parse_string for s in doc.sents] == trees


def test_boundaries_are_asked_for(work):
    nlp = spacy.blank("en")
    nlp.add_pipe("gatedrnn", config={"run": str(work / "run")})
    with pytest.raises(ArgumentError, match=r"needs sentence boundaries; got 'a b'.*add_pipe\(.sentencizer.\)"):
        nlp("a b")
    failed = []
    nlp.set_error_handler(lambda name, proc, docs, error: failed.append((name, len(docs))))
    assert list(nlp.pipe(["a b", "c d"])) == [] and failed == [("gatedrnn", 2)]
    with pytest.raises(ArgumentError, match="needs a document that the component has processed"):
        _ = spacy.blank("en")("a b")[:]._.parse_string


@pytest.mark.parametrize("name", ["run", "subword", "int8"])
def test_a_pipeline_takes_its_run_along(levels, tmp_path, name):
    own = tmp_path / "own"
    if name == "int8":
        works("compress", levels / "run", "--method", "int8", "--out", own)
    else:
        shutil.copytree(levels / name, own)
    nlp = pipeline(own, layer=1)
    wanted = values(nlp(TEXT), "surprisal"), values(nlp(TEXT), "distance")
    nlp.to_disk(tmp_path / "pipeline")
    nlp.to_disk(tmp_path / "pipeline")  # over it
    weights = (own / "model.safetensors").read_bytes()
    shutil.rmtree(own)
    assert (tmp_path / "pipeline" / "gatedrnn" / "model.safetensors").read_bytes() == weights
    assert str(levels) not in (tmp_path / "pipeline" / "gatedrnn" / "config.yaml").read_text()
    assert load_run(tmp_path / "pipeline" / "gatedrnn").config.data.level in ("word", "subword")
    empty = pipeline(tmp_path / "nowhere", layer=1)
    for again in (spacy.load(tmp_path / "pipeline"), pickle.loads(pickle.dumps(nlp)), empty.from_bytes(nlp.to_bytes())):
        doc = again(TEXT)
        assert (values(doc, "surprisal"), values(doc, "distance")) == wanted
    doc = Doc(nlp.vocab).from_bytes(nlp(TEXT).to_bytes())
    assert values(doc, "surprisal") == wanted[0]


def test_other_files_are_left_alone(work, tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match="must be a new or empty folder"):
        Component("gatedrnn", str(work / "run")).to_disk(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_without_master_gates_there_is_surprisal_alone(work, text):
    doc = of_lines(pipeline(work / "lstm"))
    bits = [b for one in records("surprisal", work / "lstm", text) for b in one["surprisal_bits"][:-1]]
    assert values(doc, "surprisal") == pytest.approx(bits, abs=1e-5) and set(values(doc, "distance")) == {None}
    with pytest.raises(ArgumentError, match="needs a run of a cell with master gates; got lstm"):
        _ = next(doc.sents)._.parse_string
    with pytest.raises(ArgumentError, match=r"gatedrnn.layer: needs a cell with master gates; got cell 'lstm'"):
        Component("gatedrnn", str(work / "lstm"), layer=1)


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"algorithm": "both"}, "gatedrnn.algorithm: must be one of .*got 'both'"),
        ({"gate": "forget"}, "gatedrnn.gate: must be one of .*got 'forget'"),
        ({"mapping": "upper"}, "gatedrnn.mapping: must be one of .*got 'upper'"),
        ({"layer": "two"}, "got 'two'"),
        ({"layer": 3}, "got 3"),
    ],
)
def test_unknown_choices(work, config, told):
    with pytest.raises(ArgumentError, match=told):
        pipeline(work / "run", **config)("the pilot")


def test_a_run_that_is_not_there(tmp_path):
    with pytest.raises(CheckpointError, match="nowhere: must be a run's folder"):
        pipeline(tmp_path / "nowhere")("the pilot")


def test_a_pipeline_finds_it_without_an_import(monkeypatch):
    (entry,) = entry_points(group="spacy_factories", name="gatedrnn")
    assert entry.load() is component.make
    monkeypatch.delitem(sys.modules, "gatedrnn.spacy_component")
    spacy.blank("de")
    assert "gatedrnn.spacy_component" in sys.modules


def test_without_the_library_there_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "spacy", None)
    monkeypatch.delitem(sys.modules, "gatedrnn.spacy_component")
    with pytest.raises(ArgumentError, match=r"needs the library spaCy.*pip install 'gatedrnn\[spacy\]'"):
        importlib.import_module("gatedrnn.spacy_component")
