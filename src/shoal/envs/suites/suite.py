"""The base of all adapters: how a name of a package, or one of its objects, becomes an environment of Shoal's.

An adapter is two classes. An environment inherits from `Adapted` and makes `reset` and `step` of those of its `world`.
A `Suite` says which names a package has, what makes their objects, and which environment is made of an object.
"""

import functools
import inspect
import urllib.error
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Generic, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.user_errors import describe_error
from shoal.config.arguments import short_repr
from shoal.envs.registry import resolve
from shoal.envs.suites import packages
from shoal.envs.suites.conversion import subject_of
from shoal.envs.suites.families import FAMILIES, closest_environment
from shoal.envs.suites.static_values import changed_arguments, defaults_of, plain_parameters
from shoal.envs.wrappers import TimeLimit
from shoal.types import Array, Environment, PyTree

Arguments = tuple[tuple[str, object], ...]  # names and values, hashable
Parameters = dict[str, inspect.Parameter]
World = TypeVar("World")  # the objects of a package


class Facts(NamedTuple):
    """The shapes and dtypes of what an object's functions return, read once by tracing a reset and a step."""

    state: PyTree  # after a step
    observation: PyTree
    info: Mapping[str, jax.ShapeDtypeStruct]

    def no_info(self) -> dict[str, Array]:
        """Return the `info` of a reset, which is zeros."""
        return {name: jnp.zeros(x.shape, x.dtype) for name, x in self.info.items()}


def trace(world: object, play: Callable[[Array], tuple[PyTree, PyTree, Mapping[str, Array]]]) -> Facts:
    """Read the facts about an object from a function of a key, which resets it and makes a step.

    Raises:
      ShoalError: the object's functions are not those of its package.
    """
    with jax.ensure_compile_time_eval():
        key = jax.random.key(0)
    with packages.by_convention(world):
        return Facts(*jax.eval_shape(play, key))


def numbers_of(info: Mapping[str, object], dtype: jax.typing.DTypeLike | None = None) -> dict[str, Array]:
    """Return the entries that are numbers or arrays, as arrays of their own dtype or the given one."""
    kinds = bool | int | float | np.ndarray | jax.Array
    numbers = {name: jnp.asarray(x, dtype) for name, x in info.items() if isinstance(x, kinds)}
    # Naming the dtype makes it a strong one.
    return {name: jnp.asarray(x, x.dtype) for name, x in numbers.items()}


class Adapted:
    """An environment of another package's object, which is its `world`."""

    world: Any


class Suite(Generic[World]):
    """A package's environments, by name and from its objects.

    A package has `makers`, a convention `interface`, `environment` and `limit`; the other methods are
    right for most, and changed where a package differs.
    """

    interface: tuple[str, ...] = ("reset", "step")
    needs_hash = True  # of an object, which is static but where its arrays are data

    def __init__(self, prefix: str):
        self.prefix, self.family = prefix, FAMILIES[prefix]
        # Objects are hashed by their identity, so that each is made once.
        self.world_of = functools.cache(self._world_of)
        self.constructor_of = functools.cache(self._constructor_of)

    def makers(self) -> Mapping[str, Callable[..., World] | str]:
        """Return the class, or the function, that makes the object of each of the package's own names."""
        raise NotImplementedError

    def environment(self, world: World, *params: PyTree) -> Environment:
        """Make the environment of an object (and of its parameters), whose own time limit is put out of reach."""
        raise NotImplementedError

    def limit(self, world: World, *params: PyTree) -> int | None:
        """Return an object's time limit in steps, for Shoal to keep; None where it has none or keeps it itself."""
        return None

    def with_settings(
        self, world: World, settings: Mapping[str, object]
    ) -> tuple[Environment, int | None] | None:
        """Make the environment of an object with the parameters of `make`, and its time limit; None if it has none."""
        return None

    def interface_of(self, world: World) -> tuple[str, ...]:
        """Return the names that an object must have."""
        return self.interface

    def require(self, name: str, world: World) -> None:
        """Require that an object has the convention's functions, is no wrapper, and can be hashed where it must be.

        Args:
          name: the name that made it; empty for an object that is given.
        Raises:
          ShoalError: it is not so.
        """
        subject, own, interface = subject_of(name, world), dir(world), self.interface_of(world)
        # gymnax's and JaxMARL's wrappers pass on what the object inside has, whose steps they would not change.
        passes_on = any(hasattr(world, x) for x in interface if x not in own)
        if passes_on or getattr(world, "unwrapped", world) is not world:
            raise ShoalError(
                f"{subject} is a wrapper; give the environment without it, such as `world.unwrapped` or `world._env`: "
                "Shoal has its own time limit, batch and starts"
            )
        for attribute in interface:
            if attribute not in own:
                needed = ", ".join(f"`{x}`" for x in interface)
                raise ShoalError(f"{subject} has no `{attribute}`; it needs {needed}")
        try:
            _ = self.needs_hash and hash(world)
        except TypeError as error:
            raise ShoalError(f"{subject} has no hash; a dataclass has one with eq=False") from error

    def class_parameters(self, name: str) -> Parameters:
        """Return the parameters with which the object of a name is made: those that are numbers or texts."""
        return plain_parameters(defaults_of(self.maker(name)))

    def parameters(self, name: str) -> Parameters:
        """Return the parameters that `make` takes for a name."""
        return self.class_parameters(name)

    def documentation(self, name: str) -> str:
        """Return the sentence that `shoal envs` shows of a name."""
        return f"{name} of {self.family.title}."

    def portable_parameters(self, name: str, parameters: Mapping[str, object]) -> dict[str, object]:
        """Return the parameters that a run writes down."""
        return dict(parameters)

    def values(self, name: str, arguments: Arguments) -> dict[str, object]:
        """Return the values of static arguments, as the maker takes them."""
        return dict(arguments)

    def made(self, name: str, parameters: Mapping[str, object]) -> Environment:
        """Make the environment of a name from the parameters of `make`."""
        return self.environment(self.world_of(name, self.arguments(name, parameters)))

    def maker(self, name: str) -> Callable[..., World]:
        """Return the class, or the function, that makes the object of a name, which may be `module:Name`.

        Raises:
          ShoalError: there is no such name, or the package is not installed.
        """
        if ":" in name:
            packages.import_suite(self.prefix)
            return cast(Callable[..., World], resolve(f"{self.prefix}{name}", name))
        makers: Mapping[str, Any] = self.makers()
        if name not in makers:
            best = closest_environment(self.prefix + name, [self.prefix + x for x in makers])
            there_are = f"there are {', '.join(makers)}, and module:Name for a class of your own"
            hint = f"did you mean {best!r}?" if best else there_are
            raise ShoalError(f"there is no environment {self.prefix + name!r}; {hint}")
        return makers[name]

    def arguments(self, name: str, parameters: Mapping[str, object]) -> Arguments:
        """Return those of an object's parameters that are not the default, in order."""
        return changed_arguments(f"{self.prefix}{name}", parameters, self.class_parameters(name))

    def limit_of(self, name: str, parameters: Mapping[str, object]) -> int | None:
        """Return the time limit in steps of a name, for Shoal to keep; None where there is none."""
        arguments = self.arguments(name, parameters)
        world = self.world_of(name, arguments)
        try:
            return self.limit(world)
        except ShoalError as error:
            raise self._cannot_be_made(name, arguments, error) from error

    def adapted(self, given: object) -> Environment:
        """Make an environment, with its time limit, of an object, or of an object and its parameters.

        Raises:
          ShoalError: it is a wrapper, or its functions are not those of the convention.
        """
        world, *params = given if isinstance(given, tuple) else (given,)
        self.require("", world)
        limit, made = self.limit(world, *params), self.environment(world, *params)
        return made if limit is None else TimeLimit(made, limit)

    def _cannot_be_made(self, name: str, given: Iterable[tuple[str, object]], error: Exception) -> ShoalError:
        """Make the error for an object that its package does not make with these arguments."""
        arguments = ", ".join(f"{k}={short_repr(x)}" for k, x in given) or "its defaults"
        return ShoalError(f"{self.prefix}{name} cannot be made with {arguments}: {describe_error(error)}")

    def _world_of(self, name: str, arguments: Arguments) -> World:
        """Make the package's object of a name.

        Raises:
          ShoalError: there is no such name, or it cannot be made.
        """
        maker, values = self.maker(name), self.values(name, arguments)
        try:
            with packages.undisturbed():
                world = maker(**values)
        except ShoalError:
            raise
        except urllib.error.URLError as error:
            failure = f"needs a download, which failed: {describe_error(error)}"
            raise ShoalError(f"{self.prefix}{name} {failure}") from error
        except Exception as error:
            raise self._cannot_be_made(name, arguments, error) from error
        self.require(f"{self.prefix}{name}", world)
        return world

    def _constructor_of(self, name: str) -> Callable[..., Environment]:
        """Return the function that makes an environment of a name, from its parameters by keyword.

        Raises:
          ShoalError: there is no such name, or its package is not installed.
        """

        def make(**parameters: object) -> Environment:
            try:
                return self.made(name, parameters)
            except packages.ConventionError as error:
                if not parameters:
                    raise
                raise self._cannot_be_made(name, parameters.items(), error.reason) from error.reason

        parameters = self.parameters(name)
        # What `registry` and `describing` ask of a constructor.
        make.portable_parameters = functools.partial(self.portable_parameters, name)  # type: ignore[attr-defined]
        make.__signature__ = inspect.Signature(list(parameters.values()))  # type: ignore[attr-defined]
        make.__annotations__ = {k: x.annotation for k, x in parameters.items()}
        make.__name__ = make.__qualname__ = f"{self.prefix}{name}"
        make.__doc__ = self.documentation(name)
        return make
