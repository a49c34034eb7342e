"""MuJoCo Playground's own objects behind its names: their configs, and the folder of robots that many need."""

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError
from shoal.config.arguments import LARGEST_INDEX, short_repr
from shoal.envs.brax_like.brax_adapter import EPISODE_LENGTH, LIMIT, BraxSuite, observes_time
from shoal.envs.brax_like.model_randomisation import Randomiser
from shoal.envs.suites.packages import import_suite, undisturbed
from shoal.envs.suites.static_values import plain_parameters
from shoal.envs.suites.suite import Parameters

PREFIX = "playground/"
REPEAT = "action_repeat"  # the entry of a config that only Playground's training uses, which repeats actions
IMPL = "impl"  # of MuJoCo's physics, whose default in Playground is "warp"
MENAGERIE, VARIABLE = "menagerie", "SHOAL_MENAGERIE"
NESTED = "__"  # between the names of a nested entry: `reward_config__scales__pose`


class PlaygroundSuite(BraxSuite):
    """The environments of MuJoCo Playground, whose parameters are the entries of a config."""

    def makers(self) -> Mapping[str, Callable[..., object]]:
        """Return the functions that make Playground's objects by name."""
        return {name: functools.partial(_load, name) for name in _registry().ALL_ENVS}

    def class_parameters(self, name: str) -> Parameters:
        """Return the parameters: entries of the config that are numbers or texts, and the folder of robots."""
        self.maker(name)  # which refuses an unknown name
        if ":" in name:
            return super().class_parameters(name)
        left_out = (LIMIT, IMPL, REPEAT)
        entries = {key: x for key, x in _config(name).items() if key not in left_out and key.isidentifier()}
        return plain_parameters(entries | {IMPL: "jax"} | ({MENAGERIE: ""} if _needs_robots(name) else {}))

    def maker(self, name: str) -> Callable[..., object]:
        """Return the class, or the function, that makes the object of a name, with the folder of robots.

        A user's class may need them or not.
        """
        maker = super().maker(name)

        @functools.wraps(maker)
        def make(**values: Any) -> object:
            with _robots(name, "" if ":" in name else values.pop(MENAGERIE, "")):
                return maker(**values)

        return make

    def limit_of(self, name: str, parameters: Mapping[str, object]) -> int | None:
        """Return the time limit in steps: that of the name's config."""
        self.maker(name)
        return int(_config(name).get(LIMIT, EPISODE_LENGTH))

    def randomiser_of(self, name: str) -> Randomiser | None:
        """Return Playground's randomiser of a name; None where it has none."""
        with undisturbed():  # it prints where there is none
            return None if ":" in name else _registry().get_domain_randomizer(name)

    def portable_parameters(self, name: str, parameters: Mapping[str, object]) -> dict[str, object]:
        """Return the parameters that a run writes down; a folder of robots as a path from the root."""
        folder = _needs_robots(name) and parameters.get(MENAGERIE)
        portable = {MENAGERIE: str(Path(str(folder)).expanduser().resolve())} if folder else {}
        return dict(parameters) | portable


PLAYGROUND = PlaygroundSuite(PREFIX)


def _registry() -> Any:
    return import_suite(PREFIX, "mujoco_playground").registry


@functools.cache
def _config(name: str) -> dict[str, Any]:
    """Return the entries of a name's default config by flat names; empty for a user's class."""
    if ":" in name:
        return {}
    flat = import_suite(PREFIX, "flax.traverse_util").flatten_dict  # flax comes with Playground
    with undisturbed():
        return flat(_registry().get_default_config(name).to_dict(), sep=NESTED)


def _load(name: str, **values: object) -> Any:
    """Make Playground's object of a name from changes of its config, with its limit out of reach."""
    overrides = {key.replace(NESTED, "."): value for key, value in values.items()}
    world = _registry().load(name, config_overrides={IMPL: "jax", **overrides})
    if world.n_substeps < 1:
        raise ValueError(f"ctrl_dt={world.dt} is shorter than a step of the physics, sim_dt={world.sim_dt}")
    if not observes_time(world) and LIMIT in _config(name):
        with world._config.unlocked():
            world._config.episode_length = LARGEST_INDEX
    return world


@contextlib.contextmanager
def _robots(name: str, folder: str) -> Iterator[None]:
    """Let Playground read the robots of MuJoCo's menagerie from a folder; it would download them otherwise.

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
