"""One case for each public function of `shoal.ops`: arguments of a usual size, and what to hold it against.

Arguments are found by the names of a function's parameters, which mean the same everywhere in `ops`, so that a
new function needs a line here only if it brings a new name. Time-major arrays are [T, N], functions of one
stream mapped over N; all others have B = T N rows. An element is one transition, row or sample.
"""

import functools
import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal import ops
from shoal.ops import distributions, statistics

STEPS, STREAMS = 128, 1024
ROWS = STEPS * STREAMS
VECTORS = 16_384  # rows of distributions, which have ACTIONS numbers each
FEW_ROWS = 2048  # of distributional losses, which have ACTIONS * ATOMS numbers a row
ACTIONS, ATOMS, FEATURES = 6, 51, 8
SHUFFLED = 32_768
SUPPORT = np.linspace(-10, 10, ATOMS, dtype=np.float32)
FRACTIONS = np.linspace(0.01, 0.99, ATOMS, dtype=np.float32)
OF_STREAMS = ("returns", "vtrace", "off_policy")


class Case(NamedTuple):
    """A function with its arguments, and a plain one that reads and writes as much."""

    name: str  # as `module.function`
    function: Callable
    arguments: tuple
    elements: int
    plain: Callable
    against: str  # what the plain one is, in a word


def public(module: str) -> dict[str, Any]:
    """The functions and classes of a module of `ops` that others may use."""
    found = vars(importlib.import_module(f"shoal.ops.{module}")).items()
    return {
        name: value
        for name, value in found
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__.startswith(f"shoal.ops.{module}")
        and value.__module__ != distributions.Foreign.__module__  # whose numbers another package computes
    }


def names() -> list[str]:
    """All that must have a row: functions, and methods of classes, as `module.function`."""
    found = []
    modules = [module.name for module in pkgutil.iter_modules(ops.__path__)]
    for module in (name for name in modules if not name.startswith("_")):
        for name, value in public(module).items():
            own = [f"{module}.{name}.{method}" for method in methods(value)] if inspect.isclass(value) else []
            found += own if inspect.isclass(value) else [f"{module}.{name}"]
    return found


def methods(cls: type) -> list[str]:
    """The public methods that a class defines."""
    return [
        name for name, value in vars(cls).items() if not name.startswith("_") and inspect.isfunction(value)
    ]


def cases(scale: int = 1) -> Iterator[Case]:
    """The cases of all public functions; sizes are divided by `scale`."""
    pool = Pool(scale)
    for name in names():
        module, rest = name.split(".", 1)
        if module in OF_STREAMS:
            yield stream_case(name, pool)
        elif "." in rest:
            yield method_case(name, pool)
        else:
            yield row_case(name, pool)
    yield sorted_case(pool)


class Pool:
    """Arguments by the names of parameters."""

    def __init__(self, scale: int):
        self.random = np.random.default_rng(0)
        self.steps, self.streams, self.rows = STEPS, STREAMS // scale, ROWS // scale
        self.vectors, self.few_rows, self.shuffled = VECTORS // scale, FEW_ROWS // scale, SHUFFLED // scale

    def normal(self, *shape: int) -> jax.Array:
        """Standard normal numbers."""
        return jnp.asarray(self.random.normal(size=shape), jnp.float32)

    def positive(self, *shape: int) -> jax.Array:
        """Numbers in (0, 1)."""
        return jnp.asarray(self.random.uniform(0.01, 0.99, size=shape), jnp.float32)

    def action(self, *shape: int) -> jax.Array:
        """Indices of actions."""
        return jnp.asarray(self.random.integers(ACTIONS, size=shape), jnp.int32)

    def simplex(self, *shape: int) -> jax.Array:
        """Probabilities over the last axis."""
        raw = self.random.gamma(1.0, size=shape)
        return jnp.asarray(raw / raw.sum(axis=-1, keepdims=True), jnp.float32)

    def rarely(self, *shape: int) -> jax.Array:
        """Booleans of which one in fifty is true."""
        return jnp.asarray(self.random.uniform(size=shape) < 0.02)

    def of_time(self, name: str, over_actions: bool) -> Any:
        """An argument of a function of streams: [T, N], [T, N, A], or a number."""
        shape = (self.steps, self.streams)
        numbers = {"lambda_": 0.95, "n": 5}
        if name in numbers:
            return numbers[name]
        makers: dict[str, Callable] = {
            "q_t": self.over(self.normal, ACTIONS) if over_actions else self.normal,
            "pi_t": self.over(self.simplex, ACTIONS),
            "a_t": self.action,
            "last_t": self.rarely,
            "discount_t": self.positive,
            "c_t": self.positive,
            "mu_t": self.positive,
        }
        return makers.get(name, self.normal)(*shape)

    def of_rows(self, name: str, rows: int) -> Any:
        """An argument of a function of rows: [B], [B, A], [B, A, m], or a number.

        Raises:
          KeyError: no argument of that name is known.
        """
        numbers = {"clip_coef": 0.2, "n": rows, "sigma": 0.5}
        if name in numbers:
            return numbers[name]
        makers: dict[str, Callable] = {
            **dict.fromkeys(("q_tm1", "q_t", "selector_t", "policy_q_tm1"), self.over(self.normal, ACTIONS)),
            **dict.fromkeys(("quantiles_tm1", "quantiles_t"), self.over(self.normal, ACTIONS, ATOMS)),
            **dict.fromkeys(("logits_tm1", "logits_t"), self.over(self.normal, ACTIONS, ATOMS)),
            **dict.fromkeys(("quantiles", "samples", "logits"), self.over(self.normal, ATOMS)),
            **dict.fromkeys(("kl", "kl_coef", "w"), self.positive),
            **dict.fromkeys(REAL, self.normal),
            "a_tm1": self.action,
            "discount_t": self.positive,
            "fractions": lambda _: FRACTIONS,
            "probabilities": self.over(self.simplex, ATOMS),
            **dict.fromkeys(("atoms", "atoms_tm1", "atoms_t", "onto"), lambda _: SUPPORT),
            **self.moments(),
        }
        return makers[name](rows)

    def moments(self) -> dict[str, Callable]:
        """Arguments of the running statistics: a state of FEATURES numbers with batches, and one of B numbers."""

        def state(size: int) -> statistics.RunningMoments:
            mean, variance, zero = self.normal(size), self.positive(size), np.zeros(size, np.float32)
            residual = (np.float32(0), zero, zero)
            return jax.tree.map(
                jnp.asarray, statistics.RunningMoments(np.float32(1000), mean, variance, residual)
            )

        return {
            "moments": lambda _: state(FEATURES),
            "batch": self.over(self.normal, FEATURES),
            "example": lambda rows: jnp.asarray(np.zeros(rows, np.float32)),
            "a": state,
            "b": state,
        }

    @staticmethod
    def over(maker: Callable, *axes: int) -> Callable:
        """Makes arrays with further axes."""
        return lambda *shape: maker(*shape, *axes)

    def distribution(self, name: str) -> Any:
        """A distribution of a batch of vectors."""
        rows, vector = self.vectors, (self.vectors, ACTIONS)
        makers = {
            "Categorical": lambda: distributions.Categorical(self.normal(*vector)),
            "MultiCategorical": lambda: distributions.MultiCategorical(
                (self.normal(rows, 3), self.normal(rows, 4))
            ),
            "EpsilonGreedy": lambda: distributions.EpsilonGreedy(self.normal(*vector), 0.1),
            "DiscreteValued": lambda: distributions.DiscreteValued(
                self.normal(self.few_rows, ATOMS), SUPPORT
            ),
            "Normal": lambda: distributions.Normal(self.normal(*vector), self.positive(*vector)),
            "Restricted": lambda: distributions.Restricted(
                distributions.Normal(self.normal(*vector), self.positive(*vector)), self.normal(*vector) > 0
            ),
            "TanhNormal": lambda: distributions.TanhNormal(self.normal(*vector), self.positive(*vector)),
            "Beta": lambda: distributions.Beta(1 + self.positive(*vector), 1 + self.positive(*vector)),
            "Deterministic": lambda: distributions.Deterministic(self.normal(*vector)),
            "LinearNoise": lambda: distributions.LinearNoise(
                distributions.Normal(self.normal(*vector), self.positive(*vector)),
                self.normal(rows, 4, vector[-1]),
            ),
        }
        return makers[name]()


REAL = (
    *(
        "log_prob",
        "advantage",
        "log_ratio",
        "value",
        "target",
        "prediction",
        "old_value",
    ),
    *("v_tm1", "r_t", "v_t", "x"),
)


def required(function: Callable) -> list[str]:
    """The parameters that have no default."""
    parameters = inspect.signature(function).parameters.items()
    return [name for name, parameter in parameters if parameter.default is inspect.Parameter.empty]


def stream_case(name: str, pool: Pool) -> Case:
    """A function of one stream, mapped over N, against a recursion that only discounts and adds."""
    function = named(name)
    parameters = required(function)
    over_actions = "a_t" in parameters or name.endswith("peng")
    arguments = {parameter: pool.of_time(parameter, over_actions) for parameter in parameters}
    fixed = {key: value for key, value in arguments.items() if not isinstance(value, jax.Array)}
    arrays = {key: value for key, value in arguments.items() if key not in fixed}

    def mapped(*values: jax.Array) -> Any:
        return jax.vmap(
            lambda *stream: function(**dict(zip(arrays, stream, strict=True)), **fixed), in_axes=1, out_axes=1
        )(*values)

    inputs = tuple(arrays.values())
    shapes = jax.eval_shape(mapped, *inputs)
    plain = functools.partial(plain_scan, shapes)
    return Case(name, mapped, inputs, pool.steps * pool.streams, plain, "scan")


def row_case(name: str, pool: Pool) -> Case:
    """A function of rows, against one pass that adds up all arguments."""
    module = name.split(".", maxsplit=1)[0]
    if module == "permutations":
        return permutation_case(name, pool)
    function = named(name)
    parameters = required(function)
    if name == "distributions.masked":
        rows = pool.vectors
        arguments = {
            "distribution": pool.distribution("Categorical"),
            "mask": ~pool.rarely(rows, ACTIONS),
        }
    else:
        rows = pool.few_rows if module == "distributional" else pool.rows
        arguments = {parameter: pool.of_rows(parameter, rows) for parameter in parameters}
        arguments |= special(name, pool, rows)
    fixed = {key: value for key, value in arguments.items() if isinstance(value, int | float)}
    arrays = {key: value for key, value in arguments.items() if key not in fixed}

    def called(*values: Any) -> Any:
        return function(**dict(zip(arrays, values, strict=True)), **fixed)

    inputs = tuple(arrays.values())
    plain = functools.partial(plain_pass, jax.eval_shape(called, *inputs), (rows,))
    return Case(name, called, inputs, rows, plain, "pass")


def special(name: str, pool: Pool, rows: int) -> dict[str, Any]:
    """Arguments whose names mean something else in one function."""
    if name == "statistics.standard_deviation":
        return {"moments": pool.moments()["a"](rows)}
    if name in ("statistics.normalise", "statistics.denormalise"):
        return {"x": pool.normal(rows, FEATURES)}
    if name == "distributional.categorical_td_learning":
        return {"logits_tm1": pool.normal(rows, ATOMS), "logits_t": pool.normal(rows, ATOMS)}
    return {"target": 0.01} if name == "policy_losses.adapt_kl_coef" else {}


def permutation_case(name: str, pool: Pool) -> Case:
    """All of `permutation`, or as many indices through `permute`, against one pass over them."""
    key, index = jax.random.key(0), jnp.arange(pool.shuffled, dtype=jnp.int32)
    plain = functools.partial(plain_pass, index, index.shape)
    if name.endswith("permute"):
        function = functools.partial(named(name), n=pool.shuffled)
        return Case(name, function, (key, index), pool.shuffled, plain, "pass")

    def whole(key: jax.Array, index: jax.Array) -> jax.Array:
        return named(name)(key, len(index))

    return Case(name, whole, (key, index), pool.shuffled, plain, "pass")


def sorted_case(pool: Pool) -> Case:
    """`permutation` against JAX's own, which sorts."""
    case = permutation_case("permutations.permutation", pool)
    return case._replace(
        plain=lambda key, index: jax.random.permutation(key, len(index)), against="jax.random.permutation"
    )


def method_case(name: str, pool: Pool) -> Case:
    """A distribution's method, against one pass over its parameters and the sample."""
    module, cls, method = name.split(".")
    distribution = pool.distribution(cls)
    key = jax.random.key(0)
    parameters = required(getattr(named(f"{module}.{cls}"), method))[1:]
    given = {
        "key": lambda: key,
        "x": lambda: jax.jit(lambda d: d.sample(key))(distribution),
        "raw": lambda: jax.tree.leaves(distribution)[0],
        "other": lambda: pool.distribution(cls),
        "noise": lambda: jax.random.normal(key, distribution.weights.shape),
    }
    inputs = (distribution, *(given[parameter]() for parameter in parameters))

    def called(distribution: Any, *values: Any) -> Any:
        return getattr(distribution, method)(*values)

    rows = jax.tree.leaves(distribution)[0].shape[0]
    plain = functools.partial(plain_pass, jax.eval_shape(called, *inputs), (rows,))
    return Case(name, called, inputs, rows, plain, "pass")


def named(name: str) -> Any:
    """What `module.function` names."""
    module, short = name.split(".")
    return getattr(importlib.import_module(f"shoal.ops.{module}"), short)


def added_up(arguments: Any, shape: tuple[int, ...], rows: tuple[int, ...]) -> jax.Array:
    """The sum of all arrays that have the axes `rows`, in a shape that begins with these.

    An array of fewer axes is spread over the others, and one of other axes is summed over its own.
    """
    total = jnp.zeros(shape)
    for x in jax.tree.leaves(arguments):
        if jnp.shape(x)[: len(rows)] != rows or jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            continue
        own = () if x.shape == shape[: x.ndim] else tuple(range(len(rows), x.ndim))
        summed = jnp.sum(x.astype(jnp.float32), axis=own)
        total += summed.reshape(summed.shape + (1,) * (len(shape) - summed.ndim))
    return total


def plain_pass(shapes: Any, rows: tuple[int, ...], *arguments: Any) -> Any:
    """Reads all arguments once, adds them up and writes a result of the same shapes, or the sum of all."""

    def one(shape: Any) -> jax.Array:
        if shape.shape[: len(rows)] == rows:  # halved, since a sum of one argument would be no work at all
            return (0.5 * added_up(arguments, shape.shape, rows)).astype(shape.dtype)
        whole = jnp.sum(added_up(arguments, rows, rows))
        return jnp.broadcast_to(whole, shape.shape).astype(shape.dtype)

    return jax.tree.map(one, shapes)


def plain_scan(shapes: Any, *arguments: jax.Array) -> Any:
    """Adds all arguments up within a step and discounts from step to step, backwards: the least a return can do."""

    def step(carry: jax.Array, x: tuple[jax.Array, ...]) -> tuple[jax.Array, jax.Array]:
        carry = 0.9 * carry + added_up(x, carry.shape, carry.shape)
        return carry, carry

    start = jnp.zeros(arguments[0].shape[1])
    _, total = jax.lax.scan(step, start, arguments, reverse=True)
    return jax.tree.map(lambda shape: total.astype(shape.dtype), shapes)
