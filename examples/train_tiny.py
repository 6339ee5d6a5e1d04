"""A language model on the built-in grammar in Python alone: text, training, perplexity, one tree."""

import tempfile
from pathlib import Path

from rich.console import Console

from gatedrnn.data import Corpus, find_splits, write_corpus
from gatedrnn.models import LanguageModelConfig
from gatedrnn.studies.parsing import parse_sentences
from gatedrnn.tasks import LanguageModelling
from gatedrnn.tasks.perplexity import evaluate
from gatedrnn.training.config import RunConfig, TrainingConfig
from gatedrnn.training.loop import train
from gatedrnn.training.progress import TrainingDisplay
from gatedrnn.training.run import load_run

with tempfile.TemporaryDirectory() as folder:
    text, out = Path(folder, "text"), Path(folder, "run")
    write_corpus(text, seed=1, train=600, valid=100, test=100)
    corpus = Corpus(find_splits(text))
    model = LanguageModelConfig(embedding_size=32, hidden_sizes=(32, 32), options={"chunk_size": 4})
    config = RunConfig(model=model, training=TrainingConfig(epochs=2, learning_rate=0.01, device="cpu"))
    task = LanguageModelling(corpus)
    with TrainingDisplay(Console(), config.training.epochs, task) as display:
        train(config, task, out, display)

    run = load_run(out)
    print("test perplexity", round(evaluate(run.model, corpus["test"], run.vocabulary).perplexity, 2))
    words = ["the", "old", "pilot", "near", "the", "guards", "sleeps"]
    (parse,) = parse_sentences(run.model, run.vocabulary, [words], layer=1)
    print(parse.brackets)
