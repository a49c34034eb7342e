"""Modules of flax.linen: linen's own first numbers, any leading axes, masks, and what is refused in one sentence."""

import functools
import warnings

import jax
import jax.numpy as jnp
import linen_networks
import numpy as np
import pytest
from flax import linen

from shoal.base.errors import ShoalError
from shoal.config.struct import named_leaves
from shoal.nets import linen as holder
from shoal.nets import networks, torso_choice
from shoal.nets.network_check import check_network, check_torso
from shoal.ops.distributions import MultiCategorical
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

SPACE = Box(-1.0, 1.0, (3,))
SPEC = EnvSpec(SPACE, Discrete(2))
KEY = jax.random.key(5)


def module(call):
    """Make a class of linen modules of the body of its call."""
    return type(call.__name__, (linen.Module,), {"__call__": linen.compact(call)})


@module
def Cell(self, carry, x):
    return linen.GRUCell(4)(carry, x)


@module
def Recurrent(self, x):
    return linen.RNN(linen.LSTMCell(4))(x[:, None])[:, 0]


@module
def ScannedCell(self, x):
    cell = linen.scan(linen.SimpleCell, variable_broadcast="params", split_rngs={"params": False})(4)
    return cell(jnp.zeros((x.shape[0], 4)), x[None])[1][0]


@module
def Normalised(self, x, train=False):
    return linen.BatchNorm(use_running_average=not train)(x)


@module
def Dropped(self, x, train=False):
    return linen.Dropout(0.5, deterministic=not train)(linen.Dense(4)(x))


@module
def Mode(self, x, train):
    return linen.Dense(4)(x)


@module
def Noisy(self, x):
    return x + jax.random.normal(self.make_rng("noise"))


@module
def Image(self, x):
    return x[..., None]


@module
def Masked(self, x, action_mask):
    logits = linen.Dense(2)(x)
    return (logits if action_mask is None else jnp.where(action_mask, logits, -jnp.inf)), x[:, 0]


@module
def Mean(self, x):
    return linen.Dense(2)(x), x[:, 0]


class Width(linen.Module):
    width: int
    depth: int

    @linen.compact
    def __call__(self, x):
        return linen.Dense(self.width)(x)


class Scaled(linen.Module):
    scale: np.ndarray

    @linen.compact
    def __call__(self, x):
        return linen.Dense(2)(x * self.scale)


def test_a_module_may_have_arrays_among_its_fields():
    check_torso(lambda space: Scaled(np.arange(3.0)), SPACE)
    built = [holder.build(lambda space, n=n: Scaled(np.full(3, n)), SPACE, KEY) for n in (1.0, 1.0, 2.0)]
    one, same, other = map(jax.tree.structure, built)
    assert one == same != other


def test_modules_are_equal_where_the_functions_among_their_fields_are():
    """A maker makes other initialisers each time, and a partial and a lambda."""

    def dense(scale, power):
        init, act = (
            linen.initializers.orthogonal(scale),
            functools.partial(linen.leaky_relu, negative_slope=scale),
        )
        return linen.Sequential([linen.Dense(2, kernel_init=init), act, lambda x: x**power])

    check_torso(lambda space: dense(0.01, 2), SPACE)
    numbers = [(0.01, 2), (0.01, 2), (0.02, 2), (0.01, 3)]
    built = [holder.build(lambda space, n=n: dense(*n), SPACE, KEY) for n in numbers]
    one, same, *others = map(jax.tree.structure, built)
    assert one == same and one not in others


def test_a_distribution_may_have_plain_numbers():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what it imports
        from tensorflow_probability.substrates.jax import distributions as tfd

    @module
    def Unit(self, x):
        return tfd.Normal(linen.Dense(1)(x)[..., 0], 1.0), x[:, 0]

    network = holder.build(Unit, EnvSpec(SPACE, Box(-1.0, 1.0, ())), KEY)
    policy, _ = jax.jit(network.policy_and_value)(jnp.ones((2, 4, 3)))
    assert policy.log_prob(jnp.zeros((2, 4))).shape == (2, 4)


@pytest.mark.parametrize("maker", [linen_networks.Torso, linen_networks.listed, linen_networks.network])
def test_the_first_parameters_are_linens_own(maker):
    is_network = maker is linen_networks.network
    of_whom = SPEC if is_network else SPACE
    expected = (maker() if maker is linen_networks.Torso else maker(of_whom)).init(KEY, jnp.zeros((1, 3)))
    built = holder.build(maker, of_whom, KEY)
    first = named_leaves(built)
    wanted = {f"params/{name}/value": x for name, x in named_leaves(expected["params"]).items()}
    assert first.keys() == wanted.keys()
    jax.tree.map(np.testing.assert_array_equal, first, wanted)
    check = check_network if is_network else check_torso
    check(maker, of_whom)  # such as the same structure at each construction, under a trace too


def test_leading_axes_are_one_batch_to_the_module():
    torso = holder.build(linen_networks.listed, SPACE, KEY)
    x = jax.random.uniform(KEY, (3, 2, 3))
    features = torso(x)
    assert features.shape == (3, 2, torso.num_features) == (3, 2, 4)
    np.testing.assert_allclose(features.reshape(6, 4), torso(x.reshape(6, 3)), rtol=1e-6)
    np.testing.assert_allclose(features[1, 1], torso(x[1, 1]), rtol=1e-6)


@pytest.mark.parametrize("lead", [(), (2,), (1, 2), (2, 3)])
def test_what_has_no_batch_axis_gets_none(lead):
    """Of the same length as the batch, too."""
    spec = EnvSpec(SPACE, Box(-1.0, 1.0, (2,)))
    network = holder.build(linen_networks.gaussian, spec, KEY)
    policy, value = network.policy_and_value(jnp.ones((*lead, 3)))
    assert (policy.loc.shape, policy.scale.shape, value.shape) == ((*lead, 2), (2,), lead)
    assert policy.log_prob(jnp.zeros((*lead, 2))).shape == lead


def test_dictionaries_of_observations():
    @module
    def Both(self, x):
        return linen.Dense(4)(jnp.concatenate([x["a"], x["b"].reshape(x["b"].shape[0], -1)], axis=-1))

    space = Dict({"a": SPACE, "b": Box(0.0, 1.0, (2, 2))})
    torso = holder.build(Both, space, KEY)
    assert torso({"a": jnp.ones((5, 2, 3)), "b": jnp.ones((5, 2, 2, 2))}).shape == (5, 2, 4)


@pytest.mark.parametrize("maker", [linen_networks.network, Masked])
@pytest.mark.parametrize("lead", [(2,), (3, 2)])
def test_illegal_actions_have_no_probability(maker, lead):
    network = holder.build(maker, SPEC, KEY)
    policy = network.policy(jnp.ones((*lead, 3)), jnp.broadcast_to(jnp.array([True, False]), (*lead, 2)))
    np.testing.assert_array_equal(policy.log_prob(jnp.zeros(lead, int)), np.zeros(lead))
    assert not np.any(policy.mode())


def test_logits_of_several_choices():
    spec = EnvSpec(SPACE, MultiDiscrete((2, 3)))
    network = holder.build(lambda spec: linen_networks.ActorCritic(sum(spec.action_space.nvec)), spec, KEY)
    policy = network.policy(jnp.ones((4, 3)))
    assert isinstance(policy, MultiCategorical) and [x.shape for x in policy.logits] == [(4, 2), (4, 3)]


@pytest.mark.parametrize(
    "maker, message",
    [
        (
            Cell,
            r"^the linen module Cell takes \(carry, x\), not .* alone; choose core='gru'",
        ),
        (Recurrent, r"^the linen module Recurrent is recurrent \(RNN\) .*core='gru'"),
        (ScannedCell, r"is recurrent \(ScanSimpleCell\)"),
        (Normalised, "keeps batch_stats beside its parameters; .*write it with flax.nnx"),
        (Dropped, "has Dropout, .*write it with flax.nnx"),
        (Mode, r"takes \(x, train\), .* alone; .*flax.nnx"),
        (Noisy, "draws random numbers in its call; .*flax.nnx"),
        (Image, r"gives float32\[1, 3, 1\] .*; a torso gives features, an array \[B, num_features\]"),
        (linen_networks.gaussian, "AttributeError"),
        (lambda space: Width, "returns a type; it must return a module of flax.linen, or take `key=` too"),
        (
            lambda space: linen.Sequential([linen.Conv(8, (3, 3))]),
            r"^the linen module Sequential fails with a batch float32\[1, 3\]: ",
        ),
        (lambda space: linen.Sequential([linen.BatchNorm()]), "use_running_average.*write it with flax.nnx"),
        (lambda space: linen.Module(), "the linen module Module cannot be called"),
    ],
)
def test_what_cannot_be_a_torso(maker, message):
    with pytest.raises(ShoalError, match=message):
        check_torso(maker, SPACE)


@pytest.mark.parametrize(
    "maker, spec, message",
    [
        (linen_networks.Torso, SPEC, r"gives float32\[3, 2, 8\]; it must give a pair, policy"),
        (
            Mean,
            EnvSpec(SPACE, Box(-1.0, 1.0, (2,))),
            r"gives float32.* for actions in Box.*; a policy must be a distribution",
        ),
        (
            Mean,
            SPEC._replace(num_agents=2),
            "is one call for actor and critic, .* choose linen modules as encoder",
        ),
        (Mean, SPEC._replace(critic_only=("x",)), "is one call for actor and critic"),
        (
            functools.partial(linen_networks.ActorCritic, 3),
            SPEC,
            r"^ActorCritic.__call__ \(.*linen_networks.py, line \d+\) returns a distribution over 3 choices",
        ),
    ],
)
def test_what_cannot_be_a_network(maker, spec, message):
    with pytest.raises(ShoalError, match=message):
        check_network(maker, spec)


def test_a_network_cannot_be_an_actor_with_critics_of_its_actions():
    with pytest.raises(ShoalError, match=r"network network lacks the method .actor.policy"):
        check_network(linen_networks.network, SPEC, of_action_critics=True)


def test_a_policy_and_a_value_are_no_values_of_actions():
    with pytest.raises(ShoalError, match=r"gives 2 values; it must give the values of actions \[B, n\]"):
        check_network(linen_networks.network, SPEC, of_action_values=True)


def test_a_mask_that_cannot_be_applied_is_named():
    class Own:
        pass

    jax.tree_util.register_pytree_node(Own, lambda x: ((), ()), lambda *_: Own())
    network = holder.build(module(lambda self, x: (Own(), linen.Dense(1)(x)[:, 0])), SPEC, KEY)
    with pytest.raises(ShoalError, match=r"gives a Own .* its call must take action_mask and apply it"):
        network.policy(jnp.ones((2, 3)), jnp.ones((2, 2), bool))


@pytest.mark.parametrize(
    "choose, noun", [(networks.choose, "spec"), (functools.partial(torso_choice.choose), "space")]
)
def test_arguments_that_a_class_needs_are_named(choose, noun):
    with pytest.raises(
        ShoalError,
        match=rf"Width' is .* needs width and depth; give a function .* def make\({noun}\): return Width\(width",
    ):
        choose(Width)
    with pytest.raises(
        ShoalError, match=r"is a module of flax.linen itself and not a class; give a function"
    ):
        choose(Width(3, 4))
    assert (
        choose(linen_networks.Torso).build(SPEC if noun == "spec" else SPACE, KEY).name
        == "the linen module Torso"
    )
