"""Modules of `flax.linen` as torsos and networks.

A linen module has no arrays. `module.init(key, x)["params"]` are held here as `nnx.Param`, and each method calls
`module.apply`; `key` is the one that `Class(spec, key=key)` would be given, and `x` a batch of one observation of
zeros, so that the first parameters are linen's own. The call is given a batch of observations, [B, ...], and returns

    features [B, n]                      of a torso
    policy, value [B]                    of a network; the policy is a distribution, or logits of discrete actions
    values of the n actions [B, n]       of a network of action values
    policy, or value [B]                 of an actor, or a critic, apart

It may have a parameter `action_mask`. (`nnx.bridge.ToNNX` keeps keys and counts beside the parameters, and draws
others.)
"""

import dataclasses
import functools
import inspect
import math
import types
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import errors, linen, nnx

from shoal.base.errors import ShoalError
from shoal.base.user_errors import describe_error, user_frames
from shoal.nets.heads import head_for
from shoal.nets.output_check import zero_batch
from shoal.ops.distributions import Categorical, MultiCategorical, masked
from shoal.types import Array, EnvSpec, PyTree
from shoal.types.contract import described, refuse
from shoal.types.spaces import Box, Space

_STATE = "Shoal holds the parameters of a linen module alone: write it with flax.nnx"
_MEMORY = "choose core='gru' (or 'lstm') behind an encoder without memory, or write sequence modules (docs/memory.md)"
_MODES = {"train", "training", "is_training", "deterministic", "use_running_average"}


def is_linen(value: object) -> bool:
    """Report whether a value is a class of modules of flax.linen."""
    return isinstance(value, type) and issubclass(value, linen.Module)


def require_class(name: str, given: object, argument: str) -> None:
    """Require a class of linen modules that is built without arguments.

    Args:
      name: the setting and what was given, for the sentence.
      argument: what a function is given that makes such a module.
    Raises:
      ShoalError: it is a module, which no file can name, or a class that needs arguments.
    """
    kind: Any = given if isinstance(given, type) else type(given)
    # Both are the same only where there is neither.
    missing = [x.name for x in dataclasses.fields(kind) if x.default is x.default_factory]
    if missing or kind is not given:
        what = f"that needs {' and '.join(missing)}" if kind is given else "itself and not a class"
        values = ", ".join(f"{x}=..." for x in missing)
        raise ShoalError(
            f"{name} is a module of flax.linen {what}; give a function that makes it, such as def make({argument}): "
            f"return {kind.__name__}({values})."
        )


def build(maker: Callable[..., PyTree], of_whom: Any, key: Array, *, is_part: bool = False) -> PyTree:
    """Build what a class, or a function, of a user's own makes; a linen module is held with its parameters.

    Args:
      maker: a linen class, a function `(of_whom) -> module`, or what is called as `maker(of_whom, key=key)`.
      of_whom: the spec of a network, of an actor or of a critic, or the space of a torso.
      is_part: whether of a spec an actor or a critic is made.
    """
    if is_linen(maker) or is_linen(getattr(maker, "func", None)):  # of a functools.partial
        made = maker()
    elif _takes_key(maker):
        made = maker(of_whom, key=key)
    else:
        made = maker(of_whom)
        if not isinstance(made, linen.Module):
            refuse(
                maker, described(made), "a module of flax.linen, or take `key=` too and return an nnx.Module"
            )
    if not isinstance(made, linen.Module):
        return made
    is_torso = not isinstance(of_whom, EnvSpec)
    return LinenTorso(made, of_whom, key) if is_torso else LinenNetwork(made, of_whom, key, is_part=is_part)


def _takes_key(maker: Callable) -> bool:
    if isinstance(maker, type) or not callable(maker):  # what cannot be called fails as such
        return True
    parameters = inspect.signature(maker).parameters.values()
    return any(x.name == "key" or x.kind is x.VAR_KEYWORD for x in parameters)


@dataclasses.dataclass(eq=False)
class Definition:
    """A linen module as a part of a tree's structure: its fields may be lists and arrays, which have no hash."""

    module: linen.Module

    def __hash__(self) -> int:
        return hash(type(self.module))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Definition) and _are_equal(self.module, other.module)


def _are_equal(one: Any, other: Any) -> bool:
    if one is other:
        return True
    parts = _parts(one)
    if parts is None or type(one) is not type(other):
        return np.array_equal(one, other)
    leaves, structure = jax.tree.flatten(parts)
    others, other_structure = jax.tree.flatten(_parts(other))
    is_alike: bool = structure == other_structure  # type: ignore[operator, assignment]
    return is_alike and all(map(_are_equal, leaves, others))


def _parts(x: Any) -> Any:
    """Return what makes a module equal to another, or a function, such as an initialiser; None of other things."""
    if isinstance(x, linen.Module):
        return {
            field.name: getattr(x, field.name) for field in dataclasses.fields(x) if field.name != "parent"
        }
    if isinstance(x, functools.partial):
        return x.func, x.args, x.keywords
    if isinstance(x, types.FunctionType):
        enclosed = [cell.cell_contents for cell in x.__closure__ or ()]
        return x.__code__, x.__defaults__, x.__kwdefaults__, enclosed
    return None


class LinenModule(nnx.Module):
    """A linen module and its parameters, called with observations with any leading axes.

    Raises:
      ShoalError: it has a memory, a mode, or arrays or keys beside its parameters.
    """

    def __init__(self, module: linen.Module, space: Space, key: Array):
        self.definition, self.name = Definition(module), f"the linen module {type(module).__name__}"
        self.num_axes = jax.tree.leaves(zero_batch(space, ()))[0].ndim  # of one observation's first entry
        if not callable(module):
            raise ShoalError(f"{self.name} cannot be called; it needs __call__(observation).")
        asked = inspect.signature(module.__call__)
        self.takes_mask = "action_mask" in asked.parameters
        masks: dict[str, Any] = {"action_mask": None} if self.takes_mask else {}
        try:
            asked.bind(None, **masks)
        except TypeError as error:
            why = _STATE if any(f"'{x}'" in str(error) for x in _MODES) else _MEMORY
            names = ", ".join(asked.parameters)
            raise ShoalError(f"{self.name} takes ({names}), not an observation alone; {why}.") from None
        first = zero_batch(space, (1,))
        try:
            with linen.intercept_methods(self._refuse_state):
                variables = module.init(key, first, **masks)
        except Exception as error:
            if isinstance(error, ShoalError) or user_frames(error):
                raise
            # Of flax's own modules alone, as `linen.Sequential`.
            why = f"; {_STATE}" if any(x in str(error) for x in _MODES) else ""
            shown = described(first)
            raise ShoalError(
                f"{self.name} fails with a batch {shown}: {describe_error(error)}{why}."
            ) from error
        if collections := sorted(variables.keys() - {"params"}):
            raise ShoalError(f"{self.name} keeps {', '.join(collections)} beside its parameters; {_STATE}.")
        self.params = nnx.data(jax.tree.map(nnx.Param, linen.meta.unbox(variables.get("params", {}))))

    @property
    def users_function(self) -> Callable:
        """The function whose results the methods return, which sentences name."""
        return type(self.definition.module).__call__

    def compute(self, observation: PyTree, action_mask: Array | None = None) -> PyTree:
        """Return the module's output for observations with leading axes [...], which its arrays have too."""
        first = jax.tree.leaves(observation)[0]
        lead = first.shape[: first.ndim - self.num_axes]
        inputs = (observation, {"action_mask": action_mask} if self.takes_mask else {})
        if len(lead) == 1:
            return self._of_batch(*inputs)
        size = math.prod(lead)
        flat = jax.tree.map(lambda x: x.reshape(size, *x.shape[len(lead) :]), inputs)
        # What does not change with the batch, such as a deviation [n] of all its rows, has none of its axes.
        wider = jax.tree.map(lambda x: jax.ShapeDtypeStruct((size + 1, *x.shape[1:]), x.dtype), flat)
        others = jax.eval_shape(lambda *given: jax.tree.leaves(self._of_batch(*given)), *wider)
        leaves, structure = jax.tree.flatten(self._of_batch(*flat))

        def unflatten(x: Array, y: Array) -> Array:
            return x if jnp.shape(x) == y.shape else x.reshape(*lead, *x.shape[1:])

        return jax.tree.unflatten(structure, map(unflatten, leaves, others))

    def _refuse_state(self, call: Callable, args: tuple, kwargs: dict, context: Any) -> Any:
        """Refuse modules with memory or random numbers among those that are called (an interceptor of methods)."""
        module = context.module
        if isinstance(module, linen.RNN | linen.RNNCellBase):
            raise ShoalError(
                f"{self.name} is recurrent ({type(module).__name__}) and keeps no memory here; {_MEMORY}."
            )
        if isinstance(module, linen.Dropout) and module.rate > 0:
            raise ShoalError(f"{self.name} has Dropout, which draws random numbers in training; {_STATE}.")
        return call(*args, **kwargs)

    def _of_batch(self, observation: PyTree, masks: dict[str, Any]) -> PyTree:
        params = jax.tree.map(lambda x: x[...], self.params, is_leaf=lambda x: isinstance(x, nnx.Param))
        try:
            return self.definition.module.apply({"params": params}, observation, **masks)
        except errors.InvalidRngError as error:
            raise ShoalError(f"{self.name} draws random numbers in its call; {_STATE}.") from error


class LinenTorso(LinenModule):
    """A torso of a linen module, whose call gives features [B, num_features]."""

    def __init__(self, module: linen.Module, space: Space, key: Array):
        super().__init__(module, space, key)
        features = jax.eval_shape(self.compute, zero_batch(space, (1,)))
        if getattr(features, "ndim", 0) != 2:
            right = "a torso gives features, an array [B, num_features], and a head is no linen module"
            raise ShoalError(f"{self.name} gives {described(features)} for one observation; {right}.")
        self.num_features = features.shape[-1]

    def __call__(self, observation: PyTree) -> Array:
        """Map observations with leading axes [...] to features [..., num_features]."""
        return self.compute(observation)


class LinenNetwork(LinenModule):
    """A network of a linen module, whose call gives a policy and a value, or values of actions.

    Args:
      is_part: whether it is an actor or a critic, whose call gives one of both.
    """

    def __init__(self, module: linen.Module, spec: EnvSpec, key: Array, *, is_part: bool):
        if spec.critic_only or spec.actor_only or spec.num_agents > 1:
            why = "is one call for actor and critic, which are shown different things here, or all agents"
            raise ShoalError(
                f"the linen module {type(module).__name__} {why}; choose linen modules as encoder."
            )
        self.space, self.is_part = spec.action_space, is_part
        super().__init__(module, spec.observation_space, key)

    def policy(self, observation: PyTree, action_mask: Array | None = None) -> PyTree:
        """Return a distribution with batch axes [...]; logits are masked, and distributions that Shoal knows."""
        return self._distribution(self._both(observation, action_mask)[0], action_mask)

    def value(self, observation: PyTree) -> PyTree:
        """Return values [...]."""
        return self._both(observation)[1]

    def policy_and_value(self, observation: PyTree, action_mask: Array | None = None) -> tuple:
        """Return both, of one call."""
        policy, value = self._both(observation, action_mask)
        return self._distribution(policy, action_mask), value

    def values(self, observation: PyTree) -> Array:
        """Return the values of actions, [..., n]."""
        output = self.compute(observation)
        if isinstance(output, jax.Array):
            return output
        raise ShoalError(f"{self.name} gives {described(output)}; it must give the values of actions [B, n].")

    def _both(self, observation: PyTree, action_mask: Array | None = None) -> tuple:
        output = self.compute(observation, action_mask)
        # A distribution may be a named tuple itself.
        if self.is_part or (type(output) in (tuple, list) and len(output) == 2):
            return (output, output) if self.is_part else tuple(output)
        raise ShoalError(f"{self.name} gives {described(output)}; it must give a pair, policy and value.")

    def _distribution(self, policy: PyTree, mask: Array | None) -> PyTree:
        if isinstance(policy, jax.Array) and not isinstance(self.space, Box):
            return head_for(self.space)(policy, mask)  # type: ignore[call-arg, arg-type]
        if not isinstance(policy, jax.Array) and (mask is None or self.takes_mask):
            return policy
        if isinstance(policy, Categorical | MultiCategorical):
            return masked(policy, mask)  # type: ignore[type-var, arg-type]
        right = "a policy must be a distribution, of discrete actions perhaps logits"
        if mask is not None:
            right = "some are illegal, so its call must take action_mask and apply it, or give logits"
        raise ShoalError(f"{self.name} gives {described(policy)} for actions in {self.space}; {right}.")
