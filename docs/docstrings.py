"""A griffe extension: docstrings that explain parameters in plain lines are rendered as lists."""

import sys
from pathlib import Path
from typing import Any

from griffe import Extension, Object

# griffe loads an extension by its path, so its folder is not on the import path.
sys.path.insert(0, str(Path(__file__).parent))

from comments import from_docstring


class ParameterLists(Extension):
    """Gives every docstring to `from_docstring` before it is rendered."""

    def on_object(self, *, obj: Object, **_: Any) -> None:  # noqa: ANN401  # griffe's signature
        """Rewrite the docstring of a module, class, function or attribute."""
        if obj.docstring is not None:
            obj.docstring.value = from_docstring(obj.docstring.value)
