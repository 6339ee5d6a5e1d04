"""A text to go on from, as tokens and ids."""

from collections.abc import Sequence

from gatedrnn.data.levels import EOS
from gatedrnn.data.vocabulary import Vocabulary


def prompt_tokens(vocabulary: Vocabulary, text: str) -> list[str]:
    """Tokens of a text of any number of lines, `<eos>` where a line ends: what `Vocabulary.text` makes a text of."""
    first, *more = text.replace("\r\n", "\n").split("\n")
    tokens = vocabulary.tokens(first)
    for line in more:
        tokens += [EOS, *vocabulary.tokens(line)]
    return tokens


def prompt_ids(vocabulary: Vocabulary, tokens: Sequence[str], mapping: str = "number") -> list[int]:
    """Ids of a prompt's tokens; words are looked up as in text that was not prepared as the training text was.

    Args: mapping: as in `Vocabulary.encode_foreign`; of no use at other levels.
    """
    return vocabulary.encode_foreign(tokens, mapping) if vocabulary.level == "word" else vocabulary.encode(tokens)
