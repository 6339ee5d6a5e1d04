"""The spaCy component: what it overwrites, foreign bytes, parts and unions of documents, two components, a damaged run."""

import pickle
import shutil

import pytest
import torch
from tiny_runs import tiny

from gatedrnn.core.config import to_dict
from gatedrnn.core.errors import ArgumentError, CheckpointError, DataError
from gatedrnn.data import DataConfig, Vocabulary
from gatedrnn.models import LanguageModel, LanguageModelConfig
from gatedrnn.models.saving import save_config, save_weights
from gatedrnn.training.config import RunConfig
from gatedrnn.training.run import accept_run, write_metrics

spacy = pytest.importorskip("spacy", reason="no spaCy")
srsly = pytest.importorskip("srsly", reason="no spaCy")

from spacy.tokens import Doc  # noqa: E402 - where there is one

from gatedrnn.spacy_component import Component  # noqa: E402

WORDS = ["<unk>", "<eos>", "the", "cat", "sleeps", "dogs", "bark", "."]
TEXT = "the cat sleeps. dogs bark."


def written(folder, seed=1):
    """A folder as a training leaves it, with a checkpoint and a log."""
    torch.manual_seed(seed)
    config = LanguageModelConfig(
        len(WORDS), cell="onlstm", embedding_size=8, hidden_sizes=(8, 8), options={"chunk_size": 4}
    )
    folder.mkdir(parents=True)
    save_config(folder, to_dict(RunConfig(data=DataConfig(), model=config)))
    save_weights(folder, LanguageModel(config))
    Vocabulary(WORDS).save(folder / "vocabulary.json")
    write_metrics(folder, [{"epoch": 1, "valid_perplexity": 9.0}])
    accept_run(folder)
    (folder / "checkpoint").mkdir()
    (folder / "checkpoint" / "step-1.safetensors").write_bytes(b"weeks of work")
    return folder


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return written(tmp_path_factory.mktemp("spacy") / "run")


def pipeline(run, **more):
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("gatedrnn", config={"run": str(run)} | more)
    return nlp


def files(folder):
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("kept", ["checkpoint", "log"])
def test_a_training_is_not_overwritten(run, tmp_path, kept):
    other = written(tmp_path / "pipeline" / "gatedrnn", seed=2)
    if kept == "log":
        (other / "checkpoint" / "step-1.safetensors").unlink()
        (other / "checkpoint").rmdir()
    before = files(other)
    for write in (pipeline(run).to_disk, lambda _: Component("gatedrnn", str(other)).to_disk(other)):
        with pytest.raises(DataError, match="must be a new or empty folder, or one that an earlier pipeline wrote"):
            write(tmp_path / "pipeline")
    assert files(other) == before


def test_an_earlier_pipeline_stays_until_the_next_one_is_whole(run, tmp_path, monkeypatch):
    nlp = pipeline(run)
    nlp.to_disk(tmp_path / "pipeline")
    before = files(tmp_path / "pipeline" / "gatedrnn")
    with monkeypatch.context() as patched:
        patched.setattr("gatedrnn.training.run.accept_run", lambda place: 1 // 0)
        with pytest.raises(ZeroDivisionError):
            nlp.to_disk(tmp_path / "pipeline")
    assert files(tmp_path / "pipeline" / "gatedrnn") == before
    pipeline(written(tmp_path / "new", seed=2)).to_disk(tmp_path / "pipeline")
    after = files(tmp_path / "pipeline" / "gatedrnn")
    assert after.keys() == before.keys() and after["model.safetensors"] != before["model.safetensors"]
    assert not list((tmp_path / "pipeline").glob(".*"))


@pytest.mark.parametrize(
    "data", [b"", b"x", b"\xc1", srsly.msgpack_dumps([1]), srsly.msgpack_dumps({"config.yaml": 1})]
)
def test_other_bytes_are_refused(data):
    with pytest.raises(DataError, match=r"gatedrnn.from_bytes: must get what to_bytes gave; got \d+ other bytes"):
        Component("gatedrnn", "").from_bytes(data)


def test_parts_and_unions_of_documents(run):
    doc = pipeline(run)(TEXT)
    trees = [sentence._.parse_string for sentence in doc.sents]
    with pytest.warns(UserWarning, match="W101"):
        union = Doc.from_docs([doc, doc])
    part = list(doc.sents)[1].as_doc(copy_user_data=True)
    for new, wanted in ((union, trees * 2), (part, trees[1:])):
        with pytest.raises(
            ArgumentError, match=r"got a part or a union .* Copy it .*: new._.gatedrnn = old._.gatedrnn"
        ):
            _ = next(new.sents)._.parse_string
        new._.gatedrnn = doc._.gatedrnn
        assert [sentence._.parse_string for sentence in new.sents] == wanted
    again = pickle.loads(pickle.dumps(doc))
    assert [sentence._.parse_string for sentence in again.sents] == trees


def test_of_two_components_the_later_one_remains(run, tmp_path):
    other = written(tmp_path / "other", seed=2)
    nlp = pipeline(run)
    nlp.add_pipe("gatedrnn", name="second", config={"run": str(other), "algorithm": "biased"})
    both, one = nlp(TEXT), pipeline(other, algorithm="biased")(TEXT)
    assert [token._.surprisal for token in both] == [token._.surprisal for token in one]
    assert [s._.parse_string for s in both.sents] == [s._.parse_string for s in one.sents]


def test_a_pipeline_is_loaded_where_the_first_folder_is_damaged(tmp_path):
    spacy = pytest.importorskip("spacy", reason="no spaCy")
    torch.manual_seed(1)
    nlp = spacy.blank("en")
    nlp.add_pipe("sentencizer")
    nlp.add_pipe("gatedrnn", config={"run": str(tiny(tmp_path / "run").folder)})
    wanted = [token._.surprisal for token in nlp("the cat sleeps.")]
    nlp.to_disk(tmp_path / "pipeline")
    (tmp_path / "run" / "model.safetensors").unlink()
    again = spacy.load(tmp_path / "pipeline")
    assert [token._.surprisal for token in again("the cat sleeps.")] == wanted
    shutil.rmtree(tmp_path / "pipeline")
    alone = spacy.blank("en")
    alone.add_pipe("sentencizer")
    alone.add_pipe("gatedrnn", config={"run": str(tmp_path / "run")})
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):  # once the run is needed
        alone("the cat sleeps.")
