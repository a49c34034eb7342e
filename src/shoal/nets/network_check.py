"""Checks of classes of networks and torsos, with one sentence for an error, before an algorithm uses them."""

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code, user_frames
from shoal.config.struct import named_leaves, path_name
from shoal.nets import torsos
from shoal.nets.composition import is_noisy
from shoal.nets.encoders import DEFAULT_LAYERS, EncoderLayers, check_encoder
from shoal.nets.memory.sequence_check import check_sequences, sequence_modules
from shoal.nets.noisy import with_noise
from shoal.nets.torsos import Kind
from shoal.nets.value_heads import expectation
from shoal.types import Array, EnvSpec, PyTree
from shoal.types.spaces import Box, Dict, Space, zeros


@reports_user_code
def check_network(network_class: Callable[..., Any], spec: EnvSpec) -> None:
    """Check that a class can be a network of an algorithm, made as `network_class(spec, key=key)`.

    Without memory it is a `shoal.nets.actor_critic.Network`, with one what `shoal.nets.memory.sequences` says. It is
    built twice, and the rest is traced; a network with memory is run over a few random steps too.

    Raises:
      ShoalError: it cannot be built so, lacks a method, is not a pytree of float arrays, has another structure at each
        construction or under a trace, has noise that cannot be drawn ahead, or `policy` or `value` give other shapes
        than the spec and the batch ask for.
    """
    name = _name_of("network", network_class)
    network = _build(network_class, spec, name, 0)
    has_memory = bool(sequence_modules(network))
    if has_memory != bool(getattr(network_class, "has_memory", False)):
        raise ShoalError(
            f"{name} has sequence modules (apply), and does not declare a memory: write has_memory = True into "
            "the class that is named."
            if has_memory
            else f"{name} declares has_memory = True, and has no method 'apply', nor have its attributes actor "
            "and critic; a network with memory is made of sequence modules."
        )
    if not has_memory:
        _check_methods(network, name)
    _check_tree(network_class, spec, name, network)
    _check_noise(network, name)
    if has_memory:
        shows = {x: getattr(network_class, f"previous_{x}", True) for x in ("action", "reward")}
        check_sequences(network, spec, name, **shows)
    else:
        _check_outputs(network, spec, name)


@reports_user_code
def check_action_values(network: Any, spec: EnvSpec) -> None:
    """Check that a network's settings make one of action values (`shoal.nets.q_networks`), as `check_network` does.

    Raises:
      ShoalError: it cannot be built, lacks `values` (with a memory `initial` and `apply`), is not a pytree of float
        arrays, or gives something else than a number for each action.
    """
    builder: Any = Builder(network)
    name, batch_shape = f"network {builder.__name__}", (3, 2)
    built = _build(builder, spec, name, 0)
    has_memory = bool(getattr(network, "has_memory", False))
    for method in ("initial", "apply") if has_memory else ("values",):
        if not callable(getattr(built, method, None)):
            raise ShoalError(
                f"{name} lacks the method {method!r}; it needs values(observation), or a memory (has_memory = True, "
                "initial and apply)."
            )
    _check_tree(builder, spec, name, built)
    if has_memory:  # what its calls are given, the algorithm knows
        return
    output = jax.eval_shape(
        lambda net, o: expectation(net.values(o)), built, _zeros(spec.observation_space, batch_shape)
    )
    expected_shape = (*batch_shape, spec.action_space.n)  # type: ignore[union-attr]
    if getattr(output, "shape", None) != expected_shape or not jnp.issubdtype(output.dtype, jnp.floating):
        raise ShoalError(
            f"{name} gives values of {getattr(output, 'dtype', 'no')} and shape {getattr(output, 'shape', output)} for "
            f"observations with leading axes {batch_shape}; they must be floats of shape {expected_shape}, one for "
            "each action."
        )


@reports_user_code
def check_torso(torso_class: Callable[..., Any], space: Space) -> None:
    """Check that a class can be a torso (see `shoal.nets.torsos`), made as `torso_class(space, key=key)`.

    Raises:
      ShoalError: it cannot be built so, has no `num_features`, is not a pytree of float arrays, has another structure
        at each construction or under a trace, has noise that cannot be drawn ahead, or gives features of another shape.
    """
    name, batch_shape = _name_of("torso", torso_class), (3, 2)
    torso = _build(torso_class, space, name, 0)
    width = getattr(torso, "num_features", None)
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:
        raise ShoalError(
            f"{name} has num_features={width!r}; it must be a whole number of at least 1, the length of its features."
        )
    if not callable(torso):
        raise ShoalError(
            f"{name} cannot be called; it needs __call__(observation), which returns its features."
        )
    _check_tree(torso_class, space, name, torso)
    _check_noise(torso, name)
    features = jax.eval_shape(lambda torso, o: torso(o), torso, _zeros(space, batch_shape))
    shape = getattr(features, "shape", None)
    if shape != (*batch_shape, width):
        raise ShoalError(
            f"{name} gives features of shape {features if shape is None else shape} for observations with leading "
            f"axes {batch_shape}; it must be {(*batch_shape, width)}, since num_features={width}."
        )
    if not jnp.issubdtype(features.dtype, jnp.floating):
        raise ShoalError(
            f"{name} gives features of {features.dtype}; they must be floats, to have a gradient."
        )


def check_torsos(
    space: Space, encoder: Any, layers: EncoderLayers = DEFAULT_LAYERS, name: str = "encoder"
) -> None:
    """Require that torsos can be built for a space and fit each other.

    Raises:
      ShoalError: the first one cannot; the sentence says why.
    """
    parts = torsos.torsos_of(encoder)
    for index, (torso, own_layers) in enumerate(zip(parts, torsos.layers_of(parts, layers), strict=True)):
        if not isinstance(torso, Kind):
            check_torso(Builder(torso), space)
        elif index and torso.name != "mlp":
            raise ShoalError(
                f"{name}={torsos.name_of(encoder)!r} has {torso.name!r} after another torso, whose features are a "
                "vector; only 'mlp', or a torso of your own, can follow one."
            )
        else:
            check_encoder(space, torso.name, own_layers, name)
        if index < len(parts) - 1:
            shapes = jax.eval_shape(
                functools.partial(torsos.build, space, torso, own_layers), key=jax.random.key(0)
            )
            space = Box(-math.inf, math.inf, (shapes.num_features,))


class Builder:
    """Settings of a torso or a network in the place of a class that is built as `Class(space, key=key)`."""

    def __init__(self, built: Any):
        given = getattr(built, "torso_class", None) or getattr(built, "network_class", None)
        named = type(built) if given is None else torsos.imported(given)
        self.settings, self.__name__ = built, getattr(named, "__name__", repr(named))

    def __call__(self, space: Any, *, key: Array) -> PyTree:
        """Build a torso for a space, or a network for a spec."""
        return self.settings.build(space, key)

    def __getattr__(self, name: str) -> Any:
        """Return what the settings declare, such as `has_memory`."""
        return getattr(self.__dict__["settings"], name)


def _name_of(noun: str, network_class: Any) -> str:
    """Return the name of a class for the sentences, such as "network MyNetwork"."""
    name = f"{noun} {getattr(network_class, '__name__', repr(network_class))}"
    if not callable(network_class):
        raise ShoalError(f"{name} is of type {type(network_class).__name__}; it must be a class.")
    return name


def _check_methods(network: Any, name: str) -> None:
    for method in ("policy", "value"):
        if not callable(getattr(network, method, None)):
            raise ShoalError(
                f"{name} lacks the method {method!r}; it needs policy and value, or a memory "
                "(initial and apply)."
            )


def _check_outputs(network: Any, spec: EnvSpec, name: str) -> None:
    """Require that a network without memory gives a value and a distribution of the shapes that the batch asks for."""
    batch_shape = (3, 2)
    observation = _zeros(spec.observation_space, batch_shape)
    value = jax.eval_shape(lambda net, o: expectation(net.value(o)), network, observation)
    if not hasattr(value, "shape") or value.shape != batch_shape:
        raise ShoalError(
            f"{name} gives values of shape {getattr(value, 'shape', value)} for observations with "
            f"leading axes {batch_shape}; it must be {batch_shape}, one number for each."
        )
    if not jnp.issubdtype(value.dtype, jnp.floating):
        raise ShoalError(f"{name} gives values of {value.dtype}; they must be floats, to have a gradient.")

    def sample(network: Any, observation: Any) -> Any:
        return _distribution(network.policy(observation, None), name).sample(jax.random.key(0))

    action = jax.eval_shape(sample, network, observation)
    expected_shape = (*batch_shape, *_action_shape(spec.action_space))
    if not hasattr(action, "shape") or action.shape != expected_shape:
        raise ShoalError(
            f"{name} has a policy whose samples are of shape {getattr(action, 'shape', action)} for "
            f"observations with leading axes {batch_shape}; it must be {expected_shape}."
        )


def _build(network_class: Callable[..., Any], spec: EnvSpec | Space, name: str, seed: int) -> Any:
    """Build a network for a spec, or a torso for a space."""
    try:
        return network_class(spec, key=jax.random.key(seed))
    except TypeError as error:
        if user_frames(error):  # its constructor takes what it is given, and fails by itself
            raise
        noun, class_name = name.split(" ", 1)
        call = f"{class_name}({'spec' if noun == 'network' else 'space'}, key=key)"
        raise ShoalError(f"{name} cannot be built as {call}: {error}.") from error


def _distribution(result: Any, name: str) -> Any:
    for method in ("sample", "log_prob", "mode"):
        if not callable(getattr(result, method, None)):
            raise ShoalError(
                f"{name} has a policy that returns a {type(result).__name__} without the method {method!r}; it "
                "must return a distribution, as those of shoal.ops.distributions."
            )
    return result


def _check_tree(network_class: Callable[..., Any], spec: EnvSpec | Space, name: str, network: Any) -> None:
    leaves = jax.tree.leaves(network)
    if not leaves and name.startswith("torso "):  # such as one that only pools
        return
    if not leaves or leaves[0] is network:  # JAX takes an object that it does not know for a leaf
        raise ShoalError(
            f"{name} is a pytree without arrays; make it an nnx.Module whose arrays are nnx.Param."
        )
    for leaf in leaves:
        kind = str(getattr(leaf, "dtype", type(leaf).__name__))
        if not kind.startswith(("float", "bfloat")):
            raise ShoalError(
                f"{name} holds a leaf of {kind}; every leaf of it is trained, so all must be "
                "arrays of floats (a stored key or nnx.Rngs is not)."
            )
    rebuilt = _build(network_class, spec, name, 1)
    if jax.tree.structure(rebuilt) != jax.tree.structure(network):  # type: ignore[operator]
        raise ShoalError(
            f"{name} has another tree structure at each construction, so that everything would "
            "compile again; a lambda or another object made in __init__ and kept as an attribute does this."
        )
    try:
        traced = jax.eval_shape(lambda key: network_class(spec, key=key), jax.random.key(0))
        missing = named_leaves(network).keys() - named_leaves(traced).keys()
    except ValueError as error:  # JAX compares it with an earlier one of the class
        if "metadata fields" not in str(error):
            raise
        missing = {"an attribute"}
    if missing:
        raise ShoalError(
            f"{name} loses {sorted(missing)[0]!r} when it is built under jax.jit, where a bare array "
            "kept as an attribute is not recognised; keep it as nnx.Param(array)."
        )


def _check_noise(network: Any, name: str) -> None:
    """Require that the noise of each part that takes a key for it can be drawn ahead, by a method `sample(key)`."""
    drawn = with_noise(network, jax.random.key(0))
    for path, part in jax.tree_util.tree_flatten_with_path(drawn, is_leaf=is_noisy)[0]:
        if is_noisy(part):
            place = f" in {path_name(path)!r}" if path else ""
            raise ShoalError(
                f"{name} has noisy layers (a {type(part).__name__}{place}) without a method sample(key), which returns "
                "the layer with one draw of its noise, as that of shoal.nets.noisy.NoisyMLP does; policy and value are "
                "given no key."
            )


def _action_shape(space: Space) -> tuple[int, ...]:
    if isinstance(space, Box):
        return (math.prod(space.shape),)  # a Box's policy actions are flat
    return space.shape  # type: ignore[union-attr]


def _zeros(space: Space, batch_shape: tuple[int, ...]) -> Any:
    if isinstance(space, Dict):
        return {name: _zeros(part, batch_shape) for name, part in space.items()}
    return jnp.broadcast_to(zeros(space), (*batch_shape, *space.shape))
