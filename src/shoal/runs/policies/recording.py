"""Films of a policy's episodes: played as in an evaluation, then drawn step by step."""

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.numbers import format_number
from shoal.engine.evaluation import EvaluationState, start_episodes, step_episodes
from shoal.envs.base import can_render, draws_past, frames_per_second, render, unwrapped
from shoal.monitor.progress import ignore_text
from shoal.runs.policies import films, paraview
from shoal.types import AlgorithmConfig, Array, Environment, PyTree, State, spec_of

STEPS_PER_CALL = 64  # of a compiled program


class StepRecord(NamedTuple):
    """Recorded steps, with a leading axis of steps and one of episodes: the start, and what followed."""

    state: State
    returned: Array  # return so far


class Episode(NamedTuple):
    """One recorded episode of T steps, [T + 1, ...] each."""

    states: PyTree
    returned: np.ndarray  # return so far


@dataclasses.dataclass(frozen=True)
class Rendered:
    """The result of drawing episodes.

    Attributes:
      returns: of each episode.
    """

    path: Path
    frames: int
    returns: list[float]
    lengths: list[int]


def check_renderable(environment: Environment, path: str | Path) -> Path:
    """Require that episodes of an environment can be drawn into a file, or written for ParaView; return its path.

    Raises:
      ShoalError: the environment cannot be drawn, or the file cannot be written.
    """
    if Path(path).suffix.lower() == paraview.SUFFIX:
        return paraview.check_writable(environment, path)
    if not can_render(environment):
        raise ShoalError(
            f"{type(unwrapped(environment)).__name__} cannot be drawn: it has no `render(state)`, which returns "
            "uint8 [height, width, 3]."
        )
    return films.check_writable(path)


def draw_episodes(
    environment: Environment,
    config: AlgorithmConfig,
    parameters: PyTree,
    key: Array,
    path: str | Path,
    *,
    episodes: int,
    max_steps: int,
    greedy: bool,
    tell: Callable[[str], None] = ignore_text,
) -> Rendered:
    """Play episodes and draw them into a file, one after the other.

    With the same key they are the first that `evaluation.play_episodes` plays, up to rounding.

    Args:
      path: ends in .gif, .mp4 or .png (the first image alone), or .pvd for ParaView.
    Raises:
      ShoalError: as `check_renderable`, or `render` does not return an image.
    """
    path = check_renderable(environment, path)
    tell(f"playing {episodes} episodes for {path}")
    recorded = record_episodes(environment, config, parameters, key, episodes, max_steps, greedy)
    speed = frames_per_second(environment)
    steps = _steps(recorded, lambda progress: tell(f"drawing picture {progress} for {path}"))
    if path.suffix.lower() == paraview.SUFFIX:
        count = paraview.write_states(path, environment, (state for _, _, state in steps), speed)
    else:
        count = films.write_frames(path, _frames(environment, recorded, steps), speed)
    returns = [float(episode.returned[-1]) for episode in recorded]
    return Rendered(path, count, returns, [len(episode.returned) - 1 for episode in recorded])


def record_episodes(
    environment: Environment,
    config: AlgorithmConfig,
    parameters: PyTree,
    key: Array,
    episodes: int,
    max_steps: int,
    greedy: bool,
) -> list[Episode]:
    """Play one episode in each of `episodes` environments and record their states."""
    evaluation, records = _start(environment, config, key, episodes)
    parts = [_to_host(jax.tree.map(lambda x: x[None], records))]
    while evaluation.step < max_steps and not evaluation.timestep.last.all():
        evaluation, records = _play_steps(environment, config, parameters, evaluation, greedy)
        parts.append(_to_host(records))
    stacked = jax.tree.map(_concatenate, *parts)
    lengths = np.minimum(np.asarray(evaluation.results.length, int), max_steps)
    return [Episode(*jax.tree.map(lambda x, i=i, n=n: x[: n + 1, i], stacked)) for i, n in enumerate(lengths)]


@functools.partial(jax.jit, static_argnames=("episodes",))
def _start(
    environment: Environment, config: AlgorithmConfig, key: Array, episodes: int
) -> tuple[EvaluationState, StepRecord]:
    evaluation = start_episodes(environment, config.algorithm(spec_of(environment)), key, episodes)
    return evaluation, StepRecord(evaluation.state, evaluation.results.returned)


@functools.partial(jax.jit, static_argnames=("greedy",))
def _play_steps(
    environment: Environment,
    config: AlgorithmConfig,
    parameters: PyTree,
    evaluation: EvaluationState,
    greedy: bool,
) -> tuple[EvaluationState, StepRecord]:
    algorithm = config.algorithm(spec_of(environment))

    def step(evaluation: EvaluationState, _: None) -> tuple[EvaluationState, StepRecord]:
        evaluation = step_episodes(environment, algorithm, parameters, evaluation, greedy)
        return evaluation, StepRecord(evaluation.state, evaluation.results.returned)

    return jax.lax.scan(step, evaluation, None, length=STEPS_PER_CALL)


def _to_host(tree: PyTree) -> PyTree:
    """Convert to NumPy arrays, which can be joined and sliced without compiling; keys are not changed."""
    return jax.tree.map(lambda x: x if _is_key(x) else np.asarray(x), tree)


def _concatenate(*parts: Array) -> Array | np.ndarray:
    return jnp.concatenate(parts) if _is_key(parts[0]) else np.concatenate(parts)


def _is_key(x: Array) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _steps(episodes: list[Episode], tell: Callable[[str], None]) -> Iterator[tuple[int, int, State]]:
    """Yield the steps of all episodes, one after the other: the episode's index, the step's, and the state."""
    total = sum(len(episode.returned) for episode in episodes)
    steps = ((index, step) for index, x in enumerate(episodes) for step in range(len(x.returned)))
    for number, (index, step) in enumerate(steps, 1):
        tell(f"{number:,} of {total:,}")
        yield index, step, jax.tree.map(lambda x, step=step: x[step], episodes[index].states)


def _frames(
    environment: Environment, episodes: list[Episode], steps: Iterable[tuple[int, int, State]]
) -> Iterator[films.FilmFrame]:
    size: tuple[int, ...] = ()
    past: list[State] = []
    for index, step, of_host in steps:
        state, returned = jax.tree.map(jnp.asarray, of_host), episodes[index].returned
        past = past if step else []
        picture = render(environment, state, past)
        if draws_past(environment):
            past.append(state)
        size = size or picture.shape
        if picture.shape != size:
            raise ShoalError(
                f"{type(unwrapped(environment)).__name__}.render returned pictures of {size[:2]} and of "
                f"{picture.shape[:2]} pixels; all must be of one size."
            )
        caption = f"#{index + 1}   step {step}   return {format_number(returned[step])}"
        yield films.FilmFrame(picture, caption, step == len(returned) - 1)
