"""`shoal.check`: the checker for an environment by its name, with its arguments checked."""

from collections.abc import Iterable, Mapping

from shoal.config import arguments
from shoal.config.traced import on_host
from shoal.envs.checking import checker
from shoal.envs.given import environment_of
from shoal.types import Environment
from shoal.xla.jax_settings import require_platform


@on_host
def check(
    environment: str | Environment,
    *,
    keys: int = 16,
    steps: int = 128,
    max_steps: int = 10_000,
    seed: int = 0,
    ignore: Iterable[str] = (),
    progress: bool = False,
    environment_parameters: Mapping[str, object] | None = None,
    **parameters: object,
) -> list[checker.Finding]:
    """Look for errors in an environment; prints nothing, unless `progress` is set.

    Args:
      keys: the number of environments that run at once, 2 or more.
      steps: the number of random steps of each in one block.
      max_steps: the number of random steps after which an episode counts as one that never ends.
      ignore: rules that are broken on purpose, such as "key-ignored" for a deterministic environment.
      progress: names a part that takes more than 5 seconds on standard error.
      environment_parameters: those parameters of the environment whose names are also arguments here.
    Returns:
      the findings, one sentence each; an empty list if there are none.
    Raises:
      ShoalError: there is no such environment or rule, or an argument is out of range.
    """
    parameters = arguments.parameters_of_call("environment_parameters", environment_parameters, parameters)
    sizes = {
        name: arguments.whole_number(name, value, 2, arguments.LARGEST_INDEX)
        for name, value in {"keys": keys, "steps": steps, "max_steps": max_steps}.items()
    }
    seed = arguments.seed("seed", seed)
    require_platform()
    env = environment_of(environment, parameters)
    return checker.check(env, **sizes, seed=seed, ignore=ignore, progress=progress)
