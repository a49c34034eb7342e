"""Limits of memory: a lower bound of what a run needs, compared with what its process may have.

The bound is read off shapes alone, so that a size that no machine has is refused at once and nothing is allocated. It
leaves out whatever a compiler might save (gradients, activations, shuffled copies, unread entries of `info`), so
that nothing that fits is refused. Sizes that take time and no memory have fixed bounds (`config.RunConfig.validate`).
"""

import contextlib
import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from shoal.errors import ShoalError
from shoal.runtime import machine
from shoal.runtime.population import MEMBER_AXIS, Layout
from shoal.runtime.run import ENV_AXIS, Run
from shoal.types import Environment, PyTree, TimeStep, spec_of

NO_POOL = 1  # the size of a pool that is not there, whose starts take nothing
ABSOLUTE = 10  # times the episodes of an evaluation are played by the best policy at the end


class Sizes(NamedTuple):
    """The settings of a run that its memory grows with."""

    seeds: int
    num_envs: int
    num_steps: int
    eval_episodes: int
    reset_pool: int


class Units(NamedTuple):
    """Bytes that one unit of a run's sizes takes."""

    learner: int  # of a seed: parameters and optimiser, and the best policy
    environment: int  # of an environment of a seed, between updates
    start: int  # of a pool's starts
    step: int  # of an environment's step in a rollout
    episode: int  # of an evaluation, while it is played


class Share(NamedTuple):
    """What of a population one memory holds: the whole on a host, a device's part on an accelerator."""

    devices: int  # over which the seeds are spread
    groups: int  # over which the environments of a seed are
    together: bool  # whether the seeds of a device run at once, or one after the other


# What the parts of the bound are called, and the sizes that they grow with, the first to blame first.
PARTS: Mapping[str, tuple[str, ...]] = {
    "parameters and optimiser": ("seeds",),
    "environments": ("num_envs", "seeds"),
    "pool of starts": ("reset_pool", "seeds"),
    "rollout": ("num_envs", "num_steps", "seeds"),
    "evaluation": ("eval_episodes", "seeds"),
}


def check_run(member: Callable[[Any], Run], config: Any, sizes: Sizes, layout: Layout) -> None:
    """Requires that the least memory of a run is not more than its devices may have.

    Args:
      member: the shapes of one seed's Run, of the sizes given, for an algorithm's config.
      config: the algorithm's.
      sizes: of the run.
      layout: which devices, and how the seeds share them.

    Raises:
      ShoalError: it is more; names what takes the most, and the nearest size that fits.
    """
    device = layout.mesh.devices.flat[0]
    available = machine.available_memory(device)
    if available is None:
        return
    share = share_of(layout)
    units = units_of(member(config), sizes)
    if total(needed(sizes, units, share)) <= available:
        return

    def fits(sizes: Sizes, units: Units) -> bool:
        return total(needed(sizes, units, share)) <= available

    smallest = Sizes(*(1 for _ in sizes))
    if fits(smallest, units):
        raise ShoalError(_too_large(sizes, units, share, available))
    settings = _sizes_of(config)
    if not settings:
        raise ShoalError(
            f"one seed of the algorithm {_needs(units.learner, 'parameters and optimiser', available)}."
        )
    name = max(settings, key=lambda name: _largest(settings[name]))

    def narrow(width: int) -> bool:
        narrowed = dataclasses.replace(config, **{name: _cut(settings[name], width)})
        return fits(sizes, units_of(member(narrowed), sizes))

    works = _greatest_power(narrow, _largest(settings[name]))
    hint = f"; {name}={_cut(settings[name], works)} could fit" if works else ""
    raise ShoalError(
        f"{name}={settings[name]} {_needs(units.learner, 'parameters and optimiser', available)}{hint}."
    )


def check_count(name: str, count: int, each: int, what: str, device: jax.Device | None = None) -> None:
    """Requires that so many things of some bytes each fit the memory of a device, or of the host.

    Raises:
      ShoalError: they do not; names how many do.
    """
    available = machine.available_memory(device)
    if available is None or count * each <= available:
        return
    fitting = _rounded(available // each)
    hint = f"; {name}={fitting} is about the most that could fit" if fitting else ""
    raise ShoalError(f"{name}={count} {_needs(count * each, what, available)}{hint}.")


@contextlib.contextmanager
def exhaustion_in_one_sentence() -> Iterator[None]:
    """Turns memory that runs out while something is computed into one sentence, with the bytes that were asked for.

    Raises:
      ShoalError: in place of a MemoryError, or of the compiler's error.
    """
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        asked = re.search(r"allocating (\d+) bytes", str(error))
        size = f" {readable(int(asked[1]))} at once" if asked else " more"
        raise ShoalError(
            f"memory ran out: the program asked for{size}, which this process could not have; fewer environments, "
            "steps or episodes need less."
        ) from error


def episode_bytes(environment: Environment, config: Any) -> int:
    """The bytes of one environment that an episode is played in, with the memory of an algorithm's policy, if any."""

    def begin(environment: Environment) -> tuple:
        state, timestep = environment.reset(jax.random.key(0))
        memory = config.algorithm(spec_of(environment)).memory((1,)) if config is not None else ()
        return state, _read(timestep), memory

    return nbytes(jax.eval_shape(begin, environment))


def step_bytes(environment: Environment) -> int:
    """The bytes of what a rollout saves of one step of an environment: the time-step without its `info`."""

    def begin(environment: Environment) -> TimeStep:
        return environment.reset(jax.random.key(0))[1]._replace(info={})

    return nbytes(jax.eval_shape(begin, environment))


def units_of(member: Run, sizes: Sizes) -> Units:
    """What a unit of each size takes, from the shapes of one seed's Run."""
    envs = sizes.num_envs
    own = (member.state.env, member.state.last, member.timestep, member.memory, member.episodes)
    playing = (member.state.env, _read(member.timestep), member.memory)
    return Units(
        learner=nbytes((member.learner.shared, member.best)),
        environment=nbytes((*own, member.learner.local)) // envs,
        start=nbytes(member.state.pool) // sizes.reset_pool,
        step=nbytes(_read(member.timestep)) // envs,
        episode=nbytes(playing) // envs,
    )


def needed(sizes: Sizes, units: Units, share: Share) -> dict[str, int]:
    """The least bytes that one memory must hold, by what they are for; rollouts and evaluations are not both there."""
    seeds = -(-sizes.seeds // share.devices)
    at_once = seeds if share.together else 1
    envs = -(-sizes.num_envs // share.groups)
    return {
        "parameters and optimiser": seeds * units.learner,
        "environments": seeds * envs * units.environment,
        "pool of starts": seeds * sizes.reset_pool * units.start // share.groups,
        "rollout": at_once * envs * sizes.num_steps * units.step,
        "evaluation": at_once * ABSOLUTE * sizes.eval_episodes * units.episode,
    }


def total(parts: Mapping[str, int]) -> int:
    """The bytes of a run at its largest: what is always there, and the larger of a rollout and an evaluation."""
    passing = ("rollout", "evaluation")
    kept = sum(size for name, size in parts.items() if name not in passing)
    return kept + max(parts[name] for name in passing)


def share_of(layout: Layout) -> Share:
    """What of a population the memory of one device holds; the devices of a CPU have one memory together."""
    together = layout.mapped_by == "vmap"
    if layout.mesh.devices.flat[0].platform == "cpu":
        return Share(1, 1, together and layout.mesh.shape[MEMBER_AXIS] == 1)
    return Share(layout.mesh.shape[MEMBER_AXIS], layout.mesh.shape[ENV_AXIS], together)


def nbytes(tree: PyTree) -> int:
    """The bytes of a tree of arrays or of their shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def readable(size: int) -> str:
    """A number of bytes with a unit, such as "3.2 TB"."""
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if size < 1000 or unit == "PB":
            return f"{size:.3g} {unit}" if size < 1e6 else f"{size:.1e} {unit}"
        size = size / 1000  # type: ignore[assignment]
    raise AssertionError


def _too_large(sizes: Sizes, units: Units, share: Share, available: int) -> str:
    """The sentence for sizes of which smaller ones would fit."""
    parts = needed(sizes, units, share)
    most = max(parts, key=lambda name: parts[name])
    blamed = sorted(PARTS[most][:2], key=lambda name: -getattr(sizes, name))
    names = [*blamed, *(name for name in Sizes._fields if name not in blamed)]

    def most_of(name: str) -> int:
        """The greatest value that fits, the other sizes as they are; 0 if none does."""

        def fits(value: int) -> bool:
            return total(needed(sizes._replace(**{name: value}), units, share)) <= available

        return _rounded(_greatest(fits, getattr(sizes, name))) if fits(1) else 0

    needs = _needs(total(parts), most, available)
    for name in names:
        if value := most_of(name):
            return f"{name}={getattr(sizes, name)} {needs}; {name}={value} is about the most that could fit."
    return f"{names[0]}={getattr(sizes, names[0])} {needs}; other sizes must be smaller, too."


def _needs(size: int, what: str, available: int) -> str:
    return f"needs at least {readable(size)} ({what}), and this process may have {readable(available)}"


def _greatest(works: Callable[[int], bool], below: int) -> int:
    """The greatest number below a bound that works, where all smaller ones do, 1 among them."""
    low, high = 1, below
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if works(middle) else (low, middle)
    return low


def _greatest_power(works: Callable[[int], bool], below: int) -> int:
    """The greatest power of two below a bound that works; 0 if not even 1 does. Each trial is a trace."""
    if not works(1):
        return 0
    return 2 ** (_greatest(lambda k: works(2 ** (k - 1)), below.bit_length() + 1) - 1)


def _rounded(value: int) -> int:
    """A number rounded down to two digits, which is easier to read and type."""
    unit = 10 ** max(len(str(value)) - 2, 0)
    return value // unit * unit


def _read(timestep: TimeStep) -> PyTree:
    """The entries of a time-step that an algorithm surely reads; the compiler may leave out the others."""
    return timestep.observation, timestep.reward, timestep.discount, timestep.last


def _sizes_of(config: Any) -> dict[str, Any]:
    """The fields of a config that are whole numbers greater than 1, or tuples of such."""
    fields = dataclasses.fields(config) if dataclasses.is_dataclass(config) else ()
    values = {field.name: getattr(config, field.name) for field in fields}
    return {name: value for name, value in values.items() if _largest(value) > 1}


def _largest(value: Any) -> int:
    """The largest whole number of a value; 0 if there is none."""
    parts = value if isinstance(value, tuple) else (value,)
    return max((x for x in parts if isinstance(x, int) and not isinstance(x, bool)), default=0)


def _cut(value: Any, most: int) -> Any:
    return tuple(min(x, most) for x in value) if isinstance(value, tuple) else min(value, most)
