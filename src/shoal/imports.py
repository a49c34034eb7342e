"""Import of a user's own classes and functions by `module:Name`."""

import functools
import importlib
import importlib.util
import sys
import traceback
from pathlib import Path
from typing import Any

from shoal.errors import ShoalError, UserCodeError, nearest
from shoal.user_code import describe_error, format_location, user_code_error, user_frames

# Where classes stand now that a config.json of an earlier version names by another module.
MOVED_MODULES = {
    "shoal.envs.grid.goals": "shoal.envs.grid.engine.goals",
    "shoal.envs.grid.layouts": "shoal.envs.grid.tasks.layouts",
    "shoal.envs.grid.minigrid": "shoal.envs.grid.tasks.minigrid",
    "shoal.envs.grid.rules": "shoal.envs.grid.engine.rules",
    "shoal.envs.grid.world": "shoal.envs.grid.engine.world",
    "shoal.envs.grid.xland": "shoal.envs.grid.tasks.xland",
    "shoal.nets.recurrent": "shoal.nets.memory.recurrent",
}
MOVED_NAMES = {"shoal.envs.grid.rulesets:Ruleset": "shoal.envs.grid.rulesets.rulesets:Ruleset"}

# A folder with config.json and one of these is a run directory.
RUN_FILES = ("metrics.jsonl", "summary.json", "checkpoints", "best", "last")


def import_object(name: str) -> Any:
    """Import the object that `module:Name` names.

    Raises:
      ShoalError: the name is not of this form, the module cannot be found, or it lacks the name.
      UserCodeError: the module exists and fails while it is imported.
    """
    module_name, colon, attribute = MOVED_NAMES.get(name, name).partition(":")
    module_name = MOVED_MODULES.get(module_name, module_name)
    if not colon or not module_name or not attribute:
        raise ShoalError(f"{name!r} is not module:Name, such as my_package.my_module:MyClass.")
    module = _import_module(module_name, name)
    try:
        return functools.reduce(getattr, attribute.split("."), module)
    except AttributeError as error:
        if user_frames(error):
            raise _import_failure(name, error) from error  # the module's own __getattr__
        hint = nearest(attribute, [x for x in vars(module) if not x.startswith("_")])
        raise ShoalError(f"{name!r} cannot be imported: {module_name} has no {attribute!r}{hint}.") from None
    except (Exception, SystemExit) as error:
        raise _import_failure(name, error) from error


def import_name(value: Any) -> str:
    """Return the `module:Name` of a class or function, by which `import_object` finds it again."""
    return f"{value.__module__}:{getattr(value, '__qualname__', type(value).__qualname__)}"


def _import_module(module_name: str, name: str) -> Any:
    if not all(part.isidentifier() for part in module_name.split(".")) or module_name.endswith(".py"):
        dotted = module_name.removesuffix(".py").removeprefix("./").replace("/", ".").strip(".")
        valid = dotted != module_name and all(part.isidentifier() for part in dotted.split("."))
        hint = f"; did you mean {f'{dotted}:' + name.partition(':')[2]!r}?" if valid else ""
        raise ShoalError(
            f"{name!r} cannot be imported: there is no module {module_name!r}, since a module is named by words "
            f"with dots between{hint}."
        )
    _refuse_run_directories(module_name, name)
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if user_frames(error) or error.name is None:
            raise _import_failure(
                name, error
            ) from error  # the module exists, but something that it imports does not
        hint = nearest(module_name, [path.stem for path in Path.cwd().glob("*.py")])
        raise ShoalError(f"{name!r} cannot be imported: there is no module {error.name!r}{hint}.") from error
    except (Exception, SystemExit) as error:
        if module_name.partition(".")[0] == "shoal" and not user_frames(error):
            raise  # a module of Shoal's own
        raise _import_failure(name, error) from error


def _refuse_run_directories(module_name: str, name: str) -> None:
    """Require that a module does not lie inside of a run directory, whose files may be a stranger's.

    Packages are imported one by one, each after it was found to lie elsewhere.

    Raises:
      ShoalError: it does.
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
                        f"{name!r} cannot be imported: its module lies inside of the run directory {str(folder)!r}, "
                        "and code of a run directory is never run; move the module elsewhere."
                    )


def _import_failure(name: str, error: BaseException) -> UserCodeError:
    """Make the error for a module that fails while it is imported."""
    if isinstance(error, UserCodeError):  # of a public function that the module calls; it names the line
        return error
    failure = user_code_error(error, f"importing {name!r}")
    frames = failure.frames if failure else ""
    if isinstance(error, SyntaxError) and error.filename:  # the line that cannot be read has no frame
        source_line = "".join(traceback.format_exception_only(error)[:-1]).rstrip("\n")
        location = format_location(error.filename, error.lineno)
        frames = f"{frames}\n{source_line}".lstrip("\n")
        return UserCodeError(
            f"importing {name!r} failed in {location}: {type(error).__name__}: {error.msg}.", frames
        )
    return failure or UserCodeError(f"importing {name!r} failed: {describe_error(error)}.", frames)
