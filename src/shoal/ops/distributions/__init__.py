"""Distributions over actions and values, as pytrees: batch axes [...] first, the axis of a vector last.

Every distribution has `sample(key)`, `mode()`, `log_prob(x)` [...], `sample_and_log_prob(key)`, and, where
there is a closed form, `entropy()` [...] and `kl(other)` [...]: KL(self || other). The log-probability of a
vector is the sum over its entries, which are independent. An `x` may have more batch axes than the
distribution: they broadcast.

Discrete actions are int32. Parameters are floating numbers; narrower ones are widened to float32 first, so that
all else is float32 (float64 for parameters in float64). Shapes and dtypes that do not fit raise a ValueError or
a TypeError while tracing. `TanhNormal` has a second set of the same methods for the sample before tanh (`sample_raw`,
`mode_raw`, `log_prob_raw`, `from_raw`): remember the raw sample, not the action, and nothing is lost near the
bounds.

Nothing here is NaN or infinite, nor its gradient, for logits of ±1e4, scales from 1e-6 to 1e6, actions at the
bound, or one legal action, but for the log-probability of what cannot happen, -inf, and the KL to a distribution in
which it cannot, inf. A number that is not an action (-1, or n) has the log-probability NaN, and no gradient.
"""

from shoal.ops.distributions.continuous import Beta, Deterministic, Normal, TanhNormal
from shoal.ops.distributions.discrete import (
    Categorical,
    DiscreteValued,
    EpsilonGreedy,
    MultiCategorical,
    masked,
)
from shoal.ops.distributions.foreign import Foreign, adapted, is_foreign
from shoal.ops.distributions.linear_noise import LinearNoise
from shoal.ops.distributions.restricted import Restricted

__all__ = [
    "Beta",
    "Categorical",
    "Deterministic",
    "DiscreteValued",
    "EpsilonGreedy",
    "Foreign",
    "LinearNoise",
    "MultiCategorical",
    "Normal",
    "Restricted",
    "TanhNormal",
    "adapted",
    "is_foreign",
    "masked",
]
