"""Films of a policy's episodes: played as in an evaluation, then drawn step by step."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.base.errors import ShoalError
from shoal.base.files import find_obstacle
from shoal.base.numbers import format_number
from shoal.engine.evaluation import EvaluationState, start_episodes, step_episodes
from shoal.envs.base import can_render, draws_past, frames_per_second, render, unwrapped
from shoal.monitor.progress import ignore_text
from shoal.runs.policies import films, paraview
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.types import AlgorithmConfig, Array, Environment, PyTree, State, spec_of

STEPS_PER_CALL = 64  # of a compiled program


class EpisodeSettings(NamedTuple):
    """The settings of episodes that are played, validated."""

    key: Array
    episodes: int
    max_steps: int
    greedy: bool


class StepRecord(NamedTuple):
    """Recorded steps, the start and what followed: [steps, episodes, ...]; of one episode of T steps, [T + 1, ...]."""

    state: State
    returned: Array | np.ndarray  # return so far


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
    is_exported = Path(path).suffix.lower() == paraview.SUFFIX
    if not is_exported and not can_render(environment):
        raise ShoalError(
            f"{type(unwrapped(environment)).__name__} cannot be drawn: it has no `render(state)`, which returns "
            "uint8 [height, width, 3]."
        )
    path = paraview.check_writable(environment, path) if is_exported else films.check_writable(path)
    if obstacle := find_obstacle(path):
        raise ShoalError(f"render={str(path)!r} cannot be written: {obstacle}.")
    return path


def draw_episodes(
    policy: TrainedPolicy,
    environment: Environment,
    path: str | Path,
    settings: EpisodeSettings,
    tell: Callable[[str], None] = ignore_text,
) -> Rendered:
    """Play episodes and draw them into a file, one after the other.

    With the same key they are the first that `evaluation.play_episodes` plays, up to rounding.

    Args:
      environment: whose numbers are arrays.
      path: ends in .gif, .mp4 or .png (the first image alone), or .pvd for ParaView.
    Raises:
      ShoalError: as `check_renderable`, or `render` does not return an image.
    """
    path = check_renderable(environment, path)
    tell(f"playing {settings.episodes} episodes for {path}")
    recorded = record_episodes(policy, environment, settings)
    tell_of_path = lambda text: tell(f"{text} for {path}")  # noqa: E731
    speed = frames_per_second(environment)
    if path.suffix.lower() == paraview.SUFFIX:
        states = (state for _, _, state in _steps(recorded, "writing state", tell_of_path))
        count = paraview.write_states(path, environment, states, speed)
    else:
        count = films.write_frames(path, _frames(environment, recorded, tell_of_path), speed)
    returns = [float(episode.returned[-1]) for episode in recorded]
    return Rendered(path, count, returns, [len(episode.returned) - 1 for episode in recorded])


def record_episodes(
    policy: TrainedPolicy, environment: Environment, settings: EpisodeSettings
) -> list[StepRecord]:
    """Play one episode in each of several environments and record their states."""
    config, max_steps = policy.config, settings.max_steps
    evaluation, records = _start(environment, config, settings.key, settings.episodes)
    parts = [_to_host(jax.tree.map(lambda x: x[None], records))]
    while evaluation.step < max_steps and not evaluation.timestep.last.all():
        evaluation, records = _play_steps(environment, config, policy.parameters, evaluation, settings.greedy)
        parts.append(_to_host(records))
    stacked = jax.tree.map(_concatenate, *parts)
    # The last call of the program may have gone on beyond the steps that were asked for.
    lengths = np.minimum(np.asarray(evaluation.results.length, int), max_steps)
    return [jax.tree.map(lambda x, i=i, n=n: x[: n + 1, i], stacked) for i, n in enumerate(lengths)]


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


def _steps(
    episodes: list[StepRecord], what: str, tell: Callable[[str], None]
) -> Iterator[tuple[int, int, State]]:
    """Yield the steps of all episodes, one after the other: the episode's index, the step's, and the state."""
    total = sum(len(episode.returned) for episode in episodes)
    steps = ((index, step) for index, x in enumerate(episodes) for step in range(len(x.returned)))
    for number, (index, step) in enumerate(steps, 1):
        tell(f"{what} {number:,} of {total:,}")
        yield index, step, jax.tree.map(lambda x, step=step: x[step], episodes[index].state)


def _frames(
    environment: Environment, episodes: list[StepRecord], tell: Callable[[str], None]
) -> Iterator[films.FilmFrame]:
    size: tuple[int, ...] = ()
    past: list[State] = []
    for index, step, of_host in _steps(episodes, "drawing picture", tell):
        state, returned = jax.tree.map(jnp.asarray, of_host), episodes[index].returned
        past = past if step else []  # a trail is that of one episode
        picture = render(environment, state, past)
        if draws_past(environment):
            past.append(state)
        size = size or picture.shape
        if picture.shape != size:
            raise ShoalError(
                f"{type(unwrapped(environment)).__name__}.render returned pictures of {size[:2]} and of "
                f"{picture.shape[:2]} pixels; all must be of one size."
            )
        caption = f"#{index + 1}   step {step}   return {format_number(float(returned[step]))}"
        yield films.FilmFrame(picture, caption, step == len(returned) - 1)
    tell(f"writing {sum(len(episode.returned) for episode in episodes):,} pictures")
