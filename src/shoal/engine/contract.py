"""The runtime's requirements of an algorithm's functions, checked while they are traced."""

from collections.abc import Mapping

from shoal.envs.batch import Batch
from shoal.types import Algorithm, AlgorithmConfig, Array, EnvSpec, Learner, Memory, Metrics, PyTree, contract
from shoal.types.spaces import Box, Discrete, MultiDiscrete


def checked_algorithm(config: AlgorithmConfig, spec: EnvSpec, axis: tuple[str, ...] = ()) -> Algorithm:
    """Return the functions of a config.

    Raises:
      ShoalError: its `algorithm` returns anything else.
    """
    return contract.require_type(config.algorithm, config.algorithm(spec, axis), Algorithm)


def checked_learner(algorithm: Algorithm, key: Array, num_envs: int) -> Learner:
    """Return an algorithm's first learner.

    Raises:
      ShoalError: its `init` returns something other than a learner.
    """
    return contract.require_type(algorithm.init, algorithm.init(key, num_envs), Learner)


def checked_act(
    algorithm: Algorithm, result: object, memory: Memory, batch: Batch
) -> tuple[Memory, PyTree, PyTree]:
    """Return the memory, the actions and the extras that `act` returned.

    Raises:
      ShoalError: it returned something else, a memory of another structure, or no action for each environment.
    """
    after, action, extras = contract.require_tuple(algorithm.act, result, "(memory, action, extras)")
    contract.require_same(algorithm.act, "memory", after, memory)
    space = batch.action_space
    if isinstance(space, Discrete | MultiDiscrete | Box):
        agents = () if batch.num_agents == 1 else (batch.num_agents,)
        given = f"{batch.num_envs} environments with action_space={space}"
        shape = (batch.num_envs, *agents, *space.shape)
        contract.require_array(algorithm.act, action, shape, "", what="actions", given=given)
    return after, action, extras


def checked_update(
    algorithm: Algorithm, result: object, learner: Learner
) -> tuple[Learner, Metrics, Mapping[str, Array]]:
    """Return the learner, the metrics and the checks that `update` returned, none where it has no checks.

    `metrics.py` checks the content of the metrics and checks.

    Raises:
      ShoalError: it returned something else, or a learner of another structure.
    """
    forms = "(learner, metrics)", "(learner, metrics, checks)"
    after, metrics, *checks = contract.require_tuple(algorithm.update, result, *forms)
    contract.require_same(algorithm.update, "learner", after, learner)
    return after, metrics, checks[0] if checks else {}
