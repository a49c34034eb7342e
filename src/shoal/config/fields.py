"""What a field of a dataclass declares of itself: bounds, group, needs and use. Imports no JAX."""

import dataclasses
import functools
import itertools
import math
import sys
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeVar, cast

import numpy as np

from shoal.base.errors import ShoalError
from shoal.config.arguments import short_repr
from shoal.config.requirements import Conditions, Needs, conditions

Function = TypeVar("Function", bound=Callable[[Any], Any])

DATA_FIELDS = "__shoal_data_fields__"  # the attribute of a struct's class


def once_per_class(function: Function) -> Function:
    """Compute a function of a class once for each class, and remember the result, which must not be changed."""
    return cast(Function, functools.cache(function))


def static(default: object = dataclasses.MISSING) -> Any:
    """Declare a field of a struct as static although its type would make it data."""
    return dataclasses.field(default=default, metadata={"static": True})


@dataclasses.dataclass(frozen=True)
class Bounds:
    """The numbers that a field may hold; NaN is never one of them.

    Infinity is allowed only where it is a bound itself: `high=math.inf` admits it, `high=None` does not.
    """

    low: float | None = None  # at least this
    high: float | None = None  # at most this
    above: float | None = None  # greater than this
    below: float | None = None  # less than this
    longest: int | None = None  # a tuple has at most this many numbers

    def contains(self, value: Any) -> bool:
        """Report whether a number, or each number of an array, lies within the bounds."""
        is_int = isinstance(value, int)  # compared exactly: not every one is a float
        x = value if is_int else np.asarray(value, np.float64)
        inside = np.asarray(True) if is_int else np.isfinite(x)
        inside |= (x == math.inf) & (self.high == math.inf)
        inside |= (x == -math.inf) & (self.low == -math.inf)
        inside &= self.low is None or x >= self.low
        inside &= self.high is None or x <= self.high
        inside &= self.above is None or x > self.above
        inside &= self.below is None or x < self.below
        return bool(np.all(inside))

    def has_finite(self) -> bool:
        """Whether one of the bounds is a number that is not infinite."""
        bounds = (self.low, self.high, self.above, self.below)
        return any(bound is not None and math.isfinite(bound) for bound in bounds)

    def __str__(self) -> str:
        """Return the bounds in words, such as "greater than 0 and at most 1"."""
        finite = self.low != -math.inf and self.high != math.inf
        words = [
            f"{words} {bound if isinstance(bound, int) else f'{bound:g}'}"
            for words, bound in (
                ("at least", self.low),
                ("greater than", self.above),
                ("at most", self.high),
                ("less than", self.below),
            )
            if bound is not None and math.isfinite(bound)
        ]
        return " and ".join(words) or ("finite" if finite else "a number")


@dataclasses.dataclass(frozen=True)
class Use:
    """What a run does with a setting besides training with it.

    Attributes:
      on_resume: whether a resumed run may change it, keeps it (fixed), or is the same run whatever it says (ignored);
        None is "may change" for data of an algorithm that is read more than once, else "fixed".
      tells_apart: whether it stands in the name of a run's directory and among the differences from the preset.
      identifies: whether runs that differ in it are different experiments, for loggers that group runs.
      in_sweep: whether it may differ between the groups of a sweep, although it is not the algorithm's.
      in_pure: whether it has an effect in `shoal.make_train`, which writes nothing, although it is not the algorithm's.
      describes: whether it is a text about the run, in which a command that is given again may differ.
      imports: whether its text names a function by module:Name, in whose place the function may be given itself.
    """

    on_resume: Literal["may change", "fixed", "ignored"] | None = None
    tells_apart: bool = True
    identifies: bool = True
    in_sweep: bool = False
    in_pure: bool = False
    describes: bool = False
    imports: bool = False


def parameter(
    default: Any = dataclasses.MISSING,
    *,
    low: float | None = None,
    high: float | None = None,
    above: float | None = None,
    below: float | None = None,
    longest: int | None = None,
    static: bool = False,
    initial: bool = False,
    in_reward: bool = False,
    group: str = "",
    needs: Needs | Conditions = (),
    needs_to_change: Needs | Conditions = (),
    use: Use | None = None,
    functions: Iterable[str] | None = None,
) -> Any:
    """Declare a field of a struct with what is known of it: a setting, or an environment's parameter.

    It is no field specifier of `struct`, so that type checkers read its default by position too. A field that a
    subclass declares anew keeps all that is not given again.
    A field declared `float | None` is data too: None means the value of another setting, by which a config's
    `resolved()` replaces it before the config is stacked or traced.

    Args:
      low, high, above, below: bounds, the latter two exclusive; infinity allows it, None any finite number.
      longest: a tuple may have at most this many numbers.
      static: whether the field is part of the tree's structure although its type would make it data.
      initial: whether the value is read where a run starts and never again, so that a resumed run cannot change it.
      in_reward: whether it is a part of an environment's rewards, so that returns that differ in it are not compared.
      group: the title under which the help lists it; by default the `group` of the class that declares it.
      needs: what it needs to have an effect; all of several conditions (`config.requirements`).
      needs_to_change: what a resumed run needs for a change of it to have an effect.
      use: what a run does with it.
      functions: it chooses a function: one of these names, `module:function`, or one given itself; () leaves it to the
        use of the value which names there are.
    """
    limits = Bounds(low, high, above, below, longest)
    given: dict[str, Any] = {"group": group, "use": use, "needs": needs and conditions(needs)}
    given |= {"needs_to_change": needs_to_change and conditions(needs_to_change)}
    given |= {
        "static": static,
        "initial": initial,
        "in_reward": in_reward,
        "bounds": limits != Bounds() and limits,
    }
    metadata: dict[str, Any] = {"is_parameter": True}
    for name, value in given.items():  # what is not given is inherited
        if value:
            metadata[name] = value
    if functions is not None:
        metadata["functions"] = tuple(functions)
    if isinstance(default, np.ndarray):  # a dataclass refuses it as a default, since it could be written to
        return dataclasses.field(default_factory=default.copy, metadata=metadata)
    return dataclasses.field(default=default, metadata=metadata)


@once_per_class
def metadata_of(cls: Any) -> dict[str, dict[str, Any]]:
    """Return what a dataclass's fields declare besides their types, by name; a new default keeps a base class's."""
    metadata: dict[str, dict[str, Any]] = {}
    for base in reversed(cls.__mro__):
        for field in dataclasses.fields(base) if dataclasses.is_dataclass(base) else ():
            metadata[field.name] = metadata.get(field.name, {}) | dict(field.metadata)
    return metadata


@once_per_class
def bounds_of(cls: object) -> dict[str, Bounds]:
    """Return the bounds that a dataclass's fields declare, by name."""
    return {
        name: data.get("bounds", Bounds())
        for name, data in metadata_of(cls).items()
        if "is_parameter" in data
    }


def is_traced(*values: object) -> bool:
    """Report whether one of some values is traced, so that it cannot be read."""
    tracer = getattr(sys.modules.get("jax.core"), "Tracer", ())  # nothing is traced before JAX is imported
    return any(map(isinstance, values, itertools.repeat(tracer)))


def check_bounds(name: str, value: Any, bounds: Bounds) -> None:
    """Require that a number, or each number of an array, lies within bounds; traced values are not read."""
    if is_traced(value):
        return
    if bounds.longest is not None and isinstance(value, tuple) and len(value) > bounds.longest:
        raise ShoalError(
            f"{name} has {len(value)} numbers, which are too many: it may have at most {bounds.longest}."
        )
    if bounds.contains(value):
        return
    if isinstance(value, int) and abs(value) < 10**17:
        value_text = str(value)
    elif isinstance(value, int | float):
        value_text = f"{value:g}" if abs(value) < 1e300 else short_repr(value)
    else:
        value_text = str(value if isinstance(value, tuple) else np.asarray(value).tolist())
    subject = "" if np.ndim(value) == 0 else "each number of it "
    is_open = bounds.has_finite() and bounds.high is None and bounds.below is None  # such as "greater than 0"
    words = "finite and " if is_open and np.any(np.asarray(value) == math.inf) else ""
    raise ShoalError(f"{name}={value_text} is out of bounds: {subject or 'it '}must be {words}{bounds}.")


def is_struct(tree: object) -> bool:
    """Report whether a value (or a class) is a struct."""
    return hasattr(tree, DATA_FIELDS)


def data_fields(tree: object) -> tuple[str, ...]:
    """Return the names of a struct's (or struct class's) data fields."""
    return cast(tuple[str, ...], getattr(tree, DATA_FIELDS))
