"""A translation model, its search, and the task that trains one."""

import gzip
import itertools
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from test_inference import ends_in_the_same_bits
from test_resume import Quiet
from torch.nn import functional as F

from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.data.config import ParallelDataConfig
from gatedrnn.data.parallel import TextPair, encoded, read_parallel, read_split, read_text_pair
from gatedrnn.data.ragged import within
from gatedrnn.data.verb_final import WORDS, verb_final, write_parallel
from gatedrnn.models import TranslationConfig, TranslationModel
from gatedrnn.models.beam import Beam, translate
from gatedrnn.tasks import Translation
from gatedrnn.tasks.config import TrainingConfig
from gatedrnn.tasks.translation import Languages, _metrics, _scores, translations
from gatedrnn.training.config import RunConfig
from gatedrnn.training.loop import train
from gatedrnn.training.run import load_run, read_metrics

DATA = ParallelDataConfig(level="word", joint=False, min_count=1)
MODEL = TranslationConfig(embedding_size=8, hidden_sizes=(8, 6), decoder_sizes=(10, 7))
TRAINING = TrainingConfig(epochs=3, batch_size=16, learning_rate=0.01, device="cpu", evaluation_batch_size=7)
NOUNS = ["cat", "dog", "owl", "fox"]


def text(count, seed):
    """Pairs whose target says the source backwards, in capitals."""
    draw = np.random.default_rng(seed)
    source = [" ".join(draw.choice(NOUNS, draw.integers(1, 6))) for _ in range(count)]
    return TextPair(source, [" ".join(reversed(line.upper().split())) for line in source])


@pytest.fixture
def task():
    return Translation({"train": text(90, 1), "valid": text(40, 2), "test": text(40, 3)}, DATA)


def config_for(**training):
    return RunConfig(DATA, MODEL, replace(TRAINING, **training), "translation")


def model_of(cell="lstm", **settings):
    torch.manual_seed(1)
    config = {"cell": cell, "vocabulary_size": 9, "target_size": 7, "tied": False, **settings}
    return TranslationModel(replace(MODEL, **config)).eval()


def batch(*lengths, size=9, seed=0):
    """Ids [T, B] that end in `<eos>`, and their lengths."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, size, (max(lengths), len(lengths)), generator=draw)
    for b, length in enumerate(lengths):
        ids[length - 1 :, b] = 1
    return ids, torch.tensor(lengths)


@pytest.mark.parametrize("cell", ["lstm", "gru", "onlstm", "g2lstm", "rnn"])
def test_scores_are_those_of_each_sentence_by_itself(cell):
    options = {"hidden_sizes": (8, 6), "options": {"chunk_size": 1}} if cell == "onlstm" else {}
    model, (source, lengths) = model_of(cell, **options), batch(5, 1, 3)
    inputs, given = batch(2, 6, 4, size=7)
    scores = model(source, lengths, inputs, given)
    attention = model.decode(model.encode(source, lengths), inputs, given).attention
    assert scores.shape == (6, 3, 7) and attention.shape == (6, 3, 5)
    for b in range(3):
        alone = model(
            source[: lengths[b], b : b + 1], lengths[b : b + 1], inputs[: given[b], b : b + 1], given[b : b + 1]
        )
        torch.testing.assert_close(scores[: given[b], b], alone[:, 0])
        assert attention[: given[b], b, lengths[b] :].count_nonzero() == 0
    torch.testing.assert_close(attention.sum(-1), torch.ones(6, 3))


def test_attention_is_luong_s_general_one_above_the_first_layer():
    """Every equation again, a step and a sentence at a time, with torch's own layers."""
    model = model_of(decoder_sizes=(10,)).double()
    source, lengths = batch(4)
    encoder = []
    for layer, ours, size in zip(("one", "two"), model.encoder.layers, ((8, 8), (16, 6)), strict=True):
        reference = torch.nn.LSTM(*size, bidirectional=layer == "one").double()
        reference.load_state_dict(ours.state_dict())
        encoder.append(reference)
    memory = encoder[1](encoder[0](model.encoder.embedding(source))[0])[0][:, 0]
    decoder = torch.nn.LSTMCell(8, 10).double()
    decoder.load_state_dict({name[:-3]: value for name, value in model.layers[0].state_dict().items()})
    h, c = torch.tanh(model.bridges[0](memory.mean(0)))[None], torch.zeros(1, 10, dtype=torch.float64)
    inputs = torch.tensor([1, 4, 2])
    scores = model(source, lengths, inputs[:, None])[:, 0]
    for token, found in zip(inputs, scores, strict=True):
        h, c = decoder(model.embedding(token)[None], (h, c))
        shares = torch.stack([h[0] @ model.keys.weight @ one for one in memory]).div(math.sqrt(10)).softmax(0)
        top = torch.tanh(model.output.weight @ torch.cat([h[0], shares @ memory]) + model.output.bias)
        torch.testing.assert_close(found, model.decoder.weight @ top + model.decoder.bias)


@pytest.mark.parametrize("cell", ["lstm", "onlstm", "gru"])
def test_one_step_at_a_time_gives_what_all_steps_at_once_give(cell):
    model, (source, lengths) = model_of(cell, options={"chunk_size": 1} if cell == "onlstm" else {}), batch(5, 2)
    inputs, _ = batch(4, 4, size=7)
    whole, state, each = model.encode(source, lengths), model.encode(source, lengths), []
    for step in inputs:
        found = model.decode(state, step[None])
        state = found.source
        each.append(found.scores)
    torch.testing.assert_close(torch.cat(each), model.decode(whole, inputs).scores)


@pytest.mark.parametrize(("tied", "shared"), [(True, True), (True, False), (False, True), (False, False)])
def test_a_model_is_saved_and_loaded_with_what_is_shared(tied, shared, tmp_path):
    model = model_of(target_size=9, tied=tied, shared_embedding=shared)
    tables = {id(each) for each in (model.encoder.embedding.weight, model.embedding.weight, model.decoder.weight)}
    assert len(tables) == 3 - tied - shared
    model.save_pretrained(tmp_path)
    again = TranslationModel.from_pretrained(tmp_path)
    assert (again.decoder.weight is again.embedding.weight) == tied
    assert (again.embedding.weight is again.encoder.embedding.weight) == shared
    given = (*batch(5, 2), *batch(3, 3))
    assert torch.equal(again(*given), model(*given))


def test_one_vocabulary_is_needed_to_share_it():
    with pytest.raises(ArgumentError, match=r"model\.shared_embedding: needs one vocabulary.*got 9 and 7 tokens"):
        model_of(shared_embedding=True)
    with pytest.raises(ArgumentError, match=r"model\.target_size: must be set to build a model"):
        TranslationModel(replace(MODEL, vocabulary_size=9))


def log_p(model, source, ids):
    """log P of a translation and of its end, all at once."""
    scores = model(source[:, None], torch.tensor([len(source)]), torch.tensor([1, *ids])[:, None])[:, 0].clone()
    scores[:, 0] = -torch.inf  # `<unk>` is never written
    return float(scores.log_softmax(-1).gather(1, torch.tensor([*ids, 1])[:, None]).sum())


@torch.no_grad()
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_beam_that_holds_all_finds_the_best_of_all(alpha):
    model = model_of(target_size=4).double()
    torch.nn.init.normal_(model.decoder.weight, std=3)
    source, lengths = batch(3)
    limit = 3  # of which the last is the end
    beam = Beam(size=40, alpha=alpha, n_best=3, ratio=0.0, extra=limit)
    every = [ids for n in range(limit + 1) for ids in itertools.product((2, 3), repeat=n)]
    scored = {ids: log_p(model, source[:, 0], ids) / ((5 + len(ids) + 1) / 6) ** alpha for ids in every}
    best = sorted(scored, key=lambda ids: -scored[ids])[:3]
    (found,) = translate(model, source, lengths, beam)
    assert [tuple(one.ids) for one in found] == best
    assert [one.score for one in found] == pytest.approx([scored[ids] for ids in best])


@pytest.mark.parametrize("cell", ["lstm", "gru", "onlstm"])
@pytest.mark.parametrize("size", [1, 4])
def test_a_batch_is_translated_as_each_sentence_by_itself(cell, size):
    options = {"options": {"chunk_size": 1}} if cell == "onlstm" else {}
    model, (source, lengths) = model_of(cell, target_size=12, **options).double(), batch(5, 1, 7, 3, 5)
    beam = Beam(size=size, n_best=size)
    together = translate(model, source, lengths, beam)
    for b, found in enumerate(together):
        ((*alone,),) = translate(model, source[: lengths[b], b : b + 1], lengths[b : b + 1], beam)
        assert [(one.ids, one.alignment) for one in found] == [(one.ids, one.alignment) for one in alone]
        assert [one.score for one in found] == pytest.approx([one.score for one in alone], abs=1e-12)
        assert len({tuple(one.ids) for one in found}) == size
        assert [one.score for one in found] == sorted((one.score for one in found), reverse=True)
        assert all(0 not in one.ids and len(one.ids) <= 2 * lengths[b] + 10 for one in found)
        assert all(len(one.alignment) == len(one.ids) and max(one.alignment, default=0) < lengths[b] for one in found)


@torch.no_grad()
def test_scores_are_log_probabilities_over_the_penalty_and_greedy_takes_the_likeliest():
    model, (source, lengths) = model_of().double(), batch(5)
    for one in translate(model, source, lengths, Beam(size=4, n_best=4, alpha=0.6))[0]:
        assert one.log_probability == pytest.approx(log_p(model, source[:, 0], one.ids))
        assert one.score == pytest.approx(one.log_probability / ((5 + len(one.ids) + 1) / 6) ** 0.6)
    ((greedy,),) = translate(model, source, lengths, Beam(size=1))
    for k, token in enumerate([*greedy.ids, 1][: 2 * 5 + 10]):
        scores = model(source, lengths, torch.tensor([1, *greedy.ids[:k]])[:, None])[-1, 0]
        assert int(scores[1:].argmax()) + 1 == token


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"size": 0}, "beam.size"), ({"n_best": 6}, "at most the beam's size"), ({"alpha": -1.0}, "beam.alpha"),
     ({"alpha": float("nan")}, "beam.alpha"), ({"alpha": 10.5}, "beam.alpha"), ({"n_best": 0}, "beam.n_best")],
)  # fmt: skip
def test_bad_beams(settings, words):
    with pytest.raises(ArgumentError, match=words):
        Beam(**settings)


def test_smoothed_labels_are_torch_s(task):
    config = task.complete(MODEL)
    model, given = TranslationModel(config).eval(), task.batches(TRAINING, 1)[0]
    loss = task.loss(model, TRAINING, given, None, given.count, torch.device("cpu"))
    scores = model(*map(torch.from_numpy, given.arrays[:4])).flatten(0, 1)
    targets = torch.from_numpy(given.targets_TB).flatten()
    torch.testing.assert_close(loss.nats, F.cross_entropy(scores, targets))
    torch.testing.assert_close(loss.nats + loss.penalty, F.cross_entropy(scores, targets, label_smoothing=0.1))
    grads = []
    for total in (loss.nats + loss.penalty, F.cross_entropy(scores, targets, label_smoothing=0.1)):
        grads.append(torch.autograd.grad(total, list(model.parameters()), retain_graph=True))
    for ours, torchs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, torchs, atol=1e-6, rtol=1e-4)
    plain = TranslationModel(replace(config, label_smoothing=0.0)).eval()
    assert task.loss(plain, TRAINING, given, None, given.count, torch.device("cpu")).penalty == 0


def test_a_training_cut_off_again_and_again_ends_in_the_same_bits(task, tmp_path):
    ends_in_the_same_bits(config_for(checkpoint_minutes=1e-9), task, tmp_path)


def test_averaging_and_finetuning_know_no_task(task, tmp_path):
    config = config_for(optimizer="sgd", average_epoch=1, finetune_epochs=1, epochs=2, learning_rate=1.0)
    assert train(config, task, tmp_path / "run", Quiet()).epochs == 3
    assert [record["averaged"] for record in read_metrics(tmp_path / "run")] == [False, True, True]


def test_it_learns_to_say_a_sentence_backwards(tmp_path):
    task = Translation({"train": text(600, 1), "valid": text(60, 2)}, DATA)
    model = replace(MODEL, hidden_sizes=(24,), decoder_sizes=(24,), embedding_size=16, label_smoothing=0.0)
    model = replace(model, embedding_dropout=0.0, input_dropout=0.0, hidden_dropout=0.0, output_dropout=0.0)
    train(replace(config_for(epochs=12), model=model), task, tmp_path, Quiet())
    run = load_run(tmp_path, "translation")
    rated, tokens = Translation.rate(run.model, run.vocabulary, text(60, 2), 20)
    assert rated > 90 and tokens == sum(len(line.split()) + 1 for line in text(60, 2).source)
    few, read = Translation.rate(run.model, run.vocabulary, text(60, 2), 1, 10)
    assert 0 <= few <= 100.001 and 10 <= read < 17
    found = list(translations(run.model, run.vocabulary, ["cat dog", "", " ", "owl"], Beam()))
    assert [source for source, _ in found] == [["cat", "dog"], [], [], ["owl"]]
    assert [len(best) for _, best in found] == [1, 0, 0, 1]
    assert run.vocabulary.written(found[3][1][0].ids) == "OWL"


def test_gates_are_read_off_encoder_and_decoder(task):
    model = TranslationModel(task.complete(replace(MODEL, cell="onlstm", options={"chunk_size": 1}))).eval()
    pair, names = text(20, 4), ["encoder 1 forward", "encoder 1 backward", "encoder 2", "decoder 1", "decoder 2"]
    batches = list(Translation.gates(model, task.languages, pair, 6))
    assert [[layer.name for layer in layers] for layers in batches] == 4 * [names]
    read = [sum(len(layers[k].trace_MN["forget_gate"]) for layers in batches) for k in range(5)]
    tokens = sum(len(line.split()) + 1 for line in pair.source)
    assert read == 5 * [tokens]
    found = Translation.gates_by_word(model, task.languages, "cat dog", "exact")
    assert found.words == ["cat", "dog", "<eos>"] and found.names == ["1 forward", "1 backward", "2"]
    assert found.translation is not None and found.attention is not None
    assert len(found.attention) == len(found.translation.words) and found.translation.words[-1] == "<eos>"
    assert all(len(row) == 3 and sum(row) == pytest.approx(1) for row in found.attention)
    assert all(len(values) == 3 for layer in found.layers for values in layer.values())
    alone = Translation.gates(model, task.languages, TextPair(["cat dog"], ["CAT"]), 1)
    values = next(alone)[1].trace_MN["input_gate"]  # backward, in the order of the words
    assert found.layers[1]["input_gate"] == pytest.approx(values.double().mean(-1).tolist(), abs=1e-6)


def test_bleu_is_sacrebleu_s_with_its_signature():
    found = _scores(_metrics("none"), ["a small cat sleeps"], ["a small cat sleeps"])
    assert found["bleu"] == pytest.approx(100) and found["chrf"] == pytest.approx(100)
    assert "tok:none" in found["bleu_signature"] and "nc:6" in found["chrf_signature"]


@pytest.mark.parametrize(
    ("target", "expected"), [("a cat .", "none"), ("A cat.", "13a"), ("a cat", "13a"), ("who ?", "none")]
)
def test_bleu_s_tokenization_is_that_of_the_references(task, target, expected):
    model = TranslationModel(task.complete(MODEL)).eval()
    how = {"beam": Beam(size=1), "tokenize": None}
    found = Translation.evaluate(model, task.languages, TextPair(["cat"], [target]), how).record
    assert f"tok:{expected}" in found["bleu_signature"] and found["beam"] == 1
    chosen = Translation.evaluate(model, task.languages, TextPair(["cat"], [target]), how | {"tokenize": "13a"})
    assert "tok:13a" in chosen.record["bleu_signature"]


def write(folder, **files):
    for name, lines in files.items():
        stem, _, code = name.rpartition("_")
        (folder / f"{stem}.{code}").write_text("\n".join(lines) + "\n")


def test_a_folder_s_files_are_found_by_their_names(tmp_path):
    data = ParallelDataConfig(str(tmp_path), "de", "en")
    write(tmp_path, train_de=["ein Haus"], train_en=["a house"], test_2016_de=["ja"], test_2016_en=["yes"])
    with gzip.open(tmp_path / "val.tsv.gz", "wt") as stream:
        stream.write("nein\tno\n")
    found = read_parallel(tmp_path, data)
    assert {split: (pair.source, pair.target) for split, pair in found.items()} == {
        "train": (["ein Haus"], ["a house"]), "valid": (["nein"], ["no"]), "test": (["ja"], ["yes"])}  # fmt: skip
    write(tmp_path, test_de=["so"], test_en=["thus"])
    assert read_parallel(tmp_path, data)["test"].source == ["so"]
    assert read_text_pair(tmp_path / "test_2016", data).target == ["yes"]
    swapped = replace(data, columns=("en", "de"))
    assert read_text_pair(tmp_path / "val.tsv.gz", swapped) == TextPair(["no"], ["nein"])
    (tmp_path / "three.tsv").write_text("no\tsomeone\tnein\n")
    assert read_text_pair(tmp_path / "three.tsv", replace(data, columns=("en", "by", "de"))) == TextPair(
        ["nein"], ["no"]
    )


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({"train_de": ["a", "b"], "train_en": ["a"]},
         r"train\.en: must have as many lines as the other side; got 1 lines, and 2 in train\.de\. Line 2 is missing"),
        ({"train_de": ["a", "b", ""], "train_en": ["a", " ", "c"]}, "an empty side in 2 lines: 2, 3"),
        ({"train_de": ["a"]}, r"train\.de: must have train\.en beside it"),
        ({"train_fr": ["a"], "train_en": ["a"]}, r"train\.en: must have train\.de beside it"),
        ({"train_fr": ["a"]}, r"must hold train\.de and train\.en, or train\.tsv; got train\.fr"),
        ({"train_de": ["a"], "train_en": ["b"]}, r"must hold valid\.de and valid\.en"),
        ({"train_tsv": ["a\tb", "c"]}, r"train\.tsv, line 2: must have 2 columns, de and en.*got 1"),
        ({"train_tsv": ["a\tb\tc"]}, r"train\.tsv, line 1: must have 2 columns.*got 3.*data\.columns: \[de, en, other\]"),
        ({"train_de": [""], "train_en": [""]}, "an empty side in 1 lines: 1"),
    ],
)  # fmt: skip
def test_parallel_text_that_does_not_fit_is_named(files, words, tmp_path):
    write(tmp_path, **files)
    with pytest.raises(DataError, match=words):
        read_parallel(tmp_path, ParallelDataConfig(str(tmp_path), "de", "en"))


def test_other_places_of_parallel_text(tmp_path):
    data = ParallelDataConfig("x", "de", "en")
    with pytest.raises(DataError, match=r"must be a folder with train\.de and train\.en; got no such folder"):
        read_parallel(tmp_path / "none", data)
    with pytest.raises(
        DataError, match=r"must be a TSV file, or the common part of two files that end in \.de and \.en"
    ):
        read_text_pair(tmp_path / "none", data)
    assert read_split(tmp_path, "test", data) is None
    with pytest.raises(
        ArgumentError, match=r"data\.columns: must name data\.source and data\.target, each once; got en, fr"
    ):
        ParallelDataConfig("x", "de", "en", ("en", "fr"))
    with pytest.raises(ArgumentError, match=r"data\.target: must differ from data\.source"):
        ParallelDataConfig("x", "de", "de")
    with pytest.raises(
        ArgumentError, match=r"must be vf or en for the built-in pair of languages; got de to en without a folder"
    ):
        Translation.make(tmp_path, 1, ParallelDataConfig(None, "de", "en"))
    assert not list(tmp_path.iterdir())


def test_a_line_that_says_eos_is_one_sentence(task):
    lines = ["cat <eos> dog", "owl"]
    assert [len(ids) for ids in encoded(lines, task.languages.source)] == [4, 2]


def test_spaces_that_do_not_show_change_nothing(task):
    from gatedrnn.data.parallel import learn_vocabularies

    lines = ["the cat sees the owl"] * 3
    odd = ["  the cat\tsees the owl ", "the  cat sees the owl", "the cat sees   the owl\t"]
    for own in ({"level": "subword", "vocabulary_size": 270}, {"level": "word", "min_count": 1}):
        data = ParallelDataConfig("x", "de", "en", **own)
        plain, _ = learn_vocabularies(TextPair(lines, lines), data)
        spaced, _ = learn_vocabularies(TextPair(odd, odd), data)
        assert spaced.words == plain.words and encoded(odd, plain) == encoded(lines, plain)


def test_batches_are_cut_by_what_their_padding_holds():
    sizes = np.array([[5000, 3], [3, 5000], [3, 3], [1, 1]])
    found = list(within([np.arange(4), np.array([2, 3])], sizes, 10_000_000))
    assert [part.tolist() for part in found] == [[0], [1], [2], [3], [2, 3]]
    assert [part.tolist() for part in within([np.arange(2)], np.zeros((2, 1), int), 10)] == [[0, 1]]


def test_a_long_line_is_searched_beside_few_others(task, monkeypatch):
    from gatedrnn.tasks import translation as module

    sizes = {"vocabulary_size": len(task.languages.source), "target_size": len(task.languages.target)}
    model = model_of(**sizes)
    lines, seen = ["owl cat"] * 40 + ["owl " * 500, "cat"], []

    def spied(model, source_TB, source_B, beam):
        seen.append(tuple(source_TB.shape))
        return translate(model, source_TB, source_B, beam)

    expected = [best for _, best in translations(model, task.languages, lines, Beam(2, extra=2, ratio=0.0), 1)]
    monkeypatch.setattr(module, "translate", spied)
    monkeypatch.setattr(module, "_PLACES", 4000)
    found = [best for _, best in translations(model, task.languages, lines, Beam(2, extra=2, ratio=0.0))]
    assert [[one.ids for one in best] for best in found] == [[one.ids for one in best] for best in expected]
    assert max(2 * T * B for T, B in seen) <= 4000 and sum(B for _, B in seen) == 42
    monkeypatch.setattr(module, "_SCORES", 100)
    seen.clear()
    list(translations(model, task.languages, lines[:40], Beam(2, extra=2, ratio=0.0)))
    assert max(B for _, B in seen) * 2 * len(task.languages.target) <= 100


def test_pairs_that_are_all_too_long_leave_nothing_to_train_on(tmp_path):
    task = Translation({"train": text(9, 1), "valid": text(9, 2)}, replace(DATA, longest=1))
    with pytest.raises(
        DataError,
        match=r"data\.longest: must leave at least one pair to train on; got 1; the shortest pair has 2 tokens",
    ):
        train(config_for(), task, tmp_path / "run", Quiet())


def test_pairs_that_are_all_too_long_are_told_before_a_run_begins(tmp_path):
    write_parallel(tmp_path / "text", 1, 9, 3, 3)
    data = ParallelDataConfig(source="vf", target="en", folder=str(tmp_path / "text"), longest=1)
    with pytest.raises(DataError, match=r"data\.longest: must leave at least one pair to train on; got 1"):
        Translation.open(data, tmp_path / "text")


@pytest.mark.parametrize("setting", [{"random_lengths": True}, {"unit": "sentence"}, {"activation_penalty": 2.0}])
def test_settings_of_windows_are_refused(setting, task, tmp_path):
    with pytest.raises(ArgumentError, match=f"training.{next(iter(setting))}: has no effect for translation"):
        train(config_for(**setting), task, tmp_path / "run", Quiet())
    assert not (tmp_path / "run").exists()


def test_pairs_that_are_too_long_are_left_out_of_training_alone():
    task = Translation({"train": text(90, 1), "valid": text(40, 2)}, replace(DATA, longest=4))
    batches = task.batches(TRAINING, 1)
    longest = max(max(batches[k].source_B.max(), batches[k].target_B.max()) for k in range(len(batches)))
    assert longest == 4 and sum(len(batches[k].source_B) for k in range(len(batches))) < 90
    assert "longer than 4 tokens are left out" in task.describe()
    assert len(task.pairs["valid"]) == 40


def test_batches_hold_every_pair_once_and_depend_on_seed_and_epoch(task):
    def seen(training, epoch):
        batches = task.batches(training, epoch)
        return [tuple(batches[k].source_TB[:, b]) for k in range(len(batches)) for b in range(len(batches[k].source_B))]

    one = seen(TRAINING, 1)
    assert len(one) == 90 and one == seen(TRAINING, 1)
    assert one != seen(TRAINING, 2) and one != seen(replace(TRAINING, seed=2), 1)
    given = task.batches(TRAINING, 1)[0]
    parts = [given.part(index, 3) for index in range(3)]
    assert sum(part.count for part in parts) == given.count
    assert np.array_equal(np.concatenate([part.targets_TB for part in parts], 1), given.targets_TB)


def test_scores_that_are_not_finite_are_refused(task):
    model = TranslationModel(task.complete(MODEL))
    torch.nn.init.constant_(model.decoder.bias, torch.nan)
    with pytest.raises(CheckpointError, match="perplexity"):
        task.score(model, TRAINING)


def test_the_other_language_puts_verbs_last_and_has_a_word_for_each_word():
    from nltk.tree import Tree

    assert len(set(WORDS.values())) == len(WORDS)
    tree = Tree.fromstring("(S (NP (D the) (N pilot)) (VP (V sees) (NP (D the) (N nurse))))")
    words = {word: WORDS.get(word, word) for word in ("the", "pilot", "sees", "nurse")}
    expected = [words["the"], words["pilot"], "ga", words["the"], words["nurse"], "o", words["sees"]]
    assert verb_final(tree) == expected


def test_a_column_of_a_language_stands_once():
    with pytest.raises(
        ArgumentError,
        match=r"data\.columns: must name data\.source and data\.target, each once; got de, en, de\. Write",
    ):
        ParallelDataConfig("x", "de", "en", ("de", "en", "de"))
    assert ParallelDataConfig("x", "de", "en", ("other", "de", "en", "other")).columns


NAMED = {"data": ParallelDataConfig(level="word", joint=False, min_count=1), "text": TextPair(["a b", "b"], ["A", "B"])}


def translator(**settings):
    torch.manual_seed(1)
    config = TranslationConfig(embedding_size=8, hidden_sizes=(8,), decoder_sizes=(8,), tied=False, **settings)
    return TranslationModel(replace(config, vocabulary_size=9, target_size=7)).eval()


def sources(*lengths):
    ids = torch.full((max(lengths), len(lengths)), 1)
    for b, length in enumerate(lengths):
        ids[: length - 1, b] = torch.arange(length - 1) % 7 + 2
    return ids, torch.tensor(lengths)


def test_no_translated_token_is_aligned_with_the_end_of_the_source():
    model, (source, lengths) = translator(), sources(4, 1, 2, 6)
    real = model.decode

    def at_the_end(given, inputs):
        """All attention where the source ends."""
        found = real(given, inputs)
        last = (~given.beyond_BS).sum(1) - 1
        return found._replace(attention=torch.nn.functional.one_hot(last, given.beyond_BS.shape[1]).float()[None])

    model.decode = at_the_end
    aligned = [best[0].alignment for best in translate(model, source, lengths, Beam(size=3, alpha=5.0))]
    assert all(0 <= place < max(1, n - 1) for n, each in zip(lengths.tolist(), aligned, strict=True) for place in each)
    assert all(aligned)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 3e38])
def test_a_search_whose_scores_are_not_finite_is_refused(value):
    model, given = translator(), sources(3)
    with torch.no_grad():
        model.decoder.weight.fill_(value)
        model.output.bias.fill_(10.0)
    with pytest.raises(CheckpointError, match=r"translation\.scores: must be finite; got NaN or infinity"):
        translate(model, *given, Beam(size=2))


@pytest.mark.parametrize("size", [1001, 10**20])
def test_a_beam_is_at_most_a_thousand_wide(size):
    assert Beam(size=1000).size == 1000
    with pytest.raises(ArgumentError, match=r"beam\.size: must be at most"):
        Beam(size=size)


@pytest.mark.parametrize(
    ("targets", "said"),
    [
        (torch.ones(2, 3), r"must be integers \[T, B\]; got torch\.float32"),
        (torch.ones(6, dtype=torch.long), r"must be integers \[T, B\]; got torch\.int64 \[6\]"),
        (torch.ones(3, 2, dtype=torch.long), r"must have the inputs' shape \[2, 3\] and device cpu; got \[3, 2\]"),
        (torch.ones(2, 3, dtype=torch.long, device="meta"), r"must have .* and device cpu; got \[2, 3\] on meta"),
    ],
)
def test_targets_of_another_layout_are_refused(targets, said):
    model, inputs = translator(), torch.ones(2, 3, dtype=torch.long)
    given = (*sources(3, 2, 2), inputs, torch.tensor([2, 2, 2]))
    assert model(*given, targets_TB=inputs.int()).nats.isfinite()
    with pytest.raises(ArgumentError, match=rf"TranslationModel\.targets_TB: {said}"):
        model(*given, targets_TB=targets)


def test_sacrebleu_is_asked_for_before_anything_is_translated(monkeypatch):
    task = Translation({"train": NAMED["text"], "valid": NAMED["text"]}, NAMED["data"])
    for name in ("sacrebleu", "sacrebleu.metrics", "sacrebleu.metrics.bleu"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr("gatedrnn.tasks.translation.translations", lambda *_: pytest.fail("it was translated"))
    with pytest.raises(ArgumentError, match="needs sacrebleu to score translations"):
        Translation.evaluate(None, task.languages, NAMED["text"], {"beam": None, "tokenize": None})


DROPOUTS = {"embedding_dropout": 0.0, "input_dropout": 0.0, "hidden_dropout": 0.0, "output_dropout": 0.0}
OF_DECODER = (*DROPOUTS, "weight_dropout")
OF_ENCODER = ("embedding_dropout", "input_dropout", "hidden_dropout", "weight_dropout")


@torch.no_grad()
@pytest.mark.parametrize(
    ("side", "field"), [*(("decoder", f) for f in OF_DECODER), *(("encoder", f) for f in OF_ENCODER)]
)
def test_each_dropout_acts_on_each_side_in_training_only(side, field):
    model, (source, lengths), (inputs, given) = model_of(**DROPOUTS | {field: 0.5}), batch(5, 3), batch(4, 6, size=7)

    def read():
        begun = model.encode(source, lengths)
        if side == "encoder":
            return begun.memory_BSM
        begun = model.eval().encode(source, lengths)
        return model.train(training).decode(begun, inputs, given).scores

    training = False
    still = [read(), read()]
    training = model.train().training
    moved = [read() for _ in range(8)]
    assert torch.equal(*still) and any(not torch.equal(one, moved[0]) for one in moved)


@torch.no_grad()
def test_hidden_dropout_is_between_layers():
    model = model_of(**DROPOUTS | {"hidden_dropout": 0.9}, hidden_sizes=(6,), decoder_sizes=(10,))
    given = (*batch(5, 3), *batch(4, 6, size=7))
    still = model(*given)
    assert torch.equal(model.train()(*given), still)


def test_what_a_model_begins_with():
    torch.manual_seed(0)
    sizes = {"vocabulary_size": 400, "target_size": 500, "embedding_size": 32, "tied": False}
    model = TranslationModel(replace(MODEL, **sizes))
    for embedding in (model.encoder.embedding, model.embedding):
        assert float(embedding.weight.detach().std()) == pytest.approx(0.5, rel=0.05)
    assert not model.decoder.bias.any()


@pytest.mark.parametrize("divisor", [None, 5.0])
def test_smoothed_labels_of_padded_sentences(divisor):
    """torch's, of the tokens alone, over their number or the divisor."""
    model, (source, lengths), (inputs, given) = model_of(label_smoothing=0.2), batch(5, 3, 4), batch(2, 6, 4, size=7)
    targets = torch.randint(2, 7, inputs.shape, generator=torch.Generator().manual_seed(7))
    targets[torch.arange(6)[:, None] >= given] = -100
    nats, smoothing = model(source, lengths, inputs, given, targets, divisor)
    scores, live = model(source, lengths, inputs, given), targets != -100
    by = float(live.sum()) if divisor is None else divisor
    plain, smooth = (
        F.cross_entropy(scores[live], targets[live], label_smoothing=s, reduction="sum") / by for s in (0, 0.2)
    )
    torch.testing.assert_close(nats, plain)
    torch.testing.assert_close(nats + smoothing, smooth)


@torch.no_grad()
def test_validation_is_the_mean_over_tokens(task):
    model = TranslationModel(task.complete(MODEL)).eval()
    for parameter in model.parameters():
        parameter.mul_(3)
    pairs, nats, count = task.pairs["valid"], 0.0, 0
    for k in range(len(pairs)):
        one = pairs.batch(torch.tensor([k]).numpy())
        scores = model(*map(torch.from_numpy, one.arrays[:4]))[:, 0]
        nats += float(F.cross_entropy(scores, torch.from_numpy(one.targets_TB[:, 0]), reduction="sum"))
        count += len(scores)
    assert task.score(model, TRAINING).loss == pytest.approx(nats / count, rel=1e-5)


def test_a_text_s_checksum_is_of_both_sides_and_of_how_they_are_cut(task):
    source, target = task.languages.source, task.languages.target
    lines = {"train": TextPair(["cat dog", "owl"], ["DOG CAT", "OWL"]), "valid": TextPair(["cat"], ["CAT"])}
    others = (TextPair(["cat dog", "fox"], ["DOG CAT", "OWL"]), TextPair(["cat dog", "owl"], ["DOG CAT", "FOX"]))
    same = Translation(lines, DATA, task.languages).checksum("train")
    assert same == Translation({**lines, "valid": others[0]}, DATA, Languages(source, target)).checksum("train")
    assert all(
        Translation({**lines, "train": other}, DATA, task.languages).checksum("train") != same for other in others
    )


@torch.no_grad()
def test_gates_by_word_are_those_that_predict_each_token_of_the_translation(task):
    model = TranslationModel(task.complete(MODEL)).eval()
    model.decoder.bias[1] = -30  # no empty translation
    source, target = task.languages.source, task.languages.target
    ids = torch.tensor([*source.encode(["cat", "dog"]), 1])[:, None]
    ((best,),) = translate(model, ids, torch.tensor([3]))
    assert best.ids
    traces = model.decode(
        model.encode(ids, torch.tensor([3])), torch.tensor([1, *best.ids])[:, None], None, True
    ).traces
    found = Translation.gates_by_word(model, task.languages, "cat dog", "exact").translation
    assert found.words == [*target.decode(best.ids), "<eos>"]
    for layer, trace in zip(found.layers, traces, strict=True):
        assert layer["input_gate"] == pytest.approx(trace["input_gate"][:, 0].mean(-1).tolist(), abs=1e-6)
