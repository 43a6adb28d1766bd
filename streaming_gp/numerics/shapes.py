"""GPflow's executable shapes, for this package.

check_shapes also rewrites docstrings by their shapes, which would take longer than all else of the
import together, and ours say their shapes already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import check_shapes as library
from check_shapes.config import get_rewrite_docstrings, set_rewrite_docstrings

F = TypeVar("F", bound=Callable[..., object])


def check_shapes(*specifications: str) -> Callable[[F], F]:
    """Decorator: check the shapes of arguments and results at each call.

    :param specifications: What check_shapes takes, such as ``"X: [N, D]"`` or ``"return: [N]"``.
    """

    def decorated(function: F) -> F:
        before = get_rewrite_docstrings()
        set_rewrite_docstrings(None)
        try:
            checked: F = library.check_shapes(*specifications)(function)
        finally:
            set_rewrite_docstrings(before)
        return checked

    return decorated
