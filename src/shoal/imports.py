"""A user's own classes by `module:Name`."""

import importlib
from typing import Any

from shoal.errors import ShoalError, nearest


def imported(name: str) -> Any:
    """What `module:Name` names.

    Raises:
      ShoalError: the name has no colon, the module cannot be found, or it lacks the name.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ShoalError(f"{name!r} is not module:Name, such as my_package.my_module:MyClass.")
    try:
        module = importlib.import_module(module_name)
    except (ModuleNotFoundError, ValueError, TypeError) as error:  # the latter two are of names such as ".x"
        missing = getattr(error, "name", None) or module_name
        if module_name != missing and not module_name.startswith(missing + "."):
            raise  # the module is there, but something that it imports is not
        raise ShoalError(f"{name!r} cannot be imported: there is no module {missing!r}.") from error
    try:
        return getattr(module, attribute)
    except AttributeError:
        hint = nearest(attribute, [x for x in vars(module) if not x.startswith("_")])
        raise ShoalError(f"{name!r} cannot be imported: {module_name} has no {attribute!r}{hint}.") from None


def import_name(value: Any) -> str:
    """`module:Name` of a class or function, by which `imported` finds it again."""
    return f"{value.__module__}:{value.__qualname__}"
