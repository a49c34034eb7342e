"""MuJoCo Playground's own objects behind its names: their configs, and the folder of robots that many need."""

import contextlib
import functools
import inspect
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.config.arguments import short_repr
from shoal.envs.brax_like.pictures import draw_without_a_window
from shoal.envs.registry import MAX_COUNT, resolve
from shoal.envs.suites.packages import cannot_be_made, import_suite, is_one_of, undisturbed, unknown_name
from shoal.envs.suites.static_values import defaults_of, plain_parameters
from shoal.types import Array, PyTree

PREFIX = "playground/"
LIMIT = "episode_length"  # the entry of a config
REPEAT = "action_repeat"  # the entry of a config that only Playground's training uses, which repeats actions
IMPL = "impl"  # of MuJoCo's physics, whose default in Playground is "warp"
MENAGERIE, VARIABLE = "menagerie", "SHOAL_MENAGERIE"
NESTED = "__"  # between the names of a nested entry: `reward_config__scales__pose`
OBSERVES_TIME = ("HandOver",)  # classes whose observation has the share of the limit that has passed


def _registry() -> Any:
    draw_without_a_window()
    return import_suite(PREFIX, "mujoco_playground").registry


def _check_name(name: str) -> None:
    names = _registry().ALL_ENVS
    if name not in names and ":" not in name:
        raise unknown_name(PREFIX, name, names)


@functools.cache
def _config(name: str) -> dict[str, Any]:
    """Return the entries of a name's default config by flat names; empty for a user's class."""
    _check_name(name)
    if ":" in name:
        return {}
    with undisturbed():
        return _flat(_registry().get_default_config(name).to_dict())


def _flat(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in config.items():
        flat |= (
            _flat(value, f"{prefix}{name}{NESTED}") if isinstance(value, Mapping) else {prefix + name: value}
        )
    return flat


def limit_of(name: str) -> int:
    """Return the time limit in steps."""
    return int(_config(name).get(LIMIT, 1000))


def is_cut(world: Any, before: PyTree) -> Array | bool:
    """Report whether a step from a state reaches the limit of a task that observes the time, which keeps it.

    The state after that step does not say so: the task sets its count back to 0 there.
    """
    if not is_one_of(world, "mujoco_playground", OBSERVES_TIME):
        return False
    return before.info["_steps"] + world._config.action_repeat >= world._config.episode_length


def parameters_of(name: str) -> dict[str, inspect.Parameter]:
    """Return the parameters: entries of the config that are numbers or texts, and the folder of robots."""
    if ":" in name:
        return plain_parameters(defaults_of(resolve(f"{PREFIX}{name}", name)))
    left_out = (LIMIT, IMPL, REPEAT)
    entries = {key: x for key, x in _config(name).items() if key not in left_out and key.isidentifier()}
    return plain_parameters(entries | {IMPL: "jax"} | ({MENAGERIE: ""} if _needs_robots(name) else {}))


@functools.cache
def world_of(name: str, arguments: tuple[tuple[str, Any], ...]) -> Any:
    """Make Playground's object of a name, one for each set of arguments, since it is hashed by its identity.

    Raises:
      ShoalError: it cannot be made, or needs robots of a folder that is not named.
    """
    _check_name(name)
    values = dict(arguments)
    menagerie = "" if ":" in name else values.pop(MENAGERIE, "")
    try:
        with undisturbed(), _robots(name, menagerie):
            return _made(name, values)
    except ShoalError:
        raise
    except Exception as error:
        raise cannot_be_made(f"{PREFIX}{name}", arguments, error) from error


def _made(name: str, values: Mapping[str, Any]) -> Any:
    if ":" in name:
        return resolve(f"{PREFIX}{name}", name)(**values)
    overrides = {key.replace(NESTED, "."): value for key, value in values.items()}
    world = _registry().load(name, config_overrides={IMPL: "jax", **overrides})
    if world.n_substeps < 1:
        raise ValueError(f"ctrl_dt={world.dt} is shorter than a step of the physics, sim_dt={world.sim_dt}")
    if not is_one_of(world, "mujoco_playground", OBSERVES_TIME) and LIMIT in _config(name):
        with world._config.unlocked():
            world._config.episode_length = MAX_COUNT
    return world


@contextlib.contextmanager
def _robots(name: str, folder: str) -> Iterator[None]:
    """Let Playground read the robots of MuJoCo's menagerie from a folder; it would download them otherwise.

    A user's class may need them or not.

    Raises:
      ShoalError: no folder is named for a robot, or it is none.
    """
    given = {MENAGERIE: folder, VARIABLE: os.environ.get(VARIABLE)}
    named = {f"{where}={short_repr(path)}": Path(path).expanduser() for where, path in given.items() if path}
    has_robots = (lambda path: any(path.glob("*/assets"))) if _needs_robots(name) else Path.is_dir
    found = next(filter(has_robots, named.values()), None)
    module = import_suite(PREFIX, "mujoco_playground._src.mjx_env")
    before = module.MENAGERIE_PATH
    if _needs_robots(name) and found is None and (named or not before.exists()):
        first = next(iter(named), "")
        wrong = f": {first} is not a folder of robots" if named else " needs robots of MuJoCo's menagerie"
        raise ShoalError(f"{PREFIX}{name}{wrong}; {_WHICH}")
    module.MENAGERIE_PATH = before if found is None else import_suite(PREFIX, "etils.epath").Path(found)
    try:
        yield
    finally:
        module.MENAGERIE_PATH = before


def _needs_robots(name: str) -> bool:
    return ":" not in name and name not in _registry().dm_control_suite.ALL_ENVS


_WHICH = (
    f"{MENAGERIE}=FOLDER or the environment variable {VARIABLE} names a clone of "
    "https://github.com/google-deepmind/mujoco_menagerie"
)


def randomiser_of(name: str) -> Any:
    """Return Playground's randomiser of a name.

    Raises:
      ShoalError: it has none.
    """
    with undisturbed():  # it prints where there is none
        randomiser = None if ":" in name else _registry().get_domain_randomizer(name)
    if randomiser is None:
        raise ShoalError(f"{PREFIX}{name} has no domain randomiser; leave randomize out")
    return randomiser


def portable_parameters(name: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters that a run writes down; a folder of robots as a path from the root."""
    folder = _needs_robots(name) and parameters.get(MENAGERIE)
    return dict(parameters) | ({MENAGERIE: str(Path(folder).expanduser().resolve())} if folder else {})
