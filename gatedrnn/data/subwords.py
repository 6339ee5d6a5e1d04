"""Subwords, by Hugging Face's `tokenizers`: learned from a text (byte-level BPE), or a given `tokenizer.json`.

A tokenizer's own ids are mapped to ours, in which `<unk>` is 0 and `<eos>` 1.
"""

import json
import re
from array import array
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, final

import numpy as np

from gatedrnn.core.errors import ArgumentError, DataError
from gatedrnn.core.files import write_text
from gatedrnn.data.levels import EOS, UNK, LineEncoder

_REMEMBERED_PIECES = 1 << 19
_OTHER_SPACE = re.compile(r"([^\S ])\0 ")


@final
class Subwords:
    """A tokenizer as a level.

    Args:
        tokenizer: a `tokenizers.Tokenizer`; truncation, padding and dropout are switched off, special tokens never added.
        owner: its name in messages.
        unknown: tokens that are read as `<unk>`, besides the tokenizer's own unknown token.

    Raises: DataError: it has no token, or two of one id.
    """

    name = "subword"

    def __init__(self, tokenizer: Any, owner: str = "tokenizer", unknown: Collection[str] = ()) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        if getattr(tokenizer.model, "dropout", None):
            tokenizer.model.dropout = None
        self.tokenizer, self.owner = tokenizer, owner
        self.settings: str = tokenizer.to_str()
        theirs: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
        if not theirs or len(set(theirs.values())) != len(theirs):
            got = f"{len(theirs)} tokens with {len(set(theirs.values()))} ids"
            raise DataError(owner, "must give each of its tokens an id of its own", got, "Is it a tokenizer.json?")
        settings = json.loads(self.settings)
        self.of_bytes, other = _of_bytes(settings["decoder"]), _unknown_ids(settings["model"], theirs)
        ours = {token: i for token, i in theirs.items() if i not in other and token not in (EOS, *unknown)}
        self.words = [UNK, EOS, *sorted(ours, key=lambda token: ours[token])]
        self.table = np.zeros(max(theirs.values()) + 1, np.int32)
        self.table[[theirs[token] for token in self.words[2:]]] = np.arange(2, len(self.words), dtype=np.int32)
        if EOS in theirs:
            self.table[theirs[EOS]] = 1

    @classmethod
    def learn(cls, batches: Iterable[list[str]], vocabulary_size: int) -> "Subwords":
        """Byte-level BPE of at most `vocabulary_size` tokens, the bytes, `<unk>` and `<eos>` included.

        An `<unk>` or `<eos>` written in the text is that token, as at word level.
        """
        library = _library()
        byte_level = library.pre_tokenizers.ByteLevel
        tokenizer = library.Tokenizer(library.models.BPE())
        tokenizer.pre_tokenizer = byte_level(add_prefix_space=False)
        tokenizer.decoder = library.decoders.ByteLevel()
        trainer = library.trainers.BpeTrainer(
            vocab_size=vocabulary_size,
            special_tokens=[UNK, EOS],
            initial_alphabet=byte_level.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(batches, trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, path: Path | str, unknown: Collection[str] = ()) -> "Subwords":
        """Read a `tokenizer.json`. Args: unknown: as of the class. Raises: DataError: missing, or not a tokenizer."""
        library = _library()
        try:
            tokenizer = library.Tokenizer.from_str(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise DataError(str(path), "must be a readable file", error.strerror, "Check the path") from error
        except MemoryError:
            raise
        except Exception as error:  # the library raises bare Exception
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            advice = "Give a tokenizer.json of Hugging Face tokenizers"
            raise DataError(str(path), "is not a tokenizer", reason, advice) from error
        return cls(tokenizer, str(path), unknown)

    def save(self, path: Path) -> None:
        """Write `tokenizer.json`, atomically."""
        write_text(path, self.settings)

    @property
    def complete(self) -> bool:
        """Whether every text but an empty one has a token: each byte is one, and nothing is left out before that."""
        settings, known = json.loads(self.settings), set(self.words)
        kind = (settings["pre_tokenizer"] or {}).get("type")
        alphabet = _library().pre_tokenizers.ByteLevel.alphabet()
        return kind == "ByteLevel" and settings["normalizer"] is None and known.issuperset(alphabet)

    def tokens(self, line: str) -> list[str]:
        """Subwords of a line, as the tokenizer writes them; `<unk>` for its unknown token."""
        return [self.words[i] for i in self.encode_each([line])[0]]

    def readable(self, tokens: Iterable[str]) -> list[str]:
        """Tokens as people read them: those of bytes as their text, with ▁ for a space and \\xNN for a part of a letter."""
        return [_text_of_bytes(token) if self.of_bytes else token for token in tokens]

    def join(self, tokens: Sequence[str]) -> str:
        """The text that these subwords make, by the tokenizer's decoder."""
        decoder = self.tokenizer.decoder
        return decoder.decode(list(tokens)) if decoder else " ".join(tokens)

    def encoder(self, ids: Mapping[str, int]) -> LineEncoder:
        """Encodes lines in bulk; what stands between single spaces is encoded once, where that cannot change the result."""
        return _Pieces(self).encode if _cuts_at_spaces(json.loads(self.settings)) else self.encode

    def encode(self, lines: list[str]) -> np.ndarray:
        """Ids of lines, each followed by `<eos>`, int32 [tokens]."""
        return np.fromiter(chain.from_iterable([*ids, 1] for ids in self.encode_each(lines)), np.int32)

    def encode_each(self, texts: list[str]) -> list[list[int]]:
        """Ids of each text."""
        return [self.table[encoding.ids].tolist() for encoding in self._encodings(texts)]

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of a text, and the characters [start, end) that each stands for."""
        (encoding,) = self._encodings([text])
        return self.table[encoding.ids].tolist(), encoding.offsets

    def _encodings(self, texts: list[str]) -> list[Any]:
        try:
            return self.tokenizer.encode_batch(texts, add_special_tokens=False)
        except Exception as error:  # the library raises bare Exception, as for an unknown token without a name
            reason = str(error).splitlines()[0]
            raise DataError(self.owner, "cannot read the text", reason, "Give another tokenizer.json") from error


def _of_bytes(decoder: Any) -> bool:
    """Whether a decoder, as settings write it, makes text of tokens in which a letter stands for a byte."""
    parts = [] if decoder is None else decoder.get("decoders", [decoder])
    return any(part.get("type") == "ByteLevel" for part in parts)


def _letters_of_bytes() -> dict[str, int]:
    """The alphabet of byte-level BPE (Radford et al. 2019): a byte that can be printed is its letter, others follow from 256."""
    printed = {*range(33, 127), *range(161, 173), *range(174, 256)}
    others = [byte for byte in range(256) if byte not in printed]
    return {chr(byte): byte for byte in printed} | {chr(256 + k): byte for k, byte in enumerate(others)}


_BYTES = _letters_of_bytes()


def _text_of_bytes(token: str) -> str:
    if not _BYTES.keys() >= set(token):
        return token
    return bytes(map(_BYTES.__getitem__, token)).decode(errors="backslashreplace").replace(" ", "▁")


@final
class _Pieces:
    """A tokenizer with a memory: every different piece of a text, a word with its space say, is encoded once."""

    def __init__(self, subwords: Subwords) -> None:
        self.subwords = subwords
        self._forget()

    def encode(self, lines: list[str]) -> np.ndarray:
        """As `Subwords.encode`."""
        text = "\0\n\0".join([*lines, ""]).replace(" ", "\0 ")
        while " \0 " in text:  # spaces in a row stay in one piece
            text = text.replace(" \0 ", "  ")
        pieces = _OTHER_SPACE.sub(r"\1 ", text).split("\0")  # and with other white space before them
        if len(self.rows) > _REMEMBERED_PIECES:
            self._forget()
        self._learn([piece for piece in dict.fromkeys(pieces) if piece not in self.rows])
        rows = np.fromiter(map(self.rows.__getitem__, pieces), np.int64, len(pieces))
        bounds = np.frombuffer(self.bounds, np.int64)
        starts, lengths = bounds[rows], bounds[rows + 1] - bounds[rows]
        ends = np.cumsum(lengths)
        places = np.arange(ends[-1]) + np.repeat(starts - ends + lengths, lengths)
        return np.frombuffer(self.ids, np.int32)[places]

    def _learn(self, pieces: list[str]) -> None:
        for piece, ids in zip(pieces, self.subwords.encode_each(pieces), strict=True):
            self.rows[piece] = len(self.rows)
            self.ids.extend(ids)
            self.bounds.append(len(self.ids))

    def _forget(self) -> None:
        self.rows = {"\n": 0}
        self.ids, self.bounds = array("i", [1]), array("q", [0, 1])  # row r: ids[bounds[r] : bounds[r + 1]]


def _cuts_at_spaces(settings: dict[str, Any]) -> bool:
    """Whether a cut before spaces that follow a visible character changes no token: so in GPT-2's byte-level BPE, and ours."""
    before = settings["pre_tokenizer"] or {}
    whole = all(" " not in t["content"] and not t["lstrip"] and not t["rstrip"] for t in settings["added_tokens"])
    gpt2 = before.get("type") == "ByteLevel" and before.get("use_regex") and not before.get("add_prefix_space")
    return bool(whole and gpt2 and settings["normalizer"] is None and settings["model"]["type"] == "BPE")


def _unknown_ids(model: dict[str, Any], ids: Mapping[str, int]) -> set[int | None]:
    """Ids that mean the unknown token: `<unk>`, and what the model calls so."""
    name = model.get("unk_token")  # null where every text has tokens
    return {ids.get(UNK), ids.get(name) if isinstance(name, str) else None, model.get("unk_id")}


def _library() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        rule, got = "subword needs the library tokenizers", "no such module"
        advice = "Install it: pip install 'gatedrnn[hf]' or 'gatedrnn[mt]'"
        raise ArgumentError("data.level", rule, got, advice) from error
    return tokenizers
