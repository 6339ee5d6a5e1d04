"""A component of spaCy pipelines: surprisal, distance and tree of every sentence; nothing else here imports spaCy.

`nlp.add_pipe("gatedrnn", config={"run": "runs/mine"})` finds it by its entry point, without an import.
"""

from gatedrnn.core.errors import ArgumentError

try:
    import spacy  # noqa: F401 - whether it is there
except ImportError as missing:
    advice = "Install it: pip install 'gatedrnn[spacy]'"
    raise ArgumentError("gatedrnn.spacy_component", "needs the library spaCy", str(missing), advice) from missing

from gatedrnn.spacy_component.component import Component, make

__all__ = ["Component", "make"]
