"""Checks of the parts of PPO that are functions: names that exist, and a user's own functions called once on shapes."""

import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters.partial_eval import dce_jaxpr

from shoal.algos.acting import memories
from shoal.algos.learning import advantages, critic_losses, surrogates
from shoal.algos.learning.minibatches import Rows
from shoal.base.errors import ShoalError
from shoal.base.imports import chosen_function
from shoal.nets import networks, stateful
from shoal.nets.inputs import num_action_features
from shoal.nets.memory import sequences
from shoal.nets.memory.sequences import NetworkInputs
from shoal.nets.output_check import leading_axes, zero_batch
from shoal.nets.outputs import ActionDistribution, Value
from shoal.ops.distributions import Beta, Foreign
from shoal.types import Array, EnvSpec, PyTree, TimeStep, contract
from shoal.types.contract import described
from shoal.types.spaces import Box

if TYPE_CHECKING:  # which imports this module
    from shoal.algos.ppo_config import PPOConfig

_PARTS: dict[str, tuple[Mapping[str, Callable], str]] = {  # the functions by name, and the parameters of each
    "surrogate": (surrogates.SURROGATES, "config, log_ratio, advantage, pair, kl_coef"),
    "advantage": (advantages.ESTIMATORS, "config, inputs, value, log_ratio"),
    "value_loss": (critic_losses.LOSSES, "config, output, target"),
}


def check_parts(config: "PPOConfig", spec: EnvSpec) -> None:
    """Check that the parts that are chosen exist and fit the critic, and call a user's own once, on shapes.

    Raises:
      ShoalError: there is none of that name, it cannot be called so, or it returns something else.
    """
    if networks.has_own_policy(config.network):
        check_users_distribution(config, spec)
    own = {}
    for setting, (named, _) in _PARTS.items():
        function = chosen_function(setting, getattr(config, setting), named)
        if function not in named.values():
            own[setting] = function
    # Shoal's own parts fit a critic of numbers, and tracing a network takes time.
    is_scalar = networks.value_head_of(config.network) == "scalar"
    if not own and is_scalar and config.value_loss in ("squared", "huber"):
        return

    shape = leading_axes(spec)  # steps and streams that a user's own function is called with
    steps, flag = (jax.ShapeDtypeStruct(shape, dtype) for dtype in (jnp.float32, jnp.bool_))
    value, number = (jax.ShapeDtypeStruct(x, jnp.float32) for x in ((shape[0] + 1, *shape[1:]), ()))
    inputs = Rows(weight=steps, reward=steps, discount=steps, last=flag)
    of_network = _network_and_inputs(config, spec)
    output = jax.eval_shape(lambda *given: _network_outputs(config, *given)[1], *of_network)

    # Of distributions within the program that is traced, since those of other packages need not be trees.
    def of_pair(config, log_ratio, advantage, of_network, kl_coef):
        distribution = _network_outputs(config, *of_network)[0]
        return own["surrogate"](config, log_ratio, advantage, (distribution, distribution), kl_coef)

    arguments: dict[str, tuple[object, ...]] = {
        "surrogate": (steps, steps, of_network, number),
        "advantage": (inputs, value, None if config.recompute == "never" else steps),
        "value_loss": (output, steps),
    }
    traced = jax.tree.map(lambda _: number, config)  # as within the compiled program
    for setting, function in own.items():
        call = of_pair if setting == "surrogate" else function
        _check_call(setting, getattr(config, setting), function, call, (traced, *arguments[setting]), shape)
    rows = inputs._replace(target=steps, following=getattr(output, "logits", ()))
    target = critic_losses.target_of(config, rows)
    jax.eval_shape(critic_losses.value_loss, traced, output, steps, target)


def _check_call(
    setting: str,
    choice: object,
    function: Callable,
    call: Callable,
    arguments: tuple[object, ...],
    shape: tuple[int, ...],
) -> None:
    """Require that a function takes its arguments, and returns arrays of floats of the shape of the steps.

    Args:
      call: calls the function with the arguments as it takes them.
    """
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError as error:
        parameters = _PARTS[setting][1]
        raise ShoalError(f"{setting}={choice!r} cannot be called with ({parameters}): {error}.") from None
    result, who = jax.eval_shape(call, *arguments), contract.named(function, f"{setting}={choice!r}")
    given = f"{shape[0]} steps of {shape[1]} streams"
    is_pair = setting == "advantage"
    for x in contract.require_tuple(who, result, "(advantage, target)") if is_pair else (result,):
        contract.require_array(who, x, shape, given=given, why="for each of both" * is_pair)


def check_users_distribution(config: "PPOConfig", spec: EnvSpec) -> None:
    """Check that the distribution of a user's policy fits the settings, one of another package in particular.

    Raises:
      ShoalError: its samples are in other units than `action_scaling` says, it has no KL divergence where the surrogate
        needs one, its bijector is not fixed, or a setting is for Shoal's own distributions.
    """
    found: list[ActionDistribution] = []

    def ends(network: PyTree, inputs: NetworkInputs) -> list[Array]:
        """Return what bijectors make of numbers far from 0."""
        distribution, _ = _network_outputs(config, network, inputs)
        found[:] = [distribution]
        if not isinstance(distribution, Foreign):
            return []
        _check_settings_of_foreign(config, distribution)
        raw = jnp.zeros_like(distribution.mode_raw())
        return [distribution.from_raw(raw + x) for x in (-1e4, 1e4) if distribution.has_bijectors]

    values = _constants(ends, *_network_and_inputs(config, spec))
    space, (distribution,) = spec.action_space, found
    is_clipped = config.action_scaling == "clip" and networks.distribution_of(config.network) != "beta"
    if isinstance(space, Box) and isinstance(distribution, Beta) and is_clipped:
        low, high = distribution.low, distribution.high
        if np.any(np.not_equal(low, space.low)) or np.any(np.not_equal(high, space.high)):
            raise ShoalError(
                f"action_scaling='clip' takes samples in the units of action_space={space}, and those of the policy's "
                f"Beta are in [{low}, {high}]; choose action_scaling='rescale'."
            )
    if not isinstance(distribution, Foreign):
        return
    who = described(distribution.distribution)
    if values is None:
        raise ShoalError(
            f"the policy is {who} whose bijector depends on the network, and actions are remembered as they are "
            "before it; the bijector must be fixed: give what the network computes to the base distribution."
        )
    if isinstance(space, Box) and config.action_scaling == "rescale" and values:
        lows, highs = jnp.minimum(*values), jnp.maximum(*values)
        reaches_all = bool(jnp.all(lows <= -0.999) & jnp.all(highs >= 0.999))
        low, high = float(jnp.min(lows)), float(jnp.max(highs))
        # Beyond 1,000 there are no bounds.
        if not reaches_all or 1.001 < max(-low, high) < 1e3:
            raise ShoalError(
                f"action_scaling='rescale' takes samples in [-1, 1], and those of the policy, {who}, are in "
                f"[{low:g}, {high:g}]; choose action_scaling='clip', or leave their scale out of the bijector."
            )


def _check_settings_of_foreign(config: "PPOConfig", distribution: Foreign) -> None:
    who, kind = described(distribution.distribution), networks.distribution_of(config.network)
    if config.correlated_noise or kind in ("tanh_normal", "gsde"):
        setting = "correlated_noise=True" if config.correlated_noise else f"distribution={kind!r}"
        raise ShoalError(f"{setting} is for distributions of Shoal, and the policy is {who}; leave it out.")
    if config.surrogate == "penalty":
        try:
            distribution.kl(distribution)
        except NotImplementedError:
            raise ShoalError(
                f"surrogate='penalty' needs a KL divergence, and the policy is {who}, which has none; choose "
                "surrogate='clip'."
            ) from None


def _constants(function: Callable[..., list[Array]], *shapes: PyTree) -> list[Array] | None:
    """Compute the results of a function that do not depend on its arguments; None where they do."""
    closed = jax.make_jaxpr(function)(*shapes)
    needed, is_read = dce_jaxpr(closed.jaxpr, [True] * len(closed.out_avals))
    if any(is_read):
        return None
    results: list[Array] = jaxpr_as_fun(ClosedJaxpr(needed, closed.consts))()
    return results


def _network_and_inputs(config: "PPOConfig", spec: EnvSpec) -> tuple[PyTree, PyTree]:
    """Return a network and its inputs at a few steps, as shapes."""

    def make(key: Array) -> tuple[PyTree, NetworkInputs]:
        shape = leading_axes(spec)
        number = jnp.zeros(shape)
        observation = zero_batch(spec.observation_space, shape)
        timestep = TimeStep(observation, number, number, number > 0, number > 0)
        previous = jnp.zeros((*shape, num_action_features(spec.action_space)))
        is_shown = networks.shows(config.network, "previous_action")
        inputs = memories.network_inputs(config, timestep, observation, previous if is_shown else ())
        return stateful.at_rest(config.network.build(spec, key)), inputs

    return jax.eval_shape(make, jax.random.key(0))


def _network_outputs(
    config: "PPOConfig", network: PyTree, inputs: NetworkInputs
) -> tuple[ActionDistribution, Value]:
    """Return the distributions of a network, and the outputs of its critic."""
    recurrent = memories.is_recurrent(config)
    start = sequences.initial(network, inputs.first.shape[1:]) if recurrent else sequences.Memories(())
    _, distribution, output = sequences.unroll(network, start, inputs)
    return distribution, output
