"""An actor and critics of its actions: shapes, what each is shown, weights, members of a population, bad settings."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.config import settings, struct
from shoal.config.requirements import check_needs
from shoal.config.struct import named_leaves
from shoal.nets import action_critics
from shoal.nets.action_critics import ActionCritic, ActionCriticsConfig
from shoal.nets.heads import DeterministicHead
from shoal.nets.mlp import MLP
from shoal.nets.networks import NetworkConfig
from shoal.nets.q_networks import expected_values
from shoal.ops.distributions import DiscreteValued, TanhNormal
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Dict, Discrete, zeros

KEY = jax.random.key(0)
VECTOR, ARMS = Box(-1.0, 1.0, (3,)), Box(-1.0, np.array([1.0, 5.0], np.float32), (2,))
PICTURE = Box(0, 255, (12, 12, 3), np.uint8)
SMALL = ActionCriticsConfig(hidden_sizes=(8,), num_atoms=5, num_quantiles=7)


def config(**changes):
    return settings.with_settings(SMALL, **changes)


@functools.cache
def built(spec, **changes):
    return jax.jit(lambda key: config(**changes).build(spec, key))(KEY)


def batch(space, lead=(6, 4)):
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (*lead, *x.shape)), zeros(space))


def values(network, spec, lead=(6, 4)):
    action = (jnp.zeros((*lead, 2)),) if isinstance(spec.action_space, Box) else ()
    return network.critic.values(batch(spec.observation_space, lead), *action)


def traced(spec, settings):
    """The values of a network that is only traced."""
    action_critics.check(settings, spec)
    return jax.eval_shape(lambda key: values(settings.build(spec, key), spec), KEY)


@pytest.mark.quick("1-quantile-space0", "3-categorical-space1")
@pytest.mark.parametrize("space", [ARMS, Discrete(4)])
@pytest.mark.parametrize("kind", ["expected", "categorical", "quantile"])
@pytest.mark.parametrize("num_critics", [1, 3])
def test_each_critic_predicts_what_is_asked_of_it(space, kind, num_critics):
    """[critics, ...] of the actions that are given in a Box, [critics, ..., n] of all discrete ones."""
    spec, of_kind = EnvSpec(VECTOR, space), config(values=kind, num_critics=num_critics)
    output = traced(spec, of_kind)
    shape = (num_critics, 6, 4, *([4] if isinstance(space, Discrete) else []))
    if kind == "categorical":
        assert isinstance(output, DiscreteValued)
        assert output.atoms.shape == output.logits.shape == (*shape, 5)
    else:
        assert output.shape == (*shape, *([7] if kind == "quantile" else []))
    assert jax.eval_shape(lambda x: expected_values(of_kind, x), output).shape == shape


@pytest.mark.parametrize(
    ("space", "encoders"),
    [
        (PICTURE, {"encoder": "cnn"}),
        (PICTURE, {"encoder": "resnet", "encoder_channels": (4,), "critic_encoder": "mlp"}),
        (Box(0, 3, (5,), np.int32), {"encoder": "one_hot"}),
        (Dict({"near": VECTOR, "far": Box(-9.0, 9.0, (20,))}), {"encoder": "mlp_each,mlp"}),
        (Dict({"view": PICTURE, "speed": VECTOR}), {"encoder": "cnn", "encoder_others": 4}),
        (Box(-1.0, 1.0, (5, 3)), {"encoder": "set"}),
    ],
)
def test_observations_of_any_space(space, encoders):
    for actions in (ARMS, Discrete(4)):
        spec = EnvSpec(space, actions)
        assert traced(spec, config(**encoders)).shape[:3] == (2, 6, 4)
        network = jax.eval_shape(lambda key, spec=spec: config(**encoders).build(spec, key), KEY)
        policy = jax.eval_shape(lambda network: network.actor.policy(batch(space)), network)
        assert jax.eval_shape(lambda policy: policy.mode(), policy).shape[:2] == (6, 4)


def test_critics_see_what_only_they_are_shown_and_the_actor_what_only_it_is():
    space = Dict({"own": VECTOR, "state": Box(-1.0, 1.0, (20,)), "noisy": Box(-1.0, 1.0, (7,))})
    spec = EnvSpec(space, ARMS, critic_only=("state",), actor_only=("noisy",))
    network = built(spec)
    assert network.actor.encoder.num_features == 3 + 7
    assert network.critic.members.layers.in_features == 3 + 20
    observation = batch(space)
    without_state = {name: x for name, x in observation.items() if name != "state"}
    assert network.actor.policy(without_state).mode().shape == (6, 4, 2)
    # A row of a replay has all entries.
    np.testing.assert_array_equal(
        network.actor.policy(observation).mode(), network.actor.policy(without_state).mode()
    )
    assert values(network, spec).shape == (2, 6, 4)


@pytest.mark.usefixtures("own_kernels")
@pytest.mark.parametrize("space", [ARMS, Discrete(4)])
def test_critics_begin_with_weights_of_their_own(space):
    """Each is the critic that its key makes alone."""
    spec = EnvSpec(VECTOR, space)
    network, keys = built(spec), jax.random.split(jax.random.split(KEY)[1])
    for index, key in enumerate(keys):
        alone = jax.jit(lambda key: ActionCritic(spec, SMALL, key=key))(key)
        for name, leaf in named_leaves(network.critic.member(index)).items():
            np.testing.assert_allclose(leaf, named_leaves(alone)[name], atol=1e-5)
    observation = jax.random.normal(KEY, (5, 3))
    action = (jnp.ones((5, 2)),) if space is ARMS else ()
    first, second = network.critic.values(observation, *action)
    assert np.abs(first - second).max() > 1e-2


def test_critics_of_images_are_the_same_one_by_one_and_together():
    spec = EnvSpec(PICTURE, ARMS)
    critic = built(spec, encoder="cnn").critic
    assert not critic.maps and built(EnvSpec(VECTOR, ARMS)).critic.maps
    observation = jax.vmap(PICTURE.sample)(jax.random.split(KEY, 5))
    action = jax.random.uniform(KEY, (5, 2))
    np.testing.assert_allclose(
        critic.values(observation, action), critic(observation, action), rtol=1e-4, atol=1e-5
    )


def test_the_deviation_is_the_states():
    network = built(EnvSpec(VECTOR, ARMS), initial_std=0.5, policy_scale=0.3)
    policy = network.actor.policy(jnp.concatenate([jnp.zeros((1, 3)), 3 * jax.random.normal(KEY, (4, 3))]))
    assert isinstance(policy, TanhNormal)
    np.testing.assert_allclose(policy.scale[0], 0.5, rtol=1e-5)
    assert np.ptp(policy.scale, axis=0).min() > 1e-2


def test_an_actor_of_one_action_learns_from_its_critics_alone():
    network = built(EnvSpec(VECTOR, ARMS), distribution="deterministic")
    assert isinstance(network.actor.head, DeterministicHead)
    observation = jax.random.normal(KEY, (5, 3))

    def value(actor):
        return jnp.sum(network.critic.values(observation, actor.policy(observation).mode()))

    assert np.abs(network.actor.policy(100 * observation).mode()).max() <= 1.0
    gradient = jax.grad(value)(network.actor)
    assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(gradient))


@pytest.mark.parametrize("kind", ["auto", "deterministic"])
def test_a_role_of_fewer_numbers_acts_with_these_alone(kind):
    network = built(EnvSpec(VECTOR, ARMS), distribution=kind, policy_scale=1.0)
    policy = network.actor.policy(jnp.ones((5, 3)), jnp.array([True, False]))
    for action in (policy.mode(), policy.sample(KEY)):
        np.testing.assert_array_equal(action[:, 1], 0.0)
        assert np.abs(action[:, 0]).min() > 1e-4


def test_illegal_actions_of_a_discrete_space_have_no_probability():
    policy = built(EnvSpec(VECTOR, Discrete(3))).actor.policy(jnp.ones(3), jnp.array([True, False, True]))
    assert set(np.asarray(jax.vmap(policy.sample)(jax.random.split(KEY, 50))).tolist()) == {0, 2}


def test_critics_have_layers_of_their_own():
    own = {"critic_hidden_sizes": (6, 5), "critic_layer_norm": True, "critic_encoder": "mlp"}
    network = built(EnvSpec(VECTOR, ARMS), **own)
    layers = network.critic.members.layers.headed.mlp
    assert [x.kernel.shape for x in layers.layers] == [(2, 6, 64 + 2), (2, 5, 6)]
    assert len(layers.norms) == 2 and not network.actor.mlp.norms
    assert network.actor.mlp.in_features == 3


@pytest.mark.usefixtures("own_kernels")
def test_members_of_a_population_have_scales_of_their_own():
    spec = EnvSpec(VECTOR, ARMS)
    scales = [{"policy_scale": 0.1, "value_scale": 1.0}, {"policy_scale": 0.5, "value_scale": 2.0}]
    members = [struct.as_arrays(config(**x)) for x in scales]
    stacked = jax.tree.map(lambda *xs: jnp.stack(xs), *members)
    keys = jax.random.split(KEY)
    population = jax.jit(jax.vmap(lambda config, key: config.build(spec, key)))(stacked, keys)
    observation, action = jax.random.normal(KEY, (5, 3)), jnp.ones((5, 2))
    together = jax.vmap(lambda network: network.critic.values(observation, action))(population)
    assert together.shape == (2, 2, 5)
    for index, member in enumerate(members):
        alone = jax.jit(lambda config, key: config.build(spec, key))(member, keys[index])
        for name, leaf in named_leaves(alone).items():
            np.testing.assert_allclose(named_leaves(population)[name][index], leaf, atol=1e-5)
        np.testing.assert_allclose(together[index], alone.critic.values(observation, action), atol=1e-4)


@pytest.mark.quick(
    "changes3-v_min=5 is not below v_max=1; the returns", "changes11-there is no setting 'core'"
)
@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"num_critics": 0}, r"num_critics=0 is out of bounds: it must be at least 1"),
        ({"num_critics": 2.0}, r"num_critics=2.0 is not a whole number"),
        ({"values": "mean"}, r"values='mean' .* expected"),
        ({"values": "categorical", "v_min": 5.0, "v_max": 1.0}, r"v_min=5 is not below v_max=1; the returns"),
        ({"distribution": "beta"}, r"distribution='beta' .* deterministic"),
        ({"initial_std": 1e-4}, r"initial_std=0.0001 must be above minimum_std=0.001"),
        ({"critic_activation": "rleu"}, r"critic_activation='rleu' .* 'relu'"),
        ({"critic_hidden_sizes": (0,)}, r"critic_hidden_sizes=\(0,\) is out of bounds: each number"),
        ({"encoder": "cnn"}, r"encoder='cnn' .*"),
        ({"critic_encoder": "cnn"}, r"critic_encoder='cnn' .*"),
        ({"critic_encoder": "cn"}, r"critic_encoder='cn' is none of .* did you mean 'cnn'"),
        ({"core": "gru"}, r"there is no setting 'core'"),
        ({"dueling": True}, r"there is no setting 'dueling'"),
    ],
)
def test_a_bad_setting_is_one_sentence(changes, sentence):
    with pytest.raises(ShoalError, match=f"^{sentence}"):
        bad = config(**changes)
        settings.check_fields(bad)
        bad.validate()
        action_critics.check(bad, EnvSpec(VECTOR, ARMS))


@pytest.mark.parametrize(
    ("space", "changes", "sentence"),
    [
        (
            Discrete(3),
            {"distribution": "tanh_normal"},
            "distribution='tanh_normal' has no effect with action_s",
        ),
        (Discrete(3), {"initial_std": 0.5}, "initial_std=0.5 has no effect with action_space=Discrete"),
        (
            ARMS,
            {"distribution": "deterministic", "minimum_std": 0.1},
            "minimum_std=0.1 has no effect with distribution='deterministic'; it needs distribution='auto' or "
            "distribution='tanh_normal'.",
        ),
        (
            ARMS,
            {"num_atoms": 11},
            "num_atoms=11 has no effect with values='expected'; it needs values='categ",
        ),
        (
            ARMS,
            {"encoder_channels": (4,)},
            "encoder_channels=(4,) has no effect with encoder='flatten' and critic_encoder=None; it needs",
        ),
    ],
)
def test_a_setting_without_effect_is_named(space, changes, sentence):
    chosen = config(**changes)
    with pytest.raises(ShoalError) as error:
        check_needs(changes, settings.flat(chosen) | {"action_space": space}, settings.needs_of(chosen))
    assert str(error.value).startswith(sentence)


def test_a_policy_of_one_action_needs_bounds_and_is_none_of_an_actor_critics():
    space = Box(np.array([-1.0, -np.inf], np.float32), 1.0, (2,))
    for kind in ("auto", "deterministic"):
        with pytest.raises(ShoalError, match=r"distribution='(tanh_normal|deterministic)' .* need finite bo"):
            config(distribution=kind).build(EnvSpec(VECTOR, space), KEY)
    with pytest.raises(ShoalError, match=r"^distribution='deterministic' [^.]*gsde[^.]*\.?$"):
        settings.check_fields(dataclasses.replace(NetworkConfig(), distribution="deterministic"))


class Halves(nnx.Module):
    """Critics without an ensemble."""

    def __init__(self, spec, *, key):
        space = spec.action_space
        size, outputs = (2, 1) if isinstance(space, Box) else (0, space.n)
        self.first, self.second = (MLP(3 + size, (4,), outputs, key=k) for k in jax.random.split(key))

    def values(self, observation, action=None):
        x = observation if action is None else jnp.concatenate([observation, action], axis=-1)
        output = jnp.stack([self.first(x), self.second(x)])
        return output if action is None else output[..., 0]


class Own(nnx.Module):
    """A network of one's own: Shoal's actor, with other critics."""

    def __init__(self, spec, *, key):
        keys = jax.random.split(key)
        self.actor = SMALL.build(spec, keys[0]).actor
        self.critic = Halves(spec, key=keys[1])


class WithoutCritics(nnx.Module):
    def __init__(self, spec, *, key):
        self.actor = Own(spec, key=key).actor


class WithoutAxis(Own):
    """One value, and no axis of critics."""

    def __init__(self, spec, *, key):
        super().__init__(spec, key=key)
        self.critic = Single(spec, key=key)


class Single(Halves):
    def values(self, observation, action=None):
        return super().values(observation, action)[0]


class WrongSize(Own):
    """An actor of one number more."""

    def __init__(self, spec, *, key):
        super().__init__(spec, key=key)
        self.actor = SMALL.build(EnvSpec(VECTOR, Box(-1.0, 1.0, (3,))), key).actor


class Remembering(Own):
    has_memory = True


@pytest.mark.parametrize("space", [ARMS, Discrete(4)])
def test_a_network_of_ones_own_is_accepted(space):
    chosen = action_critics.choose(Own)
    action_critics.check(chosen, EnvSpec(VECTOR, space))
    assert action_critics.name_of(chosen) is Own
    named = action_critics.choose("shoal.nets.action_critics:ActionCritics")
    assert named == ActionCriticsConfig()
    assert action_critics.name_of(named) == "shoal.nets.action_critics:ActionCritics"


@pytest.mark.parametrize(
    ("broken", "sentence"),
    [
        (
            WithoutCritics,
            r"network WithoutCritics lacks the method 'critic.values'; it needs actor.policy and critic.values\.$",
        ),
        (MLP, r"network MLP cannot be built as MLP\(spec, key=key\)"),
        (
            WithoutAxis,
            r"Single.values \(.*line \d+\) returns values of float32\[3, 2\]; it must return float32\[1, 3, 2\], "
            r"one for each critic\.",
        ),
        (
            WrongSize,
            r"Actor.policy returns a distribution of actions of float32\[3, 2, 3\]; it must return an",
        ),
        (Remembering, r"network=.*Remembering.* has a memory, which needs sequences of steps"),
    ],
)
def test_a_network_of_ones_own_is_refused_in_one_sentence(broken, sentence):
    with pytest.raises(ShoalError, match=f"^{sentence}"):
        action_critics.check(action_critics.choose(broken), EnvSpec(VECTOR, ARMS))
