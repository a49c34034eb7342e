"""Import of a user's own classes and functions by `module:Name`, and of packages that only parts of Shoal need."""

import functools
import importlib
import importlib.machinery
import importlib.metadata
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from shoal.base.errors import ShoalError, UserCodeError, nearest
from shoal.base.installation import install_command
from shoal.base.user_errors import describe_error, format_location, user_code_error, user_frames

# A folder with config.json and one of these is a run directory.
RUN_FILES = ("metrics.jsonl", "summary.json", "checkpoints", "best", "last")


class UserModules:
    """A finder of the modules in a folder, for `import_object` and for the modules that it found there.

    The folder is not on `sys.path`: a user's file with the name of a module that Python, Shoal or a library imports,
    now or later, would be taken for it. Installed packages and the standard library come first.
    """

    def __init__(self, folder: str):
        self._folder = folder
        self._names: set[str] = set()  # of the modules that were found

    def find_spec(
        self, name: str, path: object = None, target: object = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of a module of the folder; None for any other importer, and for modules of a package."""
        if path is not None or not self._may_import():
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, [self._folder])
        if spec is not None:
            self._names.add(name)
        return spec

    def _may_import(self) -> bool:
        """Report whether the code that imports is `import_object`, or from the folder itself."""
        frame = sys._getframe(2)
        while frame.f_back and str(frame.f_globals.get("__name__")).startswith(("importlib", "_frozen_")):
            frame = frame.f_back
        importer = str(frame.f_globals.get("__name__"))
        return importer == __name__ or importer.partition(".")[0] in self._names


def find_user_modules(folder: str | None = None) -> None:
    """Let `import_object` find the modules in a folder, None for the current directory, after all others."""
    sys.meta_path[:] = [x for x in sys.meta_path if not isinstance(x, UserModules)]
    sys.meta_path.append(UserModules(os.getcwd() if folder is None else folder))


def import_package(needed_by: str, package: str, extra: str, oldest: str, module: str = "") -> ModuleType:
    """Import a package that only a part of Shoal needs.

    Args:
      needed_by: the beginning of a sentence, such as "tuning needs".
      package: its name as it is installed.
      extra: of pyproject.toml, that installs it.
      oldest: the first version that has what is used; "" for a package of a checkout, which may have none.
      module: that is imported, where it has another name.
    Raises:
      ShoalError: the package, or one that it needs itself, is not installed, or it is older.
    """

    def numbers(version: str) -> tuple[int, ...]:
        return tuple(map(int, re.findall(r"\d+", version)[:3]))

    try:
        version = importlib.metadata.version(package) if oldest else ""
        if numbers(version) < numbers(oldest):
            raise ShoalError(
                f"{needed_by} {package} {oldest} or newer, and {version} is installed; `{install_command(extra)}` "
                "installs a newer one"
            )
        return importlib.import_module(module or package)
    except ModuleNotFoundError as error:
        missing = (error.name or package).partition(".")[0]
        raise ShoalError(
            f"{needed_by} {missing}, which is not installed; `{install_command(extra)}` installs it"
        ) from error


def import_object(name: str) -> Any:
    """Import the object that `module:Name` names.

    Raises:
      ShoalError: the name is not of this form, the module cannot be found, or it lacks the name.
      UserCodeError: the module exists and fails while it is imported.
    """
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise ShoalError(f"{name!r} is not module:Name, such as my_package.my_module:MyClass.")
    module = import_module(module_name, name)
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        if user_frames(error):
            raise _import_failure(name, error) from error  # the module's own __getattr__
        hint = _hidden_file(module_name) or nearest(
            attribute, [x for x in vars(module) if not x.startswith("_")]
        )
        raise ShoalError(f"{name!r} cannot be imported: {module_name} has no {attribute!r}{hint}.") from None
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from error


def chosen_function(
    setting: str, choice: object, named: Mapping[str, Callable[..., object]]
) -> Callable[..., Any]:
    """Return the function that a setting chooses: by a name, as `module:function`, or given itself.

    Raises:
      ShoalError: there is none of that name, it cannot be imported, or it is no function.
    """
    if isinstance(choice, str) and choice in named:
        return named[choice]
    if isinstance(choice, str) and ":" not in choice:
        hint = nearest(choice, named)
        raise ShoalError(f"{setting}={choice!r} is none of {', '.join(named)}, nor module:function{hint}.")
    return load_function(setting, choice)


def load_function(setting: str, choice: object) -> Callable[..., Any]:
    """Return a user's function, given itself or as `module:function`.

    Raises:
      ShoalError: it cannot be imported, or called.
    """
    function = import_object(choice) if isinstance(choice, str) else choice
    if not callable(function):
        raise ShoalError(f"{setting}={choice!r} is not a function.")
    return cast(Callable[..., Any], function)


def import_name(value: object) -> str:
    """Return the `module:Name` of a class or function, by which `import_object` finds it again."""
    return f"{getattr(value, '__module__', None)}:{getattr(value, '__qualname__', type(value).__qualname__)}"


def is_found_by_name(value: object) -> bool:
    """Report whether `import_name` names this class or function itself: no lambda, partial, instance or method."""
    module = sys.modules.get(getattr(value, "__module__", ""))
    names = getattr(value, "__qualname__", "").split(".")
    return functools.reduce(lambda found, name: getattr(found, name, None), names, module) is value


def import_module(module_name: str, name: str) -> ModuleType:
    """Import a user's module.

    Args:
      name: what names it, for a sentence: `module:Name`, or the setting.
    Raises:
      ShoalError: the module cannot be found.
      UserCodeError: it fails while it is imported.
    """
    if not all(part.isidentifier() for part in module_name.split(".")) or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").removeprefix("./").replace("/", ".").strip(".")
        valid = dotted != module_name and all(part.isidentifier() for part in dotted.split("."))
        hint = f"; did you mean {name.replace(module_name, dotted)!r}?" if valid else ""
        raise ShoalError(
            f"{name!r} cannot be imported: there is no module {module_name!r}, since a module is named by words "
            f"with dots between{hint}."
        )
    _refuse_run_directories(module_name, name)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if user_frames(error) or error.name is None:
            # The module exists, but something that it imports does not.
            raise _import_failure(name, error) from error
        hint = _hidden_file(module_name) or nearest(
            module_name, [path.stem for path in Path.cwd().glob("*.py")]
        )
        raise ShoalError(f"{name!r} cannot be imported: there is no module {error.name!r}{hint}.") from error
    except (Exception, SystemExit) as error:
        if module_name.partition(".")[0] == "shoal" and not user_frames(error):
            raise  # a module of Shoal's own
        raise _import_failure(name, error) from error


def _hidden_file(module_name: str) -> str:
    """Say that another module hides a file of the current directory, which may be meant; else ""."""
    package = module_name.partition(".")[0]
    module = sys.modules.get(package)
    paths = [path for path in (Path.cwd() / f"{package}.py", Path.cwd() / package) if path.exists()]
    found = [getattr(module, "__file__", None), *getattr(module, "__path__", ())]
    if module is None or not paths or any(x and Path(x).is_relative_to(Path.cwd()) for x in found):
        return ""
    return f"; this is not {paths[0].name!r} of the current directory, which needs another name to be found"


def _refuse_run_directories(module_name: str, name: str) -> None:
    """Require that a module does not lie inside of a run directory, whose files may be a stranger's.

    Packages are imported one by one, each after it was found to lie elsewhere.
    """
    words = module_name.split(".")
    for number in range(1, len(words) + 1):
        package = ".".join(words[:number])
        if package in sys.modules:
            continue
        try:
            spec = importlib.util.find_spec(package)
        except Exception:  # the import will say it better
            return
        if spec is None:
            return
        places = [*(spec.submodule_search_locations or ()), *([spec.origin] if spec.has_location else [])]
        for path in (Path(place).absolute() for place in places if place):
            for folder in (path, *path.parents):
                if (folder / "config.json").is_file() and any((folder / x).exists() for x in RUN_FILES):
                    raise ShoalError(
                        f"{name!r} cannot be imported: its module lies in the run directory {str(folder)!r}, "
                        "and code of a run directory is never run; move the module elsewhere."
                    )


def _import_failure(name: str, error: BaseException) -> UserCodeError:
    """Make the error for a module that fails while it is imported."""
    if isinstance(error, UserCodeError):  # of a public function that the module calls; it names the line
        return error
    failure = user_code_error(error, f"importing {name!r}")
    if isinstance(error, SyntaxError) and error.filename:  # the line that cannot be read has no frame
        source_line = "".join(traceback.format_exception_only(error)[:-1]).rstrip("\n")
        location = format_location(error.filename, error.lineno)
        frames = f"{failure.frames if failure else ''}\n{source_line}".lstrip("\n")
        return UserCodeError(
            f"importing {name!r} failed in {location}: {type(error).__name__}: {error.msg}.", frames
        )
    return failure or UserCodeError(f"importing {name!r} failed: {describe_error(error)}.")
