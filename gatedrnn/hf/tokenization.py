"""Vocabularies as tokenizers of transformers, and back: the same ids, `<eos>` before every text, `<pad>` after the last.

A new line is the end of a sentence, `<eos>`.
"""

import json
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from gatedrnn.core.errors import DataError
from gatedrnn.data import EOS, UNK
from gatedrnn.data.characters import INVISIBLE
from gatedrnn.data.levels import Characters, Words
from gatedrnn.data.subwords import Subwords
from gatedrnn.data.vocabulary import Vocabulary

PAD = "<pad>"
_SPACE = "[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"  # what str.split() cuts at
_CHARACTER = f"[^{_SPACE[1:-2]}{INVISIBLE}][\\p{{M}}\u200c\u200d]*"  # as in `character_words`
_LONGEST = 1 << 20  # tokens: there is no longest text


def tokenizer_of(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """The tokenizer of a vocabulary.

    Raises: DataError: `<pad>` is one of its tokens already.
    """
    if PAD in vocabulary.ids:
        raise DataError("vocabulary", f"must not have a token {PAD}", PAD, "Train on a text without it")
    made = {"word": _of_words, "char": _of_characters, "subword": _of_subwords}[vocabulary.level](vocabulary)
    line = normalizers.Replace("\n", f" {EOS} " if vocabulary.level == "word" else EOS)
    made.normalizer = normalizers.Sequence([made.normalizer, line]) if made.normalizer else line
    eos = vocabulary.ids[EOS]
    made.add_special_tokens([AddedToken(UNK), AddedToken(EOS, normalized=True), AddedToken(PAD)])
    made.post_processor = processors.TemplateProcessing(f"{EOS} $A", f"{EOS} $A {EOS} $B:1", [(EOS, eos)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token=UNK,
        bos_token=EOS,
        eos_token=AddedToken(EOS, normalized=True),
        pad_token=PAD,
        padding_side="left",
        model_max_length=_LONGEST,
        clean_up_tokenization_spaces=False,
    )


def vocabulary_of(tokenizer: PreTrainedTokenizerFast, level: str, size: int, tokenize: str = "none") -> Vocabulary:
    """The vocabulary that `tokenizer_of` made this of, of the first `size` tokens.

    Raises: DataError: the tokenizer is not one of those.
    """
    owner = "tokenizer.json"
    words: Any = tokenizer.convert_ids_to_tokens(list(range(size)))
    if words[:2] != [UNK, EOS] or None in words or len(set(words)) != size:
        got = f"{words[:3]} …"
        raise DataError(owner, f"must have {size} tokens, {UNK} and {EOS} first", got, "Restore the folder's own file")
    if level != "subword":
        return Vocabulary(words, None, Words(tokenize) if level == "word" else Characters())
    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    before = settings["normalizer"]
    settings["normalizer"] = before["normalizers"][0] if before["type"] == "Sequence" else None
    settings["post_processor"] = settings["truncation"] = settings["padding"] = None
    settings["added_tokens"] = [t for t in settings["added_tokens"] if t["id"] < size]
    found = Subwords(Tokenizer.from_str(json.dumps(settings)), owner)
    if found.words != words:
        got = f"others, from {next(a for a, b in zip(found.words, words, strict=False) if a != b)!r} on"
        raise DataError(owner, "must have the tokens of the model", got, "Restore the folder's own file")
    return Vocabulary.of(found)


def _of_words(vocabulary: Vocabulary) -> Tokenizer:
    made = Tokenizer(models.WordLevel(vocabulary.ids, unk_token=UNK))
    if vocabulary.tokenize == "characters":
        made.pre_tokenizer = pre_tokenizers.Split(Regex(_CHARACTER), "removed", invert=True)
        made.decoder = decoders.Fuse()
        return made
    made.pre_tokenizer = pre_tokenizers.Split(Regex(_SPACE), "removed")
    made.decoder = decoders.Sequence([decoders.Replace(Regex("^"), " "), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return made


def _of_characters(vocabulary: Vocabulary) -> Tokenizer:
    made = Tokenizer(models.WordLevel(vocabulary.ids, unk_token=UNK))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    made.decoder = decoders.Fuse()
    return made


def _of_subwords(vocabulary: Vocabulary) -> Tokenizer:
    splitter: Any = vocabulary.splitter
    return Tokenizer.from_str(json.dumps(_with_ids(json.loads(splitter.settings), vocabulary)))


def _with_ids(settings: dict[str, Any], vocabulary: Vocabulary) -> dict[str, Any]:
    """A tokenizer's settings with our ids for its tokens, and our name for its unknown one."""
    model, table = settings["model"], vocabulary.splitter.table  # type: ignore[attr-defined]
    words, unknown = vocabulary.words, model.get("unk_token")
    if isinstance(model["vocab"], dict):
        model["vocab"] = {word: i for i, word in enumerate(words)}
        model["unk_token"] = UNK if unknown is not None else None
    else:  # Unigram: a list of tokens and scores, in the order of their ids
        scores = dict(model["vocab"])
        lowest = min(scores.values()) - 10
        model["vocab"] = [[word, scores.get(word, lowest)] for word in words]
        model["unk_id"] = 0
    kept = {}
    for token in settings["added_tokens"]:
        i = int(table[token["id"]])
        kept[i] = token | {"id": i, "content": words[i]}
    settings["added_tokens"] = [kept[i] for i in sorted(kept)]
    settings["post_processor"] = None
    return settings
