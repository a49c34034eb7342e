"""Networks of action values, and their settings: a torso, perhaps a recurrent core, and a head.

A network of action values has one method, `values(observation)`: observations with leading axes [...] to the values of
n actions, [..., n]; for Shoal's own this may be a distribution of each value, or its quantiles, [..., n, m]. One with a
memory is a sequence module (`shoal.nets.memory.sequences`) whose outputs these are. Every array in it is a parameter.
"""

from typing import ClassVar, Literal

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.config.arguments import LARGEST_INDEX
from shoal.config.requirements import Needs, Table
from shoal.config.struct import parameter
from shoal.nets import networks, torsos
from shoal.nets.composition import Chain
from shoal.nets.headed import Head, Headed, HeadStyle
from shoal.nets.memory.recurrent import Carry, RecurrentTorso
from shoal.nets.memory.sequences import NetworkInputs, has_memory
from shoal.nets.network_check import Builder, check_head, check_network, check_torsos
from shoal.nets.networks import ClassOfNetworks, NetworkSettings
from shoal.nets.noisy import NoisyMLP
from shoal.nets.outputs import Value
from shoal.nets.q_heads import DistributionalQHead, DuelingQHead, QHead, QuantileQHead
from shoal.nets.torso_choice import PartSettings, build_head, part
from shoal.nets.torso_config import NORMALISED, SOME_LAYERS, CoreConfig
from shoal.nets.value_heads import CategoricalValueHead, QuantileValueHead, ScalarValueHead, expectation
from shoal.types import Array, EnvSpec, PyTree
from shoal.types.spaces import Discrete

_HEAD = Needs("q_head", (None,))  # Shoal's own
_PLAIN = Needs("noisy", (False,))
# Layers before a core and before those of head_sizes are not noisy, nor is an encoder.
_SOME_PLAIN = (
    _PLAIN,
    Needs("head_sizes", other_than=((),), such_as=(64,)),
    Needs("core", other_than=("none",), such_as="gru"),
    Needs("encoder", other_than=("flatten", "one_hot"), such_as="cnn"),
)
_CATEGORICAL = (Needs("values", ("categorical",)), _HEAD)


@struct.struct
class PredictionConfig:
    """The settings of what a network predicts of the return of an action."""

    group: ClassVar[str] = "network"

    values: Literal["expected", "categorical", "quantile"] = "expected"
    """Predicts of each action its expected return, the distribution of the return over fixed numbers (C51), or
    quantiles of the return (QR-DQN)."""
    num_atoms: int = parameter(101, low=2, high=LARGEST_INDEX, needs=_CATEGORICAL)
    """Predicts distributions over this many numbers from v_min to v_max (values categorical)."""
    # Static, as v_max: the numbers between them are rounded from float64 once; traced, they would differ in a bit.
    v_min: float = parameter(-100.0, static=True, needs=_CATEGORICAL)
    """Sets the lowest return that a distribution may have (values categorical)."""
    v_max: float = parameter(100.0, static=True, needs=_CATEGORICAL)
    """Sets the highest return that a distribution may have (values categorical)."""
    num_quantiles: int = parameter(
        200, low=1, high=LARGEST_INDEX, needs=(Needs("values", ("quantile",)), _HEAD)
    )
    """Predicts this many quantiles of each return (values quantile)."""

    def head_of_actions(self, num_actions: int, *, dueling: bool = False) -> Head:
        """Make the head for the values of discrete actions."""
        if self.values == "categorical":
            return DistributionalQHead(num_actions, self.v_min, self.v_max, self.num_atoms, dueling=dueling)
        if self.values == "quantile":
            return QuantileQHead(num_actions, self.num_quantiles, dueling=dueling)
        return DuelingQHead(num_actions) if dueling else QHead(num_actions)

    def head_of_one_action(self) -> Head:
        """Make the head for the value of an action that the layers before it are given."""
        if self.values == "categorical":
            return CategoricalValueHead(self.v_min, self.v_max, self.num_atoms)
        return QuantileValueHead(self.num_quantiles) if self.values == "quantile" else ScalarValueHead()

    def check_atoms(self) -> None:
        """Require that the numbers of a distribution have an order.

        Raises:
          ShoalError: they do not.
        """
        if self.values == "categorical" and not self.v_min < self.v_max:
            raise ShoalError(
                f"v_min={self.v_min:g} is not below v_max={self.v_max:g}; the returns to be learned lie between them, "
                "such as v_min=-100 and v_max=100."
            )


@struct.struct
class QNetworkConfig(PredictionConfig, CoreConfig):
    """The settings of Shoal's own network of action values."""

    group: ClassVar[str] = "network"
    needs: ClassVar[Table] = {
        "initialiser": (_SOME_PLAIN,),
        "layer_norm_bias": (NORMALISED, _SOME_PLAIN),
        "head_initialiser": (_PLAIN,),
        "head_hidden_scale": (SOME_LAYERS, _PLAIN),
    }

    hidden_sizes: tuple[int, ...] = (120, 84)
    """Gives the network hidden layers of these widths."""
    activation: str = "relu"
    """Applies this activation, by its name, after each hidden layer."""
    q_head: PartSettings | None = part("q_head", "head")
    """Makes the values of actions by this head of your own, as module:Name; values then says what it predicts. None is
    the head of values and dueling."""
    dueling: bool = parameter(False, needs=_HEAD)
    """Predicts the value of a state and advantages of the actions, of which each action's value is made."""
    noisy: bool = False
    """Makes the layers after the encoder noisy, with learned deviations of the weights, in place of random actions."""
    noisy_sigma: float = parameter(0.5, above=0.0, initial=True, needs=Needs("noisy", (True,)))
    """Starts the deviations of noisy weights with this, divided by the root of the number of inputs (noisy)."""
    value_scale: float = parameter(1.0, above=0.0, initial=True)
    """Scales the initial weights of the last layer by this."""

    def build(self, spec: EnvSpec, key: Array) -> "QNetwork | RecurrentQNetwork":
        """Build a new network for an environment of discrete actions."""
        return (RecurrentQNetwork if self.has_memory else QNetwork)(spec, self, key=key)

    def head(self, space: Discrete, key: Array) -> Head:
        """Make the head for the values of a space's actions; `key` is the network's."""
        if self.q_head is not None:
            return build_head(self.q_head, space, key)
        return self.head_of_actions(space.n, dueling=self.dueling)

    def validate(self) -> None:
        """Require that the settings fit each other.

        Raises:
          ShoalError: the first that does not.
        """
        CoreConfig.validate(self)
        self.check_atoms()


def _layers(
    config: QNetworkConfig,
    spec: EnvSpec,
    in_features: int,
    sizes: tuple[int, ...],
    style: HeadStyle,
    key: Array,
) -> Chain | Headed:
    """Make the layers from features to the values of actions, noisy ones if so configured; `key` is the network's."""
    head, layers_key = config.head(spec.action_space, key), jax.random.split(key)[1]  # type: ignore[arg-type]
    # Noisy layers have the initial weights of their paper, whatever `initialiser` says.
    if not config.noisy:
        return Headed(head, in_features, sizes, scale=config.value_scale, key=layers_key, **style)
    scales = dict(scale=1.0, out_scale=config.value_scale, sigma=config.noisy_sigma)
    plain = {name: style[name] for name in ("activation", "layer_norm", "final_activation")}  # type: ignore[literal-required]
    return Chain(NoisyMLP(in_features, sizes, head.num_inputs, key=layers_key, **scales, **plain), head)  # type: ignore[arg-type]


class QNetwork(nnx.Module):
    """Encoder, layers and head: observations to values of actions.

    Source: Mnih et al. 2015, "Human-level control through deep reinforcement learning".
    """

    def __init__(self, spec: EnvSpec, config: QNetworkConfig | None = None, *, key: Array):
        config = config or QNetworkConfig()
        self.encoder, sizes, style = torsos.before_head(spec.observation_space, config, key=key)
        self.layers = _layers(config, spec, self.encoder.num_features, sizes, style, key)

    def values(self, observation: PyTree) -> Value:
        """Map observations with leading axes [...] to values of actions, [..., n]."""
        return self.layers(self.encoder(observation))


class RecurrentQNetwork(nnx.Module):
    """A torso with memory, layers and a head: a sequence module whose outputs are values of actions, [T, N, n]."""

    def __init__(self, spec: EnvSpec, config: QNetworkConfig, *, key: Array):
        self.torso = RecurrentTorso(spec, config, key=jax.random.split(key)[0])
        sizes, style = config.head_sizes, config.style_after_torso
        self.layers = _layers(config, spec, self.torso.out_features, sizes, style, key)

    def initial(self, batch_shape: tuple[int, ...]) -> Carry:
        """Make the memory of sequences before their first step."""
        return self.torso.initial(batch_shape)

    def apply(self, memory: Carry, inputs: NetworkInputs, first: Array) -> tuple[Carry, Value]:
        """Return the memory after the last step, and values of actions at each."""
        return self.unroll(memory, inputs, first)[:2]

    def unroll(self, memory: Carry, inputs: NetworkInputs, first: Array) -> tuple[Carry, Value, Carry]:
        """Return the same as `apply`, and the memories from before each step, [T, N, ...]."""
        after, features, before = self.torso.unroll(memory, inputs._replace(first=first))
        return after, self.layers(features), before


def unroll(network: PyTree, memory: PyTree, inputs: NetworkInputs) -> tuple[PyTree, Array]:
    """Return the memory after T steps of N sequences, and the network's output at each; without memory any axes."""
    if not has_memory(inputs):
        return (), network.values(inputs.observation)
    return network.apply(memory, inputs, inputs.first)


def step(network: PyTree, memory: PyTree, inputs: NetworkInputs) -> tuple[PyTree, Array]:
    """Return the memory after one step of N sequences, and the network's output, [N, n]."""
    if not has_memory(inputs):
        return unroll(network, memory, inputs)
    memory, output = unroll(network, memory, jax.tree.map(lambda x: x[None], inputs))
    return memory, jax.tree.map(lambda x: x[0], output)


def values_of(network: NetworkSettings) -> str:
    """Return what a network predicts of returns: expected, as where it does not say, categorical or quantile."""
    return str(getattr(network, "values", "expected"))


def expected_values(network: NetworkSettings, output: Value) -> Array:
    """Return the expected returns of the actions, [..., n] (or [...]), of the output of a network or of its critic."""
    # Quantiles are an array, whose last axis is no action: their mean is the value.
    if values_of(network) == "quantile":
        return jnp.mean(expectation(output), axis=-1)
    return expectation(output)


OWN: dict[str, type[NetworkSettings]] = {"shoal.nets.q_networks:QNetwork": QNetworkConfig}


def choose(network: object) -> NetworkSettings:
    """Return the settings of a network of action values, as `shoal.nets.networks.choose`."""
    return networks.choose(network, OWN, ClassOfNetworks)


def name_of(network: object) -> object:
    """Return the name by which `choose` finds a network's settings again; for a class given itself, the class."""
    return networks.name_of(network, OWN)


def check(network: NetworkSettings, spec: EnvSpec, *, may_have_state: bool = False) -> None:
    """Require that a network can be one of action values; of Shoal's own, only the encoder could be wrong.

    Args:
      may_have_state: as `shoal.nets.networks.check`.
    Raises:
      ShoalError: it cannot; the sentence says why.
    """
    if isinstance(network, QNetworkConfig):
        check_torsos(spec.observation_space, network.encoder, network)
        check_head("q_head", network.q_head, spec, network.values)
    else:
        check_network(Builder(network), spec, of_action_values=True)
    networks.require_stateless(network, spec, name_of(network), may_have_state=may_have_state)
