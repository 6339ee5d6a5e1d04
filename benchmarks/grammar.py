"""How long a training step of a neural grammar takes: CPU time of one core, by number of symbols and words.

    python benchmarks/grammar.py
    python benchmarks/grammar.py --symbols 45 90 --words 20 --batch 32

A step is forward, backward, clipping and Adam on random words. "inside" is the inside algorithm and its gradients alone.
Rounds go through all sizes in turn, and the fastest round of each counts.
"""

import argparse
import time

import torch
from torch import Tensor, nn

from gatedrnn.models.grammar import Grammar, GrammarConfig
from gatedrnn.models.inside import inside


class Steps:
    """Steps of one size.

    Args: symbols: how many non-terminals and pre-terminals; words: of each sentence; batch: sentences; vocabulary: words.
    """

    def __init__(self, symbols: tuple[int, int], words: int, batch: int, vocabulary: int) -> None:
        torch.manual_seed(1)
        self.symbols, self.words, self.batch = symbols, words, batch
        self.model = Grammar(GrammarConfig(vocabulary, *symbols))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.001, betas=(0.75, 0.999), fused=True)
        self.ids_TB = torch.randint(0, vocabulary, (words, batch))
        self.lengths_B = torch.full((batch,), words)
        self.whole_ms = self.inside_ms = float("inf")

    def round(self) -> None:
        """One training step, and one inside algorithm; the fastest of each is kept, in ms a sentence."""
        began = time.thread_time()
        self.optimizer.zero_grad()
        (-self.model(self.ids_TB, self.lengths_B).sum() / self.lengths_B.sum()).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.2)
        self.optimizer.step()
        self.whole_ms = min(self.whole_ms, (time.thread_time() - began) * 1e3 / self.batch)
        rules = [each.detach().requires_grad_() for each in self.model.rules()]
        words_BTP = rules[2][self.ids_TB.t()].detach().requires_grad_()
        self.inside_ms = min(self.inside_ms, self._inside(words_BTP, rules) * 1e3 / self.batch)

    def _inside(self, words_BTP: Tensor, rules: list[Tensor]) -> float:
        began = time.thread_time()
        inside(words_BTP, rules[0], rules[1], self.lengths_B).sum().backward()
        return time.thread_time() - began


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--symbols", type=int, nargs=2, action="append", help="non-terminals and pre-terminals")
    parser.add_argument("--words", type=int, nargs="+", default=[10, 20, 30])
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--vocabulary", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=10)
    options = parser.parse_args()
    torch.set_num_threads(1)
    symbols = options.symbols or [(15, 30), (30, 60), (60, 120)]
    every = [Steps((s[0], s[1]), n, options.batch, options.vocabulary) for s in symbols for n in options.words]
    for _ in range(options.rounds):
        for steps in every:
            steps.round()
    print("ms a sentence: symbols, words, a training step, inside and its gradients alone")
    for steps in every:
        print(f"{steps.symbols}  {steps.words:3}  {steps.whole_ms:7.2f}  {steps.inside_ms:7.2f}")


if __name__ == "__main__":
    main()
