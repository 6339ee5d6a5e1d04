"""A picture of one sentence of a demo: gold tree, induced tree, master gate. Usage: draw_sentence.py DEMO OUT.png [NUMBER]"""

import json
import sys
from pathlib import Path

from gatedrnn.plots.trees import save, tree_and_gates

if len(sys.argv) < 3:
    sys.exit("usage: draw_sentence.py DEMO OUT.png [NUMBER]   (DEMO: the folder that `gatedrnn demo` wrote)")
sentences = json.loads(Path(sys.argv[1], "sentences.json").read_text(encoding="utf-8"))
sentence = sentences[int(sys.argv[3]) if len(sys.argv) > 3 else 0]
gold = [(label, tuple(span)) for label, span in sentence["gold"]]
induced = [tuple(span) for span in sentence["induced"]]
save(tree_and_gates(sentence["words"], gold, induced, sentence["gates"]), Path(sys.argv[2]))
print(" ".join(sentence["words"]), f"(F1 {sentence['f1']:.0f})")
