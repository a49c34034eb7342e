"""Checks of classes of networks and torsos, with one sentence for an error, before an algorithm uses them."""

import functools
import inspect
import math
from collections.abc import Callable

import jax
import jax.numpy as jnp

from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code, user_frames
from shoal.config.struct import named_leaves, path_name
from shoal.nets import linen, output_check, stateful, torso_choice, torsos
from shoal.nets.composition import is_noisy
from shoal.nets.memory.sequence_check import check_sequences, sequence_modules
from shoal.nets.noisy import with_noise
from shoal.nets.output_check import LEAD
from shoal.nets.torso_choice import Kind, PartSettings
from shoal.nets.torso_config import TorsoConfig
from shoal.ops.distributions import is_foreign
from shoal.types import Array, EnvSpec, PyTree
from shoal.types.contract import described, refuse, require_array
from shoal.types.spaces import Box, Space


@reports_user_code
def check_network(
    network_class: Callable[..., PyTree],
    spec: EnvSpec,
    *,
    of_action_values: bool = False,
    of_action_critics: bool = False,
) -> None:
    """Check that a class can be a network of an algorithm, made as `network_class(spec, key=key)`.

    Without memory it is a `shoal.nets.actor_critic.Network`, with one what `shoal.nets.memory.sequences` says; or it is
    one of action values (`shoal.nets.q_networks`), or of an actor and critics of actions (`shoal.nets.action_critics`).
    It is built once, and the rest is traced; a network with memory is run over a few random steps too.

    Raises:
      ShoalError: it cannot be built so, lacks a method, is not a pytree of float arrays, has another structure at each
        construction or under a trace, has noise that cannot be drawn ahead, keeps a memory where an episode begins, or
        gives something else than the spec and the batch ask for.
    """
    name = f"network {getattr(network_class, '__name__', repr(network_class))}"
    network = _build(network_class, spec, name)
    modules = sequence_modules(network)
    if bool(modules) != bool(getattr(network_class, "has_memory", False)):
        raise ShoalError(
            f"{name} has sequence modules (apply), and does not declare a memory: write has_memory = True into "
            "the class that is named."
            if modules
            else f"{name} declares has_memory = True, and has no method 'apply', nor have its attributes actor "
            "and critic; a network with memory is made of sequence modules."
        )
    if not modules:
        methods = ("values",) if of_action_values else ("policy", "value")
        methods = ("actor.policy", "critic.values") if of_action_critics else methods
        needs = f"it needs {' and '.join(methods)}{'' if of_action_critics else ', or a memory (initial and apply)'}"
        output_check.require_methods(name, {repr(x): _attribute(network, x) for x in methods}, needs)
    _check_tree(network_class, spec, name, network)
    declared = getattr(network_class, "values", "")  # of a class, it is the method
    kind = declared if isinstance(declared, str) and declared else "expected"
    kind = kind if of_action_values or of_action_critics else ""
    if of_action_critics:
        _check_action_critics(network, spec, kind)
    elif modules:
        shows = {x: getattr(network_class, f"previous_{x}", True) for x in ("action", "reward")}
        check_sequences(network, spec, name, kind, **shows)
    else:
        _check_outputs(network, spec, ("values",) if kind else ("value", "policy"), name, kind)


@reports_user_code
def check_torso(torso_class: Callable[..., PyTree], space: Space) -> None:
    """Check that a class can be a torso (see `shoal.nets.torsos`), made as `torso_class(space, key=key)`.

    Raises:
      ShoalError: it cannot be built so, has no `num_features`, is not a pytree of float arrays, has another structure
        at each construction or under a trace, has noise that cannot be drawn ahead, or gives features of another shape.
    """
    name = f"torso {getattr(torso_class, '__name__', repr(torso_class))}"
    torso = _build(torso_class, space, name)
    width = _width(torso, name, "num_features", "the length of its features")
    _check_call(torso, name, "observation", "its features")
    _check_tree(torso_class, space, name, torso)
    features = _traced(name, lambda torso, o: torso(o), torso, output_check.zero_batch(space, LEAD))
    dtype = getattr(features, "dtype", jnp.float32)
    require_array(
        torso,
        features,
        (*LEAD, width),
        str(dtype) if jnp.issubdtype(dtype, jnp.floating) else "float32",  # of any width
        what="features",
        given=f"observations with the leading axes {list(LEAD)}",
        why=f"since num_features={width} and features have a gradient",
    )


@reports_user_code
def check_head(setting: str, head: PartSettings | None, spec: EnvSpec, values: str = "expected") -> None:
    """Check that a user's own head (see `torso_choice`) can be made for the actions, and gives what its part is for.

    Args:
      setting: `policy_head`, `value_head` or `q_head`.
      head: its settings; one of Shoal's own is not checked.
      values: what is predicted of each action, for a `q_head`.
    Raises:
      ShoalError: it cannot be built, has no `num_inputs`, cannot be called, or as `check_torso`.
    """
    if head is None or isinstance(head, Kind):
        return
    builder = Builder(head)
    name = f"{setting} {builder.__name__}"
    module = _build(builder, spec.action_space, name)
    width = _width(module, name, "num_inputs", "the number of its inputs")
    given = ("x", "action_mask") if setting == "policy_head" else ("x",)
    what = {"policy_head": "a distribution over actions", "value_head": "a value"}
    _check_call(module, name, ", ".join(given), what.get(setting, "values of actions"))
    _check_tree(builder, spec.action_space, name, module)

    def run(module: PyTree, x: Array) -> None:
        output = module(x, *([None] * (len(given) - 1)))
        if setting == "policy_head":
            output_check.check_policy(module, output, LEAD, spec)
        elif setting == "value_head":
            output_check.check_value(module, output, LEAD)
        else:
            output_check.check_action_values(module, output, LEAD, spec, values)

    _traced(name, run, module, jnp.zeros((*LEAD, width)))


@reports_user_code
def check_own_parts(network: PyTree, spec: EnvSpec) -> None:
    """Check that an actor and a critic of a user's own can be those of an `ActorCritic`, or of one with memory.

    Args:
      network: the settings of the whole.
    Raises:
      ShoalError: one cannot be built, lacks a method, or as `check_network`.
    """
    of_parts = {"actor_network": ("policy", spec.of_actor), "critic_network": ("value", spec.of_critic)}
    for setting, (method, of_whom) in of_parts.items():
        if getattr(network, setting) is None:
            continue
        builder = Builder(getattr(network, setting))
        name = f"{setting} {builder.__name__}"
        part = _build(builder, of_whom, name)
        methods = ("initial", "apply") if network.has_memory else (method,)
        needs = f"it needs {method}(observation), or with a core initial and apply"
        output_check.require_methods(name, {repr(x): getattr(part, x, None) for x in methods}, needs)
        _check_tree(builder, of_whom, name, part)
        if not network.has_memory:
            _check_outputs(part, of_whom, methods, name)
    if network.has_memory:
        shows = {"action": network.previous_action, "reward": network.previous_reward}
        whole = network.build(spec, jax.random.key(0))
        check_sequences(whole, spec, "the network of actor_network and critic_network", **shows)


def check_torsos(
    space: Space, encoder: object, config: TorsoConfig | None = None, name: str = "encoder"
) -> None:
    """Require that torsos can be built for a space and fit each other.

    Raises:
      ShoalError: the first one cannot; the sentence says why.
    """
    parts = torso_choice.torsos_of(encoder)
    configs = torsos.configs_of(parts, config or TorsoConfig())
    for index, (torso, own_config) in enumerate(zip(parts, configs, strict=True)):
        if not isinstance(torso, Kind):
            check_torso(Builder(torso), space)
        elif index and torso.name != "mlp":
            raise ShoalError(
                f"{name}={torso_choice.name_of(encoder)!r} has {torso.name!r} after another torso, whose features are "
                "a vector; only 'mlp', or a torso of your own, can follow one."
            )
        else:
            torsos.encoder_of(torso, name).check(space, own_config, name)
        if index < len(parts) - 1:
            shapes = jax.eval_shape(
                functools.partial(torsos.build, space, torso, own_config), key=jax.random.key(0)
            )
            space = Box(-math.inf, math.inf, (shapes.num_features,))


class Builder:
    """Settings of a torso or a network in the place of a class that is built as `Class(space, key=key)`."""

    def __init__(self, settings: PyTree):
        given = getattr(settings, "part_class", None) or getattr(settings, "network_class", None)
        named = type(settings) if given is None else torso_choice.imported(given)
        self.settings, self.__name__ = settings, getattr(named, "__name__", repr(named))

    def __call__(self, space: Space, *, key: Array) -> PyTree:
        """Build a torso for a space, or a network for a spec."""
        return self.settings.build(space, key)

    def __getattr__(self, name: str) -> object:
        """Return what the settings declare, such as `has_memory`."""
        return getattr(self.__dict__["settings"], name)


def _traced(name: str, run: Callable[..., PyTree], module: PyTree, *inputs: PyTree) -> PyTree:
    """Return the shapes of what a function of a module gives; one with state is tried in the mode train too.

    Raises:
      ShoalError: its statistics change in the mode eval.
    """

    def at_rest(module: PyTree, *inputs: PyTree) -> PyTree:
        before, outputs = stateful.statistics_of(module), run(module, *inputs)
        after = stateful.statistics_of(module)
        if changed := [key for key, x in after.items() if x is not before.get(key)]:
            raise ShoalError(
                f"{name} changes its statistics {changed[0]!r} in the mode eval, in which it acts and is evaluated; "
                "give no use_running_average in a call, so that the mode decides."
            )
        return outputs

    def in_training(module: PyTree, *inputs: PyTree) -> PyTree:
        statistics = stateful.statistics_of(module)
        return run(stateful.training(module, statistics, jax.random.key(0), jnp.bool_(True)), *inputs)

    if not stateful.has_state(module):
        return jax.eval_shape(run, module, *inputs)
    jax.eval_shape(in_training, module, *inputs)
    return jax.eval_shape(at_rest, module, *inputs)


def _check_outputs(
    network: PyTree, spec: EnvSpec, methods: tuple[str, ...], name: str, kind: str = ""
) -> None:
    """Check the outputs of a network's methods, one without memory, for observations with two leading axes."""
    lead = output_check.leading_axes(spec)

    def run(network: PyTree, observation: PyTree) -> None:
        if "values" in methods:
            values = network.values(observation)
            output_check.check_action_values(network.values, values, lead, spec, kind)
        if "value" in methods:
            output_check.check_value(network.value, network.value(observation), lead)
        if "policy" in methods:
            output = network.policy(observation, None)
            if kind and is_foreign(output):  # with critics of its actions
                right = "one of shoal.ops.distributions, which critics of its actions are averaged over"
                refuse(network.policy, f"{described(output)} of another package", right)
            output_check.check_policy(network.policy, output, lead, spec)

    _traced(name, run, network, output_check.zero_batch(spec.observation_space, lead))


def _check_action_critics(network: PyTree, spec: EnvSpec, kind: str) -> None:
    """Check the outputs of an actor, and those of critics of its actions or of all, as `_check_outputs`."""
    _check_outputs(network.actor, spec.of_actor, ("policy",), "the actor", kind)
    lead = output_check.leading_axes(spec)
    space = spec.action_space
    action = (jnp.zeros((*lead, math.prod(space.shape))),) if isinstance(space, Box) else ()

    def run(network: PyTree, observation: PyTree) -> None:
        method = network.critic.values
        values = method(observation, *action)
        output_check.check_action_values(method, values, lead, spec, kind, of_critics=True)

    jax.eval_shape(run, network, output_check.zero_batch(spec.of_critic.observation_space, lead))


def _attribute(network: PyTree, path: str) -> object:
    """Return an attribute, such as `actor.policy`; None if it is not there."""
    return functools.reduce(lambda part, name: getattr(part, name, None), path.split("."), network)


def _width(part: PyTree, name: str, attribute: str, meaning: str) -> int:
    width = getattr(part, attribute, None)
    if not isinstance(width, int) or isinstance(width, bool) or width < 1:  # True is an int
        raise ShoalError(
            f"{name} has {attribute}={width!r}; it must be a whole number of at least 1, {meaning}."
        )
    return width


def _check_call(part: PyTree, name: str, arguments: str, returned: str) -> None:
    right = f"it needs __call__({arguments}), which returns {returned}."
    if not callable(part):
        raise ShoalError(f"{name} cannot be called; {right}")
    try:
        inspect.signature(part).bind(*arguments.split(", "))
    except TypeError as error:
        raise ShoalError(f"{name} cannot be called with ({arguments}): {error}; {right}") from None


def _build(network_class: Callable[..., PyTree], spec: EnvSpec | Space, name: str) -> PyTree:
    """Build a network for a spec, or a torso for a space."""
    try:
        return stateful.at_rest(linen.build(network_class, spec, jax.random.key(0)))
    except TypeError as error:
        if user_frames(error):  # its constructor takes what it is given, and fails by itself
            raise
        noun, class_name = name.split(" ", 1)
        call = f"{class_name}({'spec' if noun.endswith('network') else 'space'}, key=key)"
        raise ShoalError(f"{name} cannot be built as {call}: {error}.") from error


def _check_tree(
    network_class: Callable[..., PyTree], spec: EnvSpec | Space, name: str, network: PyTree
) -> None:
    """Require a pytree of floats, the same at every construction, whose noise can be drawn ahead."""
    leaves = jax.tree.leaves(network)
    if not leaves and not name.partition(" ")[0].endswith("network"):  # such as a torso that only pools
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
                "arrays of floats (a stored key is not, unless nnx.Rngs holds it)."
            )
    try:
        traced = jax.eval_shape(
            lambda key: stateful.at_rest(linen.build(network_class, spec, key)), jax.random.key(0)
        )
        missing = named_leaves(network).keys() - named_leaves(traced).keys()
    except (
        ValueError
    ) as error:  # of a second check in one process: JAX compares it with an earlier one of the class
        if "metadata fields" not in str(error):
            raise
        missing = {"an attribute"}
    if missing:
        raise ShoalError(
            f"{name} loses {sorted(missing)[0]!r} when it is built under jax.jit, where a bare array "
            "kept as an attribute is not recognised; keep it as nnx.Param(array)."
        )
    if jax.tree.structure(traced) != jax.tree.structure(network):  # type: ignore[operator]
        raise ShoalError(
            f"{name} has another tree structure at each construction, so that everything would "
            "compile again; a lambda or another object made in __init__ and kept as an attribute does this."
        )
    _check_noise(network, name)


def _check_noise(network: PyTree, name: str) -> None:
    """Require that the noise of each part that takes a key for it can be drawn ahead, by a method `sample(key)`."""
    drawn = with_noise(network, jax.random.key(0))
    for path, part in jax.tree_util.tree_flatten_with_path(drawn, is_leaf=is_noisy)[0]:
        if is_noisy(part):
            place = f" in {path_name(path)!r}" if path else ""
            raise ShoalError(
                f"{name} has noisy layers (a {type(part).__name__}{place}) without a method sample(key), which returns "
                "the layer with one draw of its noise, as that of shoal.nets.noisy.NoisyMLP does; its "
                "methods are given no key."
            )
