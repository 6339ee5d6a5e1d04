"""A neural probabilistic context-free grammar: a distribution over the trees of a sentence, learned from sentences alone.

Dimensions: T words, B batch, V vocabulary, N non-terminals, P pre-terminals, S = N + P symbols, D state.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from gatedrnn.core.checks import positive_int
from gatedrnn.core.errors import ArgumentError
from gatedrnn.models.config import required
from gatedrnn.models.finite import finite
from gatedrnn.models.inside import inside
from gatedrnn.models.loss import whole_numbers
from gatedrnn.models.saving import PretrainedModel

LONGEST = 300
"""Words of the longest sentence that is read: time grows with their cube, memory with their square."""

SPANS_AT_ONCE = 1 << 16
"""Spans of words that are read side by side where no gradient of the rules is wanted."""


@dataclass(frozen=True)
class GrammarConfig:
    """A neural probabilistic context-free grammar.

    Args:
        vocabulary_size: V, set from the data.
        nonterminals: N, symbols of constituents.
        preterminals: P, symbols of single words.
        state_size: D, the width of a symbol's vector.

    Raises: ArgumentError: a value is out of range.
    """

    vocabulary_size: int | None = None
    nonterminals: int = 30
    preterminals: int = 60
    state_size: int = 256

    def __post_init__(self) -> None:
        if self.vocabulary_size is not None:
            positive_int("model.vocabulary_size", self.vocabulary_size)
        for name in ("nonterminals", "preterminals", "state_size"):
            positive_int(f"model.{name}", getattr(self, name))

    @classmethod
    def without_unread(cls, values: dict[str, Any], names: Collection[str] | None = None) -> dict[str, Any]:
        """`values`: no key depends on another one, as options depend on a cell."""
        return values


@final
class Residual(nn.Module):
    """x + ReLU(W ReLU(U x)), with biases [S, D] → [S, D]. Args: size: D."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(size, size), nn.ReLU(), nn.Linear(size, size), nn.ReLU())

    def forward(self, x_SD: Tensor) -> Tensor:
        """The sum."""
        return x_SD + self.inner(x_SD)


@final
class Grammar(PretrainedModel):
    """Log-probabilities of sentences under a grammar in Chomsky normal form, and of the spans of their trees.

    start → A, A → B C and P → word, where A is a non-terminal and B and C are symbols of either kind. Every distribution
    is a softmax over products of symbols' vectors, so that symbols share what they learn.

    Equations: Kim, Dyer & Rush 2019, sec. 2.2. Departs: none known; weights are drawn Xavier-uniform, as in the authors' code.
    Args: config: with its vocabulary size.
    Raises: ArgumentError: the vocabulary size is missing.
    """

    kind = GrammarConfig

    def __init__(self, config: GrammarConfig, backend: str = "auto") -> None:
        super().__init__()
        vocabulary_size = required(config, "vocabulary_size")
        self.config, size = config, config.state_size
        self.start = nn.Parameter(torch.empty(1, size))
        self.symbols = nn.Parameter(torch.empty(config.nonterminals + config.preterminals, size))
        self.root = nn.Sequential(
            nn.Linear(size, size), Residual(size), Residual(size), nn.Linear(size, config.nonterminals)
        )
        self.pairs = nn.Linear(size, (config.nonterminals + config.preterminals) ** 2)
        self.word = nn.Sequential(nn.Linear(size, size), Residual(size), Residual(size))
        self.words = nn.Linear(size, vocabulary_size)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)

    def forward(self, tokens_TB: Tensor, lengths_B: Tensor | Sequence[int], spans_BTT: Tensor | None = None) -> Tensor:
        """Log-probability of each sentence in nats, summed over its trees [B].

        Args:
            tokens_TB: ids [T, B], of any integer type, in 0…V − 1 beyond a sentence's length too.
            lengths_B: words of each sentence, 2 … T.
            spans_BTT: scores of spans [B, T, T], as in `inside`.

        Raises: ArgumentError: a shape, a length or an id is out of range.
        """
        tokens_TB, lengths_B = self._checked(tokens_TB, lengths_B)
        if spans_BTT is not None:
            spans_BTT = self._scores(spans_BTT, [tokens_TB.shape[1], len(tokens_TB), len(tokens_TB)])
        rules_NSS, root_N, words_VP = self.rules()
        return inside(F.embedding(tokens_TB.t(), words_VP), rules_NSS, root_N, lengths_B, spans_BTT)

    def rules(self) -> tuple[Tensor, Tensor, Tensor]:
        """Log-probabilities of all rules.

        Returns: left and right child given the parent [N, S, S] (non-terminals first), non-terminal given the start [N], and word
            given the pre-terminal [V, P].
        """
        count, kept = self.config.nonterminals, self.symbols.dtype
        size = len(self.symbols)
        rules_NSS = self.pairs(self.symbols[:count]).log_softmax(-1, dtype=kept).view(count, size, size)
        words_PD = self.word(self.symbols[count:])
        words_VP = torch.addmm(self.words.bias[:, None], self.words.weight, words_PD.t()).log_softmax(0, dtype=kept)
        return rules_NSS, self.root(self.start)[0].log_softmax(-1, dtype=kept), words_VP

    def spans(self, tokens_TB: Tensor, lengths_B: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """The probability of each span given the sentence, and the log-probability of the sentence.

        Args: as `forward`.
        Returns: [B, T, T], of words i … j at [b, i, j], 0 where there is no such span; log-probability in nats [B].
        Raises: as `forward`. CheckpointError: a probability is not finite.
        """
        tokens_TB, lengths_B = self._checked(tokens_TB, lengths_B)
        (steps, batch), weight = tokens_TB.shape, self.symbols
        with torch.inference_mode(False), torch.enable_grad():
            scores = torch.zeros(batch, steps, steps, dtype=weight.dtype, device=weight.device, requires_grad=True)
            with torch.no_grad():
                rules_NSS, root_N, words_VP = self.rules()
            words_BTP = F.embedding(tokens_TB.t(), words_VP)
            found_B = inside(words_BTP, rules_NSS, root_N, lengths_B.clone(), scores)
            (probability_BTT,) = torch.autograd.grad(found_B.sum(), scores)
        return finite("spans", probability_BTT), finite("log-probability", found_B.detach())

    def _scores(self, spans_BTT: Tensor, shape: list[int]) -> Tensor:
        """Of the model's type, on its device. Raises: ArgumentError: they are not one number for each span."""
        if list(spans_BTT.shape) != shape or not spans_BTT.is_floating_point():
            got, advice = f"{spans_BTT.dtype} {list(spans_BTT.shape)}", "Give a score for each first and last word"
            raise ArgumentError("Grammar.spans", f"must be floating-point numbers {shape}", got, advice)
        return spans_BTT.to(self.symbols)

    def _checked(self, tokens_TB: Tensor, lengths_B: Tensor | Sequence[int]) -> tuple[Tensor, Tensor]:
        """Both as int64 on the model's device. Raises: ArgumentError: see `forward`."""
        device, advice = self.symbols.device, "Give one length per sentence"
        if self.symbols.dtype == torch.float16:
            advice = "Use bfloat16 or float32: probabilities of sentences are too small for it"
            raise ArgumentError("Grammar", "cannot compute in float16", "weights of float16", advice)
        tokens_TB = whole_numbers("Grammar.tokens", tokens_TB, "[T, B]", "Time comes first")
        given = torch.as_tensor(lengths_B) if len(lengths_B) else torch.zeros(0, dtype=torch.int64)
        lengths_B = whole_numbers("Grammar.lengths", given, "[B]", advice).to(device)
        if lengths_B.shape != tokens_TB.shape[1:]:
            got = f"{list(lengths_B.shape)} for ids {list(tokens_TB.shape)}"
            raise ArgumentError("Grammar.lengths", "must be one per column of the ids [T, B]", got, advice)
        if len(lengths_B) and not 2 <= int(lengths_B.min()) <= int(lengths_B.max()) <= len(tokens_TB):
            got = f"{int(lengths_B.min())} to {int(lengths_B.max())}"
            rule = f"must be between 2 and the {len(tokens_TB)} words of a column"
            raise ArgumentError("Grammar.lengths", rule, got, "A sentence of one word has no binary tree")
        most = self.words.out_features - 1
        if tokens_TB.numel() and not 0 <= int(tokens_TB.min()) <= int(tokens_TB.max()) <= most:
            got = f"{int(tokens_TB.min())} to {int(tokens_TB.max())}"
            raise ArgumentError("Grammar.tokens", f"ids must lie in 0…{most}", got, "Is it another vocabulary's?")
        return tokens_TB.to(device), lengths_B


torch.serialization.add_safe_globals([GrammarConfig])  # a checkpoint's hyperparameters, under weights_only=True
