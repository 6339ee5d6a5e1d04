"""`Tree`, nltk's: every tree of this package is one.

nltk asks for a home folder as it is imported, and raises an exception where a user has none; nothing of ours needs it.
"""

import os
import tempfile

_HOMELESS = os.path.expanduser("~") == "~"  # noqa: PTH111 - Path.home() raises an exception then
if _HOMELESS:
    os.environ["HOME"] = tempfile.gettempdir()
try:
    from nltk.tree import Tree
finally:
    if _HOMELESS:
        del os.environ["HOME"]

__all__ = ["Tree"]
