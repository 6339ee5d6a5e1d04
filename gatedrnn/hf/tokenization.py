"""Vocabularies as tokenizers of transformers, and back: the same ids, `<eos>` before every text, padding after the last.

A new line is the end of a sentence, `<eos>`. Text is read as `prompt_tokens` reads it: a special token written in the text is
special only where the run reads it so.

Subwords keep the names that the run's own tokenizer has for them. Where it has none for `<unk>`, `<eos>` or the padding, or does
not read such a name in a text, the token gets a private name. A new line becomes `<eos>` before the run's own normalizer: by a
rule that writes the token's name; or, where the run's normalizer changes the start or end of a line, by a name that is the new
line itself, at which a text is cut before it is normalised.
"""

import json
from collections.abc import Iterator
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from gatedrnn.core.errors import DataError, first_line
from gatedrnn.data import EOS, UNK
from gatedrnn.data.characters import INVISIBLE
from gatedrnn.data.levels import Characters, Words
from gatedrnn.data.prompt import prompt_tokens
from gatedrnn.data.subwords import Subwords
from gatedrnn.data.vocabulary import ONCE_UNKNOWN, Vocabulary

INSTEAD = "Use the run itself (gatedrnn.load_run, gatedrnn serve)"
"""What to do about a run that transformers would read in another way."""

PAD = "<pad>"
_SUBWORD_PAD, _PRIVATE_UNK, _PRIVATE_EOS = "<pad\ufdd0>", f"{UNK}\ufdd0", f"{EOS}\ufdd0"
"""Names with a code point that Unicode keeps out of texts: subwords match special tokens in the text."""
_NEW_LINE = "\n"
_LINE_END, _LINE_START, _LAST_RETURN = "\r?\n", "\r?\n(?!\r?\n|[ ▁]|\\z)", "\r\\z"
_SPACE = "[\t-\r\x1c-\x20\x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000]+"  # what str.split() cuts at
_CHARACTER = f"{UNK}|{EOS}|[^{_SPACE[1:-2]}{INVISIBLE}][\\p{{M}}\u200c\u200d]*"  # as in `character_words`
_LONGEST = 1 << 20  # tokens: there is no longest text


def tokenizer_of(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """The tokenizer of a vocabulary.

    Raises: DataError: it has a word `<pad>`, or a subword of a name that is made here; or a tokenizer of transformers would read
        its subwords in another way.
    """
    subwords = vocabulary.level == "subword"
    reserved = (_SUBWORD_PAD, _PRIVATE_UNK, _PRIVATE_EOS) if subwords else (PAD,)
    if (taken := next((name for name in reserved if name in vocabulary.ids), None)) is not None:
        advice = "Give a tokenizer without it" if subwords else "Train on a text without it"
        raise DataError("vocabulary", f"must not have a token {taken}", taken, advice)
    if subwords:
        return _of_subwords(vocabulary)
    made = {"word": _of_words, "char": _of_characters}[vocabulary.level](vocabulary)
    return _with_special(made, UNK, AddedToken(EOS, normalized=False), PAD, split=True)


def _with_special(made: Tokenizer, unk: str | None, eos: AddedToken, pad: str, split: bool) -> PreTrainedTokenizerFast:
    """As transformers has it, `<eos>` before every text.

    Args:
        unk: the name of `<unk>`; None where it is not a special token.
        split: whether names of special tokens in a text are text.
    """
    own = {token.content for token in made.get_added_tokens_decoder().values()}
    new = [] if unk is None or unk in own else [AddedToken(unk)]
    made.add_special_tokens([*new, eos, AddedToken(pad)])
    first: Any = {"id": EOS, "ids": [1], "tokens": [eos.content]}
    made.post_processor = processors.TemplateProcessing(f"{EOS} $A", f"{EOS} $A {EOS} $B:1", [first])
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        unk_token=unk,
        bos_token=eos.content,
        eos_token=eos,
        pad_token=pad,
        padding_side="left",
        model_max_length=_LONGEST,
        clean_up_tokenization_spaces=False,
        split_special_tokens=split,
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
    settings = json.loads(tokenizer.backend_tokenizer.to_str())
    ids = [i for i in range(size + 1) if i != padding][:size]
    added = {token["id"]: token["content"] for token in settings["added_tokens"]}  # as written, before a normalizer
    known: Any = tokenizer.convert_ids_to_tokens(ids)
    names = [added.get(i, name) for i, name in zip(ids, known, strict=True)]
    own = level == "subword" and names[1:2] in ([EOS], [_PRIVATE_EOS], [_NEW_LINE])
    words = [UNK, EOS, *names[2:]] if own else names
    if words[:2] != [UNK, EOS] or None in words or len(set(words)) != size:
        got = f"{words[:3]} …"
        raise DataError(owner, f"must have {size} tokens, {UNK} and {EOS} first", got, "Restore the folder's own file")
    if level == "word" and (odd := next((word for word in words if word.split() != [word]), None)) is not None:
        rule, advice = "must have words without white space", "Add its parts as words"
        raise DataError(owner, rule, repr(odd), advice)
    if level != "subword":
        return Vocabulary(words, None, Words(tokenize) if level == "word" else Characters())
    found = _subwords_of(settings, names, owner)
    if found.words != words:
        got = f"others, from {next((a for a, b in zip(found.words, words, strict=False) if a != b), None)!r} on"
        raise DataError(owner, "must have the tokens of the model", got, "Restore the folder's own file")
    return Vocabulary.of(found)


def _of_words(vocabulary: Vocabulary) -> Tokenizer:
    """Words; every one is decoded with a space before it, so that new words can be added to a text."""
    made = Tokenizer(models.WordLevel(vocabulary.ids, unk_token=UNK))
    made.normalizer = normalizers.Replace(Regex(_LINE_END), f" {EOS} ")
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
    written = (Regex(f"{EOS[0]}(?={EOS[1:]})"), f"{EOS[0]}\n")  # is broken by a new line,
    steps = [(Regex(_LINE_END), "\nn"), written, ("\nn", EOS)]
    made.normalizer = normalizers.Sequence([normalizers.Replace(old, new) for old, new in steps])
    break_ = pre_tokenizers.Split("\n", "removed")  # which is taken out again once it cannot be joined
    single = pre_tokenizers.Split(Regex(rf"{EOS}|[\s\S]"), "isolated")
    made.pre_tokenizer = pre_tokenizers.Sequence([break_, single])
    made.decoder = decoders.Fuse()
    return made


def _of_subwords(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """A run's own tokenizer with our ids. Raises: DataError: it reads one of some texts in another way than the run."""
    eos = EOS if _own_ids(vocabulary, EOS) == [1] else _PRIVATE_EOS
    got = ""
    for name in (eos, _NEW_LINE):
        if name in vocabulary.words[2:]:
            continue
        try:
            made = _subword_tokenizer(vocabulary, name)
        except Exception as error:  # the library raises bare Exception, as for merges that make a token of another name
            got = got or first_line(error)
            continue
        wrong = next((text for text in _samples(vocabulary) if _ids(made, text) != _own_ids(vocabulary, text)), None)
        if wrong is None:
            return made
        got = got or f"other ids for {wrong!r}"
    raise DataError("tokenizer", "must read texts in transformers as in the run", got, INSTEAD)


def _subword_tokenizer(vocabulary: Vocabulary, eos: str) -> PreTrainedTokenizerFast:
    """Args: eos: the name of `<eos>`: one that a rule writes for a new line, or the new line itself."""
    subwords: Any = vocabulary.splitter
    settings, unk = json.loads(subwords.settings), _unknown_name(subwords)
    special = {_PRIVATE_UNK, *(token["content"] for token in settings["added_tokens"])}
    made = Tokenizer.from_str(json.dumps(_with_ids(settings, subwords.table, [unk, eos, *vocabulary.words[2:]])))
    rules = [normalizers.Replace(Regex(old), new) for old, new in _line_rules(eos, settings["pre_tokenizer"] or {})]
    made.normalizer = normalizers.Sequence([*rules, *([made.normalizer] if made.normalizer else [])])
    end = AddedToken(eos, normalized=eos != _NEW_LINE)
    return _with_special(made, unk if unk in special else None, end, _SUBWORD_PAD, split=False)


def _line_rules(eos: str, before: dict[str, Any]) -> list[tuple[str, str]]:
    """What is replaced in a text before the run's own normalizer. Args: before: settings of its pre-tokenizer."""
    if eos == _NEW_LINE:  # at which the text is cut already
        return [(_LAST_RETURN, "")]
    spaced = (_LINE_START, f"{eos} ")  # as the first line has a space before it
    return [spaced, (_LINE_END, eos)] if before.get("prepend_scheme") == "first" else [(_LINE_END, eos)]


def _unknown_name(subwords: Subwords) -> str:
    """What a tokenizer calls the unknown token: its model's name first; a private one if it has none."""
    model, theirs = json.loads(subwords.settings)["model"], subwords.tokenizer.get_vocab(with_added_tokens=True)
    models_own = (theirs.get(model.get("unk_token") or ""), model.get("unk_id"))
    names = [token for token, i in theirs.items() if subwords.table[i] == 0]
    return min(names, key=lambda token: (theirs[token] not in models_own, token), default=_PRIVATE_UNK)


def _with_ids(settings: dict[str, Any], table: Any, names: list[str]) -> dict[str, Any]:
    """A tokenizer's settings with our ids for its tokens. Args: table: our id of each of its own; names: those of our ids."""
    model = settings["model"]
    if isinstance(model["vocab"], dict):
        model["vocab"] = {name: i for i, name in enumerate(names)}
    else:  # Unigram: a list of tokens and scores, in the order of their ids; the lowest score decides what is unknown
        scores = dict(model["vocab"])
        lowest = min(scores.values())
        model["vocab"] = [[name, scores.get(name, lowest)] for name in names]
        model["unk_id"] = None if model["unk_id"] is None else 0
    kept = {}
    for token in settings["added_tokens"]:
        i = int(table[token["id"]])
        if token["content"] == names[i] and _NEW_LINE not in names[i]:  # no line of a run holds a new line
            kept[i] = token | {"id": i}
    settings["added_tokens"] = [kept[i] for i in sorted(kept)]
    settings["post_processor"] = None
    return settings


def _samples(vocabulary: Vocabulary) -> Iterator[str]:
    """Texts by which a tokenizer is compared with the run: names of special tokens, and lines."""
    subwords: Any = vocabulary.splitter
    theirs = subwords.tokenizer.get_vocab(with_added_tokens=True)
    yield from (UNK, EOS, PAD, f"a{EOS}b{UNK}c", *(token for token, i in theirs.items() if subwords.table[i] == 0))
    for token in json.loads(subwords.settings)["added_tokens"]:
        if token["lstrip"] or token["rstrip"] or token["single_word"]:  # it takes the space, or a new line, beside it
            yield from (f"a\n{token['content']}b", f"a{token['content']}\nb", f"{token['content']}a")
    yield from (EOS.upper(), "a\n\u3000b", "a\n\u00a0b")
    some = vocabulary.text(vocabulary.words[-1:]).replace(_NEW_LINE, "")
    for word in ("a", "The", some):
        yield from (word, f"{word}\n{word}", f"\n {word} \r\n\n{word}{word} {word}\n")


def _ids(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int] | None:
    """Ids of a text without the `<eos>` before it; None if it cannot be read."""
    try:
        return tokenizer(text)["input_ids"][1:]
    except Exception:  # the library raises bare Exception, as for an unknown token without a name
        return None


def _own_ids(vocabulary: Vocabulary, text: str) -> list[int] | None:
    """As `_ids`, by the run."""
    try:
        return vocabulary.encode(prompt_tokens(vocabulary, text))
    except DataError:
        return None


def _subwords_of(settings: dict[str, Any], names: list[str], owner: str) -> Subwords:
    """The run's own tokenizer again, of the settings of one that `_of_subwords` made. Args: names: those of our ids."""
    private = {_PRIVATE_UNK, _PRIVATE_EOS, _NEW_LINE}.intersection(names[:2])
    model, before = settings["model"], settings["normalizer"] or {}
    if isinstance(model["vocab"], dict):
        model["vocab"] = {name: i for name, i in model["vocab"].items() if name not in private}
    else:
        model["vocab"] = [[name, score] for name, score in model["vocab"] if name not in private]
    own = [each for each in before.get("normalizers", []) if not _is_line_rule(each)]  # before or behind ours
    settings["normalizer"] = {"type": "Sequence", "normalizers": own} if own else None
    settings["post_processor"] = settings["truncation"] = settings["padding"] = None
    known = [token for token in settings["added_tokens"] if token["id"] < len(names)]
    settings["added_tokens"] = [token for token in known if token["content"] not in private]
    unknown = [ONCE_UNKNOWN] if names[0] == ONCE_UNKNOWN else []
    return Subwords(Tokenizer.from_str(json.dumps(settings)), owner, unknown)


def _is_line_rule(normalizer: dict[str, Any]) -> bool:
    pattern = (normalizer.get("pattern") or {}).get("Regex")
    return normalizer["type"] == "Replace" and pattern in (_LINE_END, _LINE_START, _LAST_RETURN)
