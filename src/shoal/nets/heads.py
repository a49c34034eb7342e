"""Heads: modules from a vector of numbers to a distribution over actions.

A head has the number of its inputs (`num_inputs`), which the MLP before it has as outputs, and is
called with them and an optional mask of legal actions. Its distributions draw *policy actions*:
integers for discrete spaces; for a Box a flat vector of `size` numbers, unbounded from a Normal and
in [-1, 1] from a tanh-Normal or a Beta, which the algorithm clips or rescales to the environment's bounds.
"""

import math
from typing import TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from shoal.base.errors import ShoalError, nearest
from shoal.ops.distributions import (
    Beta,
    Categorical,
    Deterministic,
    LinearNoise,
    MultiCategorical,
    Normal,
    Restricted,
    TanhNormal,
    masked,
)
from shoal.types.spaces import Box, Discrete, MultiDiscrete, Space

Array = jax.Array
_Choices = TypeVar("_Choices", Categorical, MultiCategorical)
_Continuous = TypeVar("_Continuous", Normal, TanhNormal, Beta, Deterministic)


class CategoricalHead(nnx.Module):
    """A distribution over n actions; the inputs are logits, and illegal actions have probability 0."""

    def __init__(self, n: int):
        self.num_inputs = n

    def __call__(self, x: Array, action_mask: Array | None = None) -> Categorical:
        """Make a Categorical with batch axes [...] from logits [..., n] and a mask broadcastable to them."""
        return _apply_mask(Categorical(x), action_mask)


class MultiCategoricalHead(nnx.Module):
    """Several independent choices; the inputs are the concatenated logits of the parts."""

    def __init__(self, nvec: tuple[int, ...]):
        self.nvec = tuple(nvec)
        self.num_inputs = sum(nvec)

    def __call__(self, x: Array, action_mask: Array | None = None) -> MultiCategorical:
        """Make a MultiCategorical of [..., parts] from logits [..., sum(nvec)] and a mask of the same layout."""
        ends = np.cumsum(self.nvec)[:-1].tolist()
        return _apply_mask(MultiCategorical(tuple(jnp.split(x, ends, axis=-1))), action_mask)


class NormalHead(nnx.Module):
    """A diagonal Normal. Its standard deviation is a free parameter, or depends on the state.

    Free (the default, as in CleanRL): `minimum_std + exp(log_std)`, one `log_std` for each number.
    State-dependent: `minimum_std + softplus(x + c)` of the second half of the inputs, with c such that it
    is `initial_std` at x = 0; softplus is used because an exponential overflows at extreme observations.

    Args:
      minimum_std: lower bound of the standard deviation, 0 or more. A Python number.
    Raises:
      ShoalError: `initial_std` is not above `minimum_std`.
    """

    def __init__(
        self,
        size: int,
        *,
        state_dependent_std: bool = False,
        initial_std: float = 1.0,
        minimum_std: float = 1e-3,
    ):
        check_std(initial_std, minimum_std)
        self.size = size
        self.minimum_std = minimum_std
        self.num_inputs = 2 * size if state_dependent_std else size
        self.state_dependent_std = state_dependent_std
        if state_dependent_std:
            self.std_shift = math.log(math.expm1(initial_std - minimum_std))
        else:
            # Less the minimum, which is added to it: so the deviation begins at initial_std.
            self.log_std = nnx.data(jnp.full(size, jnp.log(initial_std - minimum_std), jnp.float32))

    def loc_and_scale(self, x: Array) -> tuple[Array, Array]:
        """Compute mean and standard deviation, each [..., size], from [..., num_inputs]."""
        loc = x[..., : self.size]
        if self.state_dependent_std:
            scale = jax.nn.softplus(x[..., self.size :] + self.std_shift)
        else:
            scale = jnp.broadcast_to(jnp.exp(self.log_std), loc.shape)
        return loc, self.minimum_std + scale

    def __call__(self, x: Array, action_mask: Array | None = None) -> Normal | Restricted:
        """Make a Normal over [..., size] from [..., num_inputs]; with a mask, over the entries where it is true."""
        return _restrict(Normal(*self.loc_and_scale(x)), action_mask)


class TanhNormalHead(NormalHead):
    """A diagonal Normal squashed into [-1, 1] by tanh; its arguments are `NormalHead`'s."""

    def __call__(  # type: ignore[override]
        self, x: Array, action_mask: Array | None = None
    ) -> TanhNormal | Restricted:
        """Make a TanhNormal on [-1, 1] in the same way."""
        return _restrict(TanhNormal(*self.loc_and_scale(x)), action_mask)


class BetaHead(nnx.Module):
    """Independent Betas on [-1, 1], both parameters above 1, so that each has one peak inside.

    Source: Chou et al. 2017, "Improving Stochastic Policy Gradients in _Continuous Control with Deep
    Reinforcement Learning using the Beta Distribution".
    """

    def __init__(self, size: int):
        self.size = size
        self.num_inputs = 2 * size

    def __call__(self, x: Array, action_mask: Array | None = None) -> Beta | Restricted:
        """Make a Beta on [-1, 1], over [..., size], from [..., 2 size] of any floating dtype, in the same way."""
        x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
        # Below -16 softplus is rounded to 0: the parameter is then the least number above 1.
        parameters = jnp.maximum(1.0 + jax.nn.softplus(x), 1.0 + jnp.finfo(x.dtype).eps)
        beta = Beta(parameters[..., : self.size], parameters[..., self.size :], low=-1.0, high=1.0)
        return _restrict(beta, action_mask)


class GSDEHead(nnx.Module):
    """A Normal whose noise is a random linear function of the policy's last hidden features.

    With a noise matrix E of independent entries `E_ij ~ N(0, exp(log_std_ij)^2)` an action is
    `loc + features @ E`. If E is drawn for each step, this is a Normal of standard deviation
    `sqrt(features^2 @ exp(log_std)^2)`, which the distribution of this head is. The same E for several steps makes
    the noise smooth in time (`LinearNoise.with_noise`). No gradient flows from the noise into the features.

    Args:
      initial_std: standard deviation before training if the features have mean square 1.
      minimum_std: its square is added to the variance, as that of a feature which is always this; a Python number, at
        least 1e-6, so that the variance is positive if all features are zero.
    Source: Raffin et al. 2021, "Smooth Exploration for Robotic Reinforcement Learning".
    """

    def __init__(self, size: int, num_features: int, *, initial_std: float = 1.0, minimum_std: float = 1e-3):
        check_std(initial_std, minimum_std)
        self.num_inputs = size
        self.minimum_std = max(minimum_std, 1e-6)
        log_std = jnp.log(initial_std) - 0.5 * math.log(num_features)
        self.log_std = nnx.data(jnp.full((num_features, size), log_std, jnp.float32))

    @property
    def noise_shape(self) -> tuple[int, int]:
        """The axes of a noise matrix of one action, [num_features + 1, size]."""
        rows, size = self.log_std.shape
        return rows + 1, size

    def __call__(self, x: Array, features: Array, action_mask: Array | None = None) -> LinearNoise:
        """Make a Normal over [..., size] from means [..., size] and features [..., num_features]."""
        features = jax.lax.stop_gradient(features)
        variance = features**2 @ jnp.exp(2.0 * self.log_std)
        normal = Normal(x, jnp.sqrt(variance + self.minimum_std**2))
        constant = jnp.full_like(x, self.minimum_std)[..., None, :]
        weights = jnp.concatenate([features[..., None] * jnp.exp(self.log_std), constant], axis=-2)
        if action_mask is not None:
            weights = jnp.where(action_mask[..., None, :], weights, 0.0)
        return LinearNoise(_restrict(normal, action_mask), weights)


class DeterministicHead(nnx.Module):
    """A single action with probability 1, for policies that are trained by a critic's gradient.

    Args:
      bounded: squash the inputs into [-1, 1] by tanh; otherwise the action is the inputs.
    Source: Silver et al. 2014, "Deterministic Policy Gradient Algorithms"; the tanh as in Lillicrap et al.
    2016, "_Continuous Control with Deep Reinforcement Learning".
    """

    def __init__(self, size: int, *, bounded: bool = True):
        self.num_inputs = size
        self.bounded = bounded

    def __call__(self, x: Array, action_mask: Array | None = None) -> Deterministic | Restricted:
        """Make a Deterministic over [..., size] from [..., size]."""
        return _restrict(Deterministic(jnp.tanh(x) if self.bounded else x), action_mask)


_BOUNDED = ("tanh_normal", "beta", "deterministic")  # kinds of actions in [-1, 1]
PolicyHead = CategoricalHead | MultiCategoricalHead | NormalHead | BetaHead | GSDEHead | DeterministicHead


def head_for(
    action_space: Space,
    kind: str = "auto",
    *,
    state_dependent_std: bool = False,
    initial_std: float = 1.0,
    minimum_std: float = 1e-3,
    num_features: int = 0,
) -> PolicyHead:
    """Make the head for an action space.

    Args:
      action_space: Discrete and MultiDiscrete take "categorical", Box the others.
      kind: "auto" is "categorical" or "normal", depending on the space.
    Returns:
      a head (a `GSDEHead` takes the features too).
    Raises:
      ShoalError: a kind that does not fit the space, or a space for which there is no head.
    """
    fitting = _fitting_kinds(action_space)
    if kind not in fitting:
        needs = f"; {', '.join(_BOUNDED)} need finite bounds" if kind in _BOUNDED else ""
        raise ShoalError(
            f"distribution={kind!r} does not fit the action space {action_space}: it must be one of "
            f"{', '.join(fitting)}{needs}{nearest(kind, fitting)}."
        )
    if isinstance(action_space, Discrete):
        return CategoricalHead(action_space.n)
    if isinstance(action_space, MultiDiscrete):
        return MultiCategoricalHead(action_space.nvec)
    size = math.prod(action_space.shape)  # type: ignore[union-attr]
    if kind in ("beta", "deterministic"):
        return BetaHead(size) if kind == "beta" else DeterministicHead(size)
    if kind == "gsde":
        return GSDEHead(size, num_features, initial_std=initial_std, minimum_std=minimum_std)
    head = TanhNormalHead if kind == "tanh_normal" else NormalHead
    return head(
        size, state_dependent_std=state_dependent_std, initial_std=initial_std, minimum_std=minimum_std
    )


def _fitting_kinds(action_space: Space) -> tuple[str, ...]:
    """Return the kinds of distributions for an action space."""
    if isinstance(action_space, Discrete | MultiDiscrete):
        return ("auto", "categorical")
    if not isinstance(action_space, Box) or np.issubdtype(action_space.dtype, np.integer):
        raise ShoalError(
            f"there is no head for the action space {action_space!r}; "
            "it must be Discrete, MultiDiscrete or a Box of floats."
        )
    return ("auto", "normal", "gsde", *(_BOUNDED if action_space.bounded else ()))


def _apply_mask(distribution: _Choices, action_mask: Array | None) -> _Choices:
    return distribution if action_mask is None else masked(distribution, action_mask)


def _restrict(distribution: _Continuous, action_mask: Array | None) -> _Continuous | Restricted:
    """Restrict a distribution over the numbers of a Box to those that an agent's role has."""
    return distribution if action_mask is None else Restricted(distribution, action_mask)


def check_std(initial_std: float, minimum_std: float) -> None:
    """Raise ShoalError unless a first standard deviation is above its lower bound."""
    # A traced initial_std (it may be data of a config) is checked by the validation of the config.
    if not isinstance(initial_std, jax.core.Tracer) and not initial_std > minimum_std:
        raise ShoalError(f"initial_std={initial_std} must be above minimum_std={minimum_std}.")
