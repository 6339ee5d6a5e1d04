"""Vocabularies as tokenizers of transformers, and back: the same ids, `<eos>` before every text, padding after the last.

A new line is the end of a sentence, `<eos>`. Text is read as `prompt_tokens` reads it: a special token written in the text is
special only where the run reads it so.
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
_SUBWORD_PAD = (
    "<pad\ufdd0>"  # with a code point that Unicode keeps out of texts: subwords match special tokens in the text
)
_LINE_END = Regex("\r?\n")
_SPACE = "[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"  # what str.split() cuts at
_CHARACTER = f"{UNK}|{EOS}|[^{_SPACE[1:-2]}{INVISIBLE}][\\p{{M}}\u200c\u200d]*"  # as in `character_words`
_LONGEST = 1 << 20  # tokens: there is no longest text


def tokenizer_of(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """The tokenizer of a vocabulary.

    Raises: DataError: `<pad>` is one of its tokens already.
    """
    if PAD in vocabulary.ids:
        raise DataError("vocabulary", f"must not have a token {PAD}", PAD, "Train on a text without it")
    made = {"word": _of_words, "char": _of_characters, "subword": _of_subwords}[vocabulary.level](vocabulary)
    subwords, eos = vocabulary.level == "subword", vocabulary.ids[EOS]
    end, pad = AddedToken(EOS, normalized=subwords), _SUBWORD_PAD if subwords else PAD
    made.add_special_tokens([AddedToken(UNK), end, AddedToken(pad)])
    made.post_processor = processors.TemplateProcessing(f"{EOS} $A", f"{EOS} $A {EOS} $B:1", [(EOS, eos)])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token=UNK,
        bos_token=EOS,
        eos_token=end,
        pad_token=pad,
        padding_side="left",
        model_max_length=_LONGEST,
        clean_up_tokenization_spaces=False,
        split_special_tokens=not subwords,
    )


def padding_id(tokenizer: PreTrainedTokenizerFast) -> int | None:
    """The id of the padding that `tokenizer_of` added, whatever pads now; None without one."""
    ids = tokenizer.get_vocab()
    return ids.get(_SUBWORD_PAD, ids.get(PAD))


def vocabulary_of(tokenizer: PreTrainedTokenizerFast, level: str, size: int, tokenize: str = "none") -> Vocabulary:
    """The vocabulary that `tokenizer_of` made this of, of the first `size` tokens beside the padding.

    Raises: DataError: the tokenizer is not one of those.
    """
    owner = "tokenizer.json"
    padding = padding_id(tokenizer)
    words: Any = tokenizer.convert_ids_to_tokens([i for i in range(size + 1) if i != padding][:size])
    if words[:2] != [UNK, EOS] or None in words or len(set(words)) != size:
        got = f"{words[:3]} …"
        raise DataError(owner, f"must have {size} tokens, {UNK} and {EOS} first", got, "Restore the folder's own file")
    if level == "word" and (odd := next((word for word in words if word.split() != [word]), None)) is not None:
        rule, advice = "must have words without white space", "Add its parts as words"
        raise DataError(owner, rule, repr(odd), advice)
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
    """Words; every one is decoded with a space before it, so that new words can be added to a text."""
    made = Tokenizer(models.WordLevel(vocabulary.ids, unk_token=UNK))
    made.normalizer = normalizers.Replace(_LINE_END, f" {EOS} ")
    if vocabulary.tokenize == "characters":
        made.pre_tokenizer = pre_tokenizers.Split(Regex(_CHARACTER), "removed", invert=True)
        made.decoder = decoders.Fuse()
        return made
    made.pre_tokenizer = pre_tokenizers.Split(Regex(_SPACE), "removed")
    first = decoders.Replace(Regex(f"^ (?={EOS}|{PAD})"), "")
    made.decoder = decoders.Sequence([decoders.Replace(Regex("^"), " "), decoders.Fuse(), first])
    return made


def _of_characters(vocabulary: Vocabulary) -> Tokenizer:
    """Characters; a new line is `<eos>`, and an `<eos>` written in the text is five characters."""
    made = Tokenizer(models.WordLevel(vocabulary.ids, unk_token=UNK))
    steps = [(_LINE_END, "\nn"), (EOS, f"{EOS[0]}\n{EOS[1:]}"), ("\nn", EOS)]  # a written one is broken by a new line,
    made.normalizer = normalizers.Sequence([normalizers.Replace(old, new) for old, new in steps])
    break_ = pre_tokenizers.Split("\n", "removed")  # which is taken out again once it cannot be joined
    single = pre_tokenizers.Split(Regex(rf"{EOS}|[\s\S]"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([break_, single])
    made.decoder = decoders.Fuse()
    return made


def _of_subwords(vocabulary: Vocabulary) -> Tokenizer:
    """A run's own tokenizer with our ids; a new line becomes the text `<eos>`, which it matches."""
    splitter: Any = vocabulary.splitter
    made = Tokenizer.from_str(json.dumps(_with_ids(json.loads(splitter.settings), vocabulary)))
    line = normalizers.Replace(_LINE_END, EOS)
    made.normalizer = normalizers.Sequence([made.normalizer, line]) if made.normalizer else line
    return made


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
