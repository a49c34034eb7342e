"""Episodes of a policy as pictures: played as an evaluation plays them, then drawn moment by moment."""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import can_render, frames_per_second, render, unwrapped
from shoal.errors import ShoalError
from shoal.runtime import video
from shoal.runtime.config import at_least
from shoal.runtime.evaluation import Playing, begun, played_on
from shoal.runtime.progress import unsaid
from shoal.types import Array, Environment, PyTree, State, spec_of

STEPS_AT_ONCE = 64  # of a compiled call


class Moments(NamedTuple):
    """Episodes as they went, with a leading axis of steps and one of episodes: the start, and what followed."""

    state: State
    returned: Array  # so far


class Episode(NamedTuple):
    """One episode of T steps as it went, [T + 1, ...] each."""

    states: PyTree
    returned: np.ndarray  # so far


@dataclasses.dataclass(frozen=True)
class Rendered:
    """What was drawn.

    Attributes:
      path: the file.
      frames: how many pictures.
      returns: of each episode.
      lengths: of each, in steps.
    """

    path: Path
    frames: int
    returns: list[float]
    lengths: list[int]


def check(environment: Environment, path: str | Path, episodes: int) -> Path:
    """The path, if episodes of an environment can be drawn into it.

    Raises:
      ShoalError: the environment draws no pictures, there can be no such file, or no episode is asked for.
    """
    at_least("render_episodes", episodes, 1)
    if not can_render(environment):
        raise ShoalError(
            f"{type(unwrapped(environment)).__name__} cannot be drawn: it has no `render(state)`, which returns "
            "uint8 [height, width, 3]."
        )
    return video.check(path)


def draw(
    environment: Environment,
    config: Any,
    parameters: PyTree,
    key: Array,
    path: str | Path,
    *,
    episodes: int,
    max_steps: int,
    greedy: bool,
    tell: Callable[[str], None] = unsaid,
) -> Rendered:
    """Plays episodes and draws them into a file, one after the other.

    With the same key they are the first that `evaluation.play` plays, up to rounding.

    Args:
      environment: which has a `render`.
      config: the algorithm's.
      parameters: of the policy.
      key: of the episodes.
      path: ends in .gif, .mp4 or .png (of which there is the first picture alone).
      episodes: how many.
      max_steps: after which an episode is left.
      greedy: whether the policy takes its mode or samples.
      tell: called with what is being done, again and again.

    Raises:
      ShoalError: as `check`, or a picture is none.
    """
    path = check(environment, path, episodes)
    tell(f"playing {episodes} episodes for {path}")
    played = record(environment, config, parameters, key, episodes, max_steps, greedy)
    frames = functools.partial(_frames, environment, played, lambda text: tell(f"{text} for {path}"))
    count = video.write(path, frames, frames_per_second(environment))
    returns = [float(episode.returned[-1]) for episode in played]
    return Rendered(path, count, returns, [len(episode.returned) - 1 for episode in played])


def record(
    environment: Environment,
    config: Any,
    parameters: PyTree,
    key: Array,
    episodes: int,
    max_steps: int,
    greedy: bool,
) -> list[Episode]:
    """Plays one episode in each of `episodes` environments and keeps their states."""
    playing, moments = _begin(environment, config, key, episodes)
    parts = [_on_host(jax.tree.map(lambda x: x[None], moments))]
    while playing.step < max_steps and not playing.timestep.last.all():
        playing, moments = _play(environment, config, parameters, playing, greedy)
        parts.append(_on_host(moments))
    whole = jax.tree.map(_joined, *parts)
    lengths = np.minimum(np.asarray(playing.played.length, int), max_steps)
    return [Episode(*jax.tree.map(lambda x, i=i, n=n: x[: n + 1, i], whole)) for i, n in enumerate(lengths)]


@functools.partial(jax.jit, static_argnames=("episodes",))
def _begin(environment: Environment, config: Any, key: Array, episodes: int) -> tuple[Playing, Moments]:
    playing = begun(environment, config.algorithm(spec_of(environment)), key, episodes)
    return playing, Moments(playing.state, playing.played.returned)


@functools.partial(jax.jit, static_argnames=("greedy",))
def _play(
    environment: Environment, config: Any, parameters: PyTree, playing: Playing, greedy: bool
) -> tuple[Playing, Moments]:
    algorithm = config.algorithm(spec_of(environment))

    def on(playing: Playing, _: None) -> tuple[Playing, Moments]:
        playing = played_on(environment, algorithm, parameters, playing, greedy)
        return playing, Moments(playing.state, playing.played.returned)

    return jax.lax.scan(on, playing, None, length=STEPS_AT_ONCE)


def _on_host(tree: PyTree) -> PyTree:
    """NumPy's arrays, which do not compile anything when they are joined and cut; keys stay what they are."""
    return jax.tree.map(lambda x: x if _is_key(x) else np.asarray(x), tree)


def _joined(*parts: Any) -> Any:
    return jnp.concatenate(parts) if _is_key(parts[0]) else np.concatenate(parts)


def _is_key(x: Any) -> bool:
    return jnp.issubdtype(x.dtype, jax.dtypes.prng_key)


def _frames(
    environment: Environment, episodes: list[Episode], tell: Callable[[str], None]
) -> Iterator[video.Frame]:
    size: tuple[int, ...] = ()
    drawn, total = 0, sum(len(episode.returned) for episode in episodes)
    for number, episode in enumerate(episodes, 1):
        for step, returned in enumerate(episode.returned):
            drawn += 1
            tell(f"drawing picture {drawn:,} of {total:,}")
            state = jax.tree.map(lambda x, step=step: jnp.asarray(x[step]), episode.states)
            picture = render(environment, state)
            size = size or picture.shape
            if picture.shape != size:
                raise ShoalError(
                    f"{type(unwrapped(environment)).__name__}.render returned pictures of {size[:2]} and of "
                    f"{picture.shape[:2]} pixels; all must be of one size."
                )
            caption = f"#{number}   step {step}   return {returned:.4g}"
            yield video.Frame(picture, caption, step == len(episode.returned) - 1)
    tell(f"writing {total:,} pictures")
