"""Export of policies to files that other programs run.

The package and its function have one name: `shoal.export(...)` calls `shoal.export.api.export`, imported then.
"""

import sys
from types import ModuleType
from typing import Any


class _Callable(ModuleType):
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        from shoal.export.api import export  # noqa: PLC0415

        return export(*args, **kwargs)


sys.modules[__name__].__class__ = _Callable
