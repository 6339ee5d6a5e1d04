"""Runs served over HTTP: completions as OpenAI's client asks for them, trees, surprisal; needs the extra `serve`.

`gatedrnn.serve.server` has what serves them; nothing else here imports FastAPI or uvicorn before it is imported.
"""

from gatedrnn.serve.limits import Limits

__all__ = ["Limits"]
