"""Names of the package, models with their vocabulary, and what a log shows."""

import io

import pytest
import torch
from rich.console import Console

import gatedrnn
from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.data import Vocabulary
from gatedrnn.data.vocabulary import VOCABULARY_FILE
from gatedrnn.models import LanguageModel, LanguageModelConfig, generate, saving
from gatedrnn.tasks import LanguageModelling
from gatedrnn.training.progress import TrainingDisplay


@pytest.fixture
def vocabulary():
    return Vocabulary.build([["the", "old", "author"]], min_count=1)


@pytest.fixture
def model(vocabulary):
    return LanguageModel(LanguageModelConfig(len(vocabulary), "lstm", 8, (8,)))


def test_a_name_that_is_not_there():
    with pytest.raises(AttributeError, match="no attribute 'load_runs'"):
        _ = gatedrnn.load_runs


class TestVocabularyOfAModel:
    def test_is_taken_along_and_given_back(self, model, vocabulary, tmp_path):
        model.save_pretrained(tmp_path / "a", vocabulary)
        again = LanguageModel.from_pretrained(tmp_path / "a")
        assert again.vocabulary.words == vocabulary.words
        again.save_pretrained(tmp_path / "b")
        assert LanguageModel.from_pretrained(tmp_path / "b").vocabulary.words == vocabulary.words
        assert gatedrnn.load_run(tmp_path / "b").vocabulary.words == vocabulary.words
        assert saving.VOCABULARY_FILE == VOCABULARY_FILE

    def test_is_none_without_one(self, model, tmp_path):
        model.save_pretrained(tmp_path)
        assert LanguageModel.from_pretrained(tmp_path).vocabulary is None
        assert not (tmp_path / VOCABULARY_FILE).exists()

    def test_can_be_replaced(self, model, vocabulary, tmp_path):
        model.save_pretrained(tmp_path, vocabulary)
        other = Vocabulary.build([["ein", "alter", "mann"]], min_count=1)
        model.save_pretrained(tmp_path, other)
        assert LanguageModel.from_pretrained(tmp_path).vocabulary.words == other.words

    def test_that_was_given_once_is_the_model_s(self, model, vocabulary, tmp_path):
        for _ in range(2):
            model.save_pretrained(tmp_path / "a", vocabulary)
            model.save_pretrained(tmp_path / "a")
        assert LanguageModel.from_pretrained(tmp_path / "a").vocabulary.words == vocabulary.words

    def test_of_another_model_is_not_taken_over(self, model, vocabulary, tmp_path):
        model.save_pretrained(tmp_path, vocabulary)
        before = (tmp_path / "model.safetensors").read_bytes()
        with pytest.raises(DataError, match=r"no vocabulary where the model has none; got vocabulary.json"):
            LanguageModel(model.config).save_pretrained(tmp_path)
        assert (tmp_path / "model.safetensors").read_bytes() == before

    def test_a_run_is_not_saved_over(self, model, vocabulary, tmp_path):
        model.save_pretrained(tmp_path, vocabulary)
        config = tmp_path / "config.yaml"
        config.write_text(config.read_text() + "data: {mapping: lower}\n")
        for name in ("config.yaml", "model.safetensors"):
            (tmp_path / "checksums.json").unlink(missing_ok=True)
            before = (tmp_path / name).read_bytes()
            with pytest.raises(DataError, match=r"must not be the folder of a run; got one with data in config.yaml"):
                LanguageModel.from_pretrained(tmp_path).save_pretrained(tmp_path)
            assert (tmp_path / name).read_bytes() == before

    def test_a_name_that_cannot_be(self, model, tmp_path):
        with pytest.raises(DataError, match="must be a folder that can be read; got File name too long"):
            model.save_pretrained(tmp_path / ("x" * 300))

    def test_a_file_is_no_folder(self, model, tmp_path):
        (tmp_path / "file").write_text("x")
        with pytest.raises(DataError, match="the folder must be writable"):
            model.save_pretrained(tmp_path / "file")
        assert (tmp_path / "file").read_text() == "x"

    def test_of_another_size_is_refused(self, model, vocabulary, tmp_path):
        small = Vocabulary.build([["a"]], min_count=1)
        with pytest.raises(ArgumentError, match=r"must be of the model's size; got 3 tokens and .*=5"):
            model.save_pretrained(tmp_path / "a", small)
        assert not (tmp_path / "a").exists()
        model.save_pretrained(tmp_path)
        small.save(tmp_path / VOCABULARY_FILE)
        with pytest.raises(CheckpointError, match=r"must be of the model's size; got 3 words and .*=5"):
            LanguageModel.from_pretrained(tmp_path)


class TestExcludedIds:
    def test_others_keep_their_ratios(self, model):
        torch.manual_seed(1)
        draws = torch.tensor([next(generate(model.eval(), [1], exclude=[0, 3])) for _ in range(600)])
        shares = draws.bincount(minlength=5) / len(draws)
        expected = model(torch.tensor([[1]])).logits[0, 0].detach().softmax(-1)
        expected[[0, 3]] = 0
        assert shares[[0, 3]].tolist() == [0, 0]
        torch.testing.assert_close(shares, expected / expected.sum(), rtol=0, atol=0.08)

    @pytest.mark.parametrize("exclude", [[5], [-1], range(5)])
    def test_refused(self, model, exclude):
        with pytest.raises(ArgumentError, match=r"generate.exclude: must be ids in 0…4, and not all of them"):
            next(generate(model, [1], exclude=exclude))


class TestLog:
    def lines(self, capsys, seconds_a_step, steps, *, quiet=False, terminal=False):
        now, task = [0.0], LanguageModelling.__new__(LanguageModelling)
        out = io.StringIO()
        console = Console(file=out, force_terminal=terminal, quiet=quiet)
        with TrainingDisplay(console, 3, task, clock=lambda: now[0]) as display:
            for epoch in (1, 2):
                display.start_epoch(epoch, steps)
                for done in range(1, steps + 1):
                    now[0] += seconds_a_step
                    display.step(done, 2.0, 1234.0)
        assert terminal or out.getvalue() == ""
        return capsys.readouterr().err.splitlines()

    def test_a_long_epoch_has_a_line_a_minute_on_standard_error(self, capsys):
        lines = self.lines(capsys, 1.0, 200)
        assert len(lines) == 6
        assert lines[0].split() == ["epoch", "1/3", "30", "%", "perplexity", "7.39", "1,234", "tokens/s"]
        assert lines[3].startswith("epoch   2/3")

    def test_short_epochs_have_none(self, capsys):
        assert self.lines(capsys, 0.5, 100) == []

    def test_a_terminal_or_a_quiet_process_has_none(self, capsys):
        assert self.lines(capsys, 1.0, 200, terminal=True) == []
        assert self.lines(capsys, 1.0, 200, quiet=True) == []
