"""Limits of memory: a lower bound of a run's need, compared with the memory that its process may use.

The bound is computed from shapes alone, so that a size that no machine can hold is refused at once and
nothing is allocated. It leaves out everything that a compiler might save (gradients, activations, shuffled
copies, unread entries of `info`), so that nothing that fits is refused. Sizes that cost time and no memory
have fixed bounds (`config.RunConfig.validate`).
"""

import bisect
import contextlib
import dataclasses
import functools
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import jax

from shoal.base.errors import ShoalError
from shoal.config import settings
from shoal.engine.population.member_layout import MEMBER_AXIS, Layout
from shoal.engine.run import ENV_AXIS, ProgramSettings, Run
from shoal.records.run_config import RunConfig
from shoal.types import AlgorithmConfig, Environment, PyTree, TimeStep, spec_of
from shoal.xla import machine

ABSOLUTE_EPISODES = 10  # the factor of the episodes that the best policy plays at the end


class MemorySizes(NamedTuple):
    """The settings of a run that its memory depends on."""

    seeds: int
    num_envs: int
    num_steps: int
    eval_episodes: int
    reset_pool: int
    absolute_episodes: int = -1  # of the best policy; -1 for ten times `eval_episodes`

    @classmethod
    def of(cls, run: RunConfig, members: int, settings: ProgramSettings) -> "MemorySizes":
        """Return the sizes of a run with some members; a pool that does not exist has one start, without bytes."""
        named = {name: getattr(run, name) for name in cls._fields}
        return cls(**named | {"seeds": members, "reset_pool": settings.pool_size or 1})


class UnitBytes(NamedTuple):
    """Bytes per unit of each of a run's sizes."""

    learner: int  # per seed: parameters and optimiser, and the best policy
    environment: int  # per environment of a seed, between updates
    start: int  # per start of a pool
    step: int  # per step of an environment in a rollout
    episode: int  # per episode of an evaluation, while it is played


class MemoryShare(NamedTuple):
    """The part of a population in one memory: the whole on a host, a device's part on an accelerator."""

    devices: int  # over which the seeds are distributed
    groups: int  # over which the environments of a seed are distributed
    is_concurrent: bool  # whether the seeds of a device run together, or one after the other


# The names of the parts of the bound, and the sizes that they grow with, the most likely cause first.
PARTS: Mapping[str, tuple[str, ...]] = {
    "parameters and optimiser": ("seeds",),
    "environments": ("num_envs", "seeds"),
    "pool of starts": ("reset_pool", "seeds"),
    "rollout": ("num_envs", "num_steps", "seeds"),
    "evaluation": ("eval_episodes", "seeds"),
}


def check_run(
    member: Callable[[AlgorithmConfig], Run], config: AlgorithmConfig, sizes: MemorySizes, layout: Layout
) -> None:
    """Require that the least memory of a run is not more than its devices may have.

    Args:
      member: the shapes of one seed's Run, of the sizes given, for an algorithm's config.
      config: the algorithm's.
      sizes: of the run.
      layout: the devices, and how the seeds share them.
    Raises:
      ShoalError: it is more; the sentence names the part that needs the most, and the nearest size that fits.
    """
    available = machine.available_memory(layout.mesh.devices.flat[0])
    if available is None:
        return
    share, run = memory_share(layout), member(config)
    units = unit_bytes(run, sizes)

    def peak(run: Run) -> int:
        return peak_bytes(needed_bytes(sizes, unit_bytes(run, sizes), share))

    if peak(run) <= available:
        return
    _check_kept(member, config, peak, available)
    smallest = MemorySizes(*(1 for _ in sizes))
    if peak_bytes(needed_bytes(smallest, units, share)) <= available:
        raise ShoalError(_too_large_text(sizes, units, share, available))
    values = _sizes_of(config)
    if not values:
        raise ShoalError(
            f"one seed of the algorithm {_needs_text(units.learner, 'parameters and optimiser', available)}."
        )
    name = max(values, key=lambda name: _largest(values[name]))

    def fits(power: int) -> bool:
        return peak(member(_narrowed(config, name, 2 ** (power - 1)))) <= available

    # Powers of two alone, since each trial is a trace.
    powers = _greatest(fits, _largest(values[name]).bit_length() + 1)
    hint = f"; {name}={_clip(values[name], 2 ** (powers - 1))} could fit" if powers else ""
    raise ShoalError(
        f"{name}={values[name]} {_needs_text(units.learner, 'parameters and optimiser', available)}{hint}."
    )


def _check_kept(
    member: Callable[[AlgorithmConfig], Run],
    config: AlgorithmConfig,
    peak: Callable[[Run], int],
    available: int,
) -> None:
    """Require memory for what the learner keeps of each environment (`Learner.local`), such as a replay.

    Raises:
      ShoalError: it needs the most, and without it the run would fit; names the setting that it grows with.
    """
    run = member(config)
    rest = peak(dataclasses.replace(run, learner=run.learner._replace(local=())))
    needed, sizes = peak(run), _sizes_of(config)
    if needed < 2 * rest or rest > available:
        return
    for name in sorted(sizes, key=lambda name: -_largest(sizes[name])):
        fitting = largest = _largest(sizes[name])
        with contextlib.suppress(Exception):  # of a user's algorithm, which other values may not suit
            halved = member(_narrowed(config, name, largest // 2))
            if nbytes(halved.learner.local) <= 0.75 * nbytes(run.learner.local):
                # In proportion, and again where a part of it grows by powers of two, as trees of priorities do.
                while fitting and (size := peak(member(_narrowed(config, name, fitting)))) > available:
                    fitting = _round_down(int(fitting * (available - rest) / (size - rest)))
                break
    else:
        return
    hint = f"; {name}={fitting} is about the most that could fit" if fitting else ""
    what = _needs_text(needed, "what is kept of the environments", available)
    raise ShoalError(f"{name}={sizes[name]} {what}{hint}.")


def check_count(name: str, count: int, bytes_each: int, what: str, device: jax.Device | None = None) -> None:
    """Require that `count` objects of `bytes_each` bytes fit the memory of a device, or of the host.

    Raises:
      ShoalError: they do not; the sentence names the number that fits.
    """
    available = machine.available_memory(device)
    if available is None or count * bytes_each <= available:
        return
    fitting = _round_down(available // bytes_each)
    hint = f"; {name}={fitting} is about the most that could fit" if fitting else ""
    raise ShoalError(f"{name}={count} {_needs_text(count * bytes_each, what, available)}{hint}.")


@contextlib.contextmanager
def report_out_of_memory() -> Iterator[None]:
    """Convert an out-of-memory error into one sentence with the number of bytes that were requested.

    Raises:
      ShoalError: instead of a MemoryError, or of the compiler's error.
    """
    try:
        yield
    except (MemoryError, jax.errors.JaxRuntimeError) as error:
        if not isinstance(error, MemoryError) and "RESOURCE_EXHAUSTED" not in str(error):
            raise
        requested = re.search(r"allocating (\d+) bytes", str(error))
        size = f" {format_bytes(int(requested[1]))} at once" if requested else " more"
        raise ShoalError(
            f"memory ran out: the program asked for{size}, which this process could not have; fewer environments, "
            "steps or episodes need less."
        ) from error


def episode_bytes(environment: Environment, config: AlgorithmConfig | None) -> int:
    """Return the bytes of one environment of an evaluation, with the memory of an algorithm's policy, if any."""

    def start_episode(environment: Environment) -> tuple:
        state, timestep = environment.reset(jax.random.key(0))
        memory = config.algorithm(spec_of(environment)).memory((1,)) if config is not None else ()
        return state, _algorithm_inputs(timestep), memory

    return nbytes(jax.eval_shape(start_episode, environment))


def step_bytes(environment: Environment) -> int:
    """Return the bytes that a rollout saves per step of an environment: the time-step without its `info`."""

    def first_timestep(environment: Environment) -> TimeStep:
        return environment.reset(jax.random.key(0))[1]._replace(info={})

    return nbytes(jax.eval_shape(first_timestep, environment))


def unit_bytes(member: Run, sizes: MemorySizes) -> UnitBytes:
    """Return the bytes per unit of each size, from the shapes of one seed's Run."""
    envs = sizes.num_envs
    state = member.state
    environment_leaves = state.env, state.starts, state.last, member.timestep, member.memory, member.episodes
    episode_leaves = (member.state.env, _algorithm_inputs(member.timestep), member.memory)
    return UnitBytes(
        learner=nbytes((member.learner.shared, member.best)),
        environment=nbytes((*environment_leaves, member.learner.local)) // envs,
        start=nbytes(member.state.pool) // sizes.reset_pool,
        step=nbytes(_algorithm_inputs(member.timestep)) // envs,
        episode=nbytes(episode_leaves) // envs,
    )


def needed_bytes(sizes: MemorySizes, units: UnitBytes, share: MemoryShare) -> dict[str, int]:
    """Return the least bytes that one memory must hold, by purpose; rollouts and evaluations do not exist together."""
    seeds = -(-sizes.seeds // share.devices)
    concurrent_seeds = seeds if share.is_concurrent else 1
    envs = -(-sizes.num_envs // share.groups)
    is_default = sizes.absolute_episodes == -1
    again = ABSOLUTE_EPISODES * sizes.eval_episodes if is_default else sizes.absolute_episodes
    return {
        "parameters and optimiser": seeds * units.learner,
        "environments": seeds * envs * units.environment,
        "pool of starts": seeds * sizes.reset_pool * units.start // share.groups,
        "rollout": concurrent_seeds * envs * sizes.num_steps * units.step,
        "evaluation": concurrent_seeds * max(sizes.eval_episodes, again) * units.episode,
    }


def peak_bytes(parts: Mapping[str, int]) -> int:
    """Return the largest bytes of a run: what always exists, and the larger of a rollout and an evaluation."""
    temporary = ("rollout", "evaluation")
    permanent = sum(size for name, size in parts.items() if name not in temporary)
    return permanent + max(parts[name] for name in temporary)


def memory_share(layout: Layout) -> MemoryShare:
    """Return the part of a population in one device's memory; the devices of a CPU share one memory."""
    is_concurrent = layout.mapped_by == "vmap"
    if layout.mesh.devices.flat[0].platform == "cpu":
        return MemoryShare(1, 1, is_concurrent and layout.mesh.shape[MEMBER_AXIS] == 1)
    return MemoryShare(layout.mesh.shape[MEMBER_AXIS], layout.mesh.shape[ENV_AXIS], is_concurrent)


def nbytes(tree: PyTree) -> int:
    """Return the bytes of a tree of arrays or of their shapes."""
    return sum(math.prod(x.shape) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def format_bytes(size: int) -> str:
    """Format a number of bytes with a unit, such as "3.2 TB"."""
    for unit in ("bytes", "kB", "MB", "GB", "TB", "PB"):
        if size < 1000 or unit == "PB":
            return f"{size:.3g} {unit}" if size < 1e6 else f"{size:.1e} {unit}"
        size = size / 1000  # type: ignore[assignment]
    raise AssertionError


def _too_large_text(sizes: MemorySizes, units: UnitBytes, share: MemoryShare, available: int) -> str:
    """Return the error's sentence for sizes of which smaller ones would fit."""
    parts = needed_bytes(sizes, units, share)
    largest_part = max(parts, key=lambda name: parts[name])
    largest_sizes = sorted(PARTS[largest_part][:2], key=lambda name: -getattr(sizes, name))
    names = [*largest_sizes, *(name for name in sizes._fields if name not in largest_sizes)]

    def fits(name: str, value: int) -> bool:
        """Report whether a value of a size fits, the other sizes unchanged."""
        return peak_bytes(needed_bytes(sizes._replace(**{name: value}), units, share)) <= available

    needs_text = _needs_text(peak_bytes(parts), largest_part, available)
    for name in names:
        size = getattr(sizes, name)
        if value := _round_down(_greatest(functools.partial(fits, name), size)):
            return f"{name}={size} {needs_text}; {name}={value} is about the most that could fit."
    return f"{names[0]}={getattr(sizes, names[0])} {needs_text}; other sizes must be smaller, too."


def _needs_text(size: int, what: str, available: int) -> str:
    return (
        f"needs at least {format_bytes(size)} ({what}), and this process may have {format_bytes(available)}"
    )


def _greatest(works: Callable[[int], bool], below: int) -> int:
    """Return the greatest number below a bound that works, where all smaller ones do; 0 if 1 does not."""
    # In the order of the range those that work come first, so that their count is the greatest of them.
    return bisect.bisect_left(range(1, below), True, key=lambda value: not works(value))


def _round_down(value: int) -> int:
    """Round a number down to two digits, which are easier to read and type."""
    unit = 10 ** max(len(str(value)) - 2, 0)
    return value // unit * unit


def _algorithm_inputs(timestep: TimeStep) -> PyTree:
    """Return the entries of a time-step that an algorithm surely reads; the compiler may remove the others."""
    return timestep.observation, timestep.reward, timestep.discount, timestep.last


def _sizes_of(config: AlgorithmConfig) -> dict[str, Any]:
    """Return the fields of a config that are whole numbers greater than 1, or tuples of these."""
    return {name: value for name, value in settings.flat(config).items() if _largest(value) > 1}


def _largest(value: object) -> int:
    """Return the largest whole number of a value; 0 if there is none."""
    parts = value if isinstance(value, tuple) else (value,)
    return max((x for x in parts if isinstance(x, int) and not isinstance(x, bool)), default=0)


def _narrowed(config: AlgorithmConfig, name: str, largest: int) -> AlgorithmConfig:
    """Return a config with a setting, or each number of it, of at most `largest`."""
    return settings.with_settings(config, **{name: _clip(_sizes_of(config)[name], largest)})


def _clip(value: Any, largest: int) -> Any:
    return tuple(min(x, largest) for x in value) if isinstance(value, tuple) else min(value, largest)
