"""The model card of a run: what it is, how well it predicts, how to use it."""

from gatedrnn import __version__
from gatedrnn.training.run import Run
from gatedrnn.training.scores import known_perplexity

_CARD = """---
library_name: transformers
pipeline_tag: text-generation
tags:
- gatedrnn
- recurrent
- {cell}
---

# {name}

A recurrent language model: {layers} of {cell}, {parameters} parameters, {vocabulary:,} tokens ({level}).
Made by gatedrnn {version}.

{scores}

## Use it

Install gatedrnn with its extra `hf`, from its wheel or from a checkout (`pip install '.[hf]'`):

```bash
pip install 'gatedrnn-{version}-py3-none-any.whl[hf]'
```

```python
import gatedrnn.hf  # so that transformers knows the model; or pass trust_remote_code=True
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

tokenizer = AutoTokenizer.from_pretrained({name!r})
model = AutoModelForCausalLM.from_pretrained({name!r})
print(pipeline("text-generation", model=model, tokenizer=tokenizer)({prompt!r}, max_new_tokens=20))
```

Text is read as the model was trained on it: {reading}. Every text begins with `<eos>`, which the tokenizer adds. A new line
ends a sentence: it becomes `<eos>`.

`gatedrnn import FOLDER --out RUN` turns it back into a run, for `gatedrnn parse`, `surprisal`, `gates`, `compress` and
further training.
"""
_READING = {
    "word": "words are separated by spaces, and unknown words become `<unk>`",
    "char": "character by character",
    "subword": "in subwords",
    "characters": "every visible character is a word, spaces do not count, and unknown characters become `<unk>`",
}


def card(run: Run, name: str) -> str:
    """Markdown with metadata, for the folder called `name`."""
    config, vocabulary = run.config, run.vocabulary
    sizes = config.model.hidden_sizes
    alike = f"{len(sizes)} layer{'s' * (len(sizes) > 1)} ({', '.join(map(str, sizes))} units)"
    by_character = vocabulary.tokenize == "characters"
    prompt = vocabulary.words[-1] if by_character else {"word": "the", "char": "T", "subword": "The"}[vocabulary.level]
    return _CARD.format(
        name=name,
        cell=config.model.cell,
        layers=alike,
        parameters=f"{sum(parameter.numel() for parameter in run.model.parameters()):,}",
        vocabulary=len(vocabulary),
        level=vocabulary.level,
        version=__version__,
        scores=_scores(run),
        prompt=next((word for word in vocabulary.words[2:] if word.isalpha()), prompt),
        reading=_READING["characters" if by_character else vocabulary.level],
    )


def _scores(run: Run) -> str:
    """A table of the perplexity that its folder tells."""
    found, told = known_perplexity(run.folder)
    if found is None:
        return "No scores were kept with this run."
    kind = {"word": "word", "char": "character", "subword": "subword"}[run.vocabulary.level]
    return f"""| score | |
|---|--:|
| perplexity per {kind}, {told.replace("|", "/")} | {found:.2f} |"""
