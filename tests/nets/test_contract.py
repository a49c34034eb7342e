"""What holds for every torso and every head: first all of them, each with inputs for it, then the suite."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from shoal.nets.cnn import CNN, GridCNN
from shoal.nets.composition import Branches, Chain, is_noisy
from shoal.nets.ensembles import Ensemble
from shoal.nets.headed import Headed, PolicyAndValue
from shoal.nets.heads import (
    BetaHead,
    CategoricalHead,
    DeterministicHead,
    GSDEHead,
    MultiCategoricalHead,
    NormalHead,
    TanhNormalHead,
)
from shoal.nets.inputs import ArrayInput, DictInput, EmbeddingInput, Inputs, OneHotInput
from shoal.nets.mlp import MLP
from shoal.nets.noisy import NoisyMLP
from shoal.nets.q_heads import ContinuousQ, DistributionalQHead, DuelingQHead, QHead, QuantileQHead
from shoal.nets.residual import ResidualCNN
from shoal.nets.value_heads import (
    CategoricalValueHead,
    DiscreteValuedHead,
    QuantileValueHead,
    ScalarValueHead,
)
from shoal.xla.costs import num_parameters

FEATURES = 12


class Member(NamedTuple):
    """One module: how it is built from a key, and the inputs that it takes."""

    build: Callable[[jax.Array], Any]
    inputs: tuple[Any, ...]  # of one call: each a Shape, a Below, or a tree of these
    shape: tuple[int, ...] | None = None  # of an output array, after the batch axes
    action: tuple[int, ...] | None = None  # or of an action of the distribution that comes out


class Shape(tuple):
    """The shape of an input of floats."""


class Below(NamedTuple):
    """Integers of that shape, each below n."""

    n: int
    shape: tuple[int, ...] = ()


FLAT = (Shape((FEATURES,)),)
TWO = Shape((3,)), Shape((2,))


def small_mlp(key, **options):
    return MLP(3, (4,), key=key, **options)


TORSOS = {
    "MLP": Member(lambda key: MLP(FEATURES, (8, 6), key=key), FLAT, (6,)),
    "MLP, plain last layer": Member(
        lambda key: MLP(FEATURES, (8,), 3, layer_norm=True, activation="silu", key=key), FLAT, (3,)
    ),
    "MLP, he_uniform": Member(
        lambda key: MLP(FEATURES, (8,), activation="relu", initialiser="he_uniform", key=key), FLAT, (8,)
    ),
    "NoisyMLP": Member(lambda key: NoisyMLP(FEATURES, (8,), 3, layer_norm=True, key=key), FLAT, (3,)),
    "CNN": Member(
        lambda key: CNN((9, 8, 2), (3, 4), (3, (2, 3)), ((2, 1), 1), sizes=(5,), key=key),
        (Shape((9, 8, 2)),),
        (5,),
    ),
    "CNN, channels first": Member(
        lambda key: CNN(
            (2, 6, 7),
            (3, 4),
            (3, 3),
            (2, 1),
            padding="same",
            channels_first=True,
            layer_norm=True,
            sizes=(),
            out_features=3,
            key=key,
        ),
        (Shape((2, 6, 7)),),
        (3,),
    ),
    "GridCNN": Member(
        lambda key: GridCNN((4, 5, 2), (6, 3), embedding=3, channels=(4, 5), sizes=(6,), key=key),
        (Below(3, (4, 5, 2)),),
        (6,),
    ),
    "GridCNN of numbers": Member(
        lambda key: GridCNN((3, 3, 2), channels=(4,), key=key), (Shape((3, 3, 2)),), (16,)
    ),
    "ResidualCNN": Member(
        lambda key: ResidualCNN((7, 6, 2), (3, 4), blocks=1, sizes=(5,), key=key), (Shape((7, 6, 2)),), (5,)
    ),
    "ArrayInput": Member(lambda key: ArrayInput((2, 3), divisor=255.0), (Shape((2, 3)),), (6,)),
    "OneHotInput": Member(lambda key: OneHotInput(5), (Below(5),), (5,)),
    "EmbeddingInput": Member(
        lambda key: EmbeddingInput((5, 4), 3, scale=0.1, key=key), (Below(4, (2,)),), (6,)
    ),
    "DictInput": Member(
        lambda key: DictInput({"b": small_mlp(key), "a": OneHotInput(3)}),
        ({"a": Below(3), "b": Shape((3,)), "unused": Shape(())},),
        (7,),
    ),
    "Inputs": Member(
        lambda key: Inputs(small_mlp(key), EmbeddingInput(3, 2, key=key)), (Shape((3,)), Below(3)), (6,)
    ),
    "Chain": Member(
        lambda key: Chain(CNN((4, 4, 1), (2,), (2,), (1,), sizes=(5,), key=key), NoisyMLP(5, (4,), key=key)),
        (Shape((4, 4, 1)),),
        (4,),
    ),
    "Branches": Member(
        lambda key: Chain(Branches(MLP(3, (4,), 1, key=key), MLP(3, (4,), 2, key=key)), DuelingQHead(2)),
        (Shape((3,)),),
        (2,),
    ),
    "ContinuousQ": Member(lambda key: ContinuousQ(3, 2, (6,), key=key), TWO, ()),
}


HEADS = {  # the head, the shape of what comes out (see Member)
    "CategoricalHead": (CategoricalHead(4), None, ()),
    "MultiCategoricalHead": (MultiCategoricalHead((2, 3)), None, (2,)),
    "NormalHead": (NormalHead(3, initial_std=0.5), None, (3,)),
    "NormalHead, state-dependent": (NormalHead(3, state_dependent_std=True, minimum_std=0.1), None, (3,)),
    "TanhNormalHead": (TanhNormalHead(3), None, (3,)),
    "BetaHead": (BetaHead(3), None, (3,)),
    "GSDEHead": (GSDEHead(3, FEATURES), None, (3,)),
    "DeterministicHead": (DeterministicHead(3), None, (3,)),
    "ScalarValueHead": (ScalarValueHead(), (), None),
    "CategoricalValueHead": (CategoricalValueHead(-2.0, 2.0, 5), None, ()),
    "QuantileValueHead": (QuantileValueHead(4), (4,), None),
    "DiscreteValuedHead": (DiscreteValuedHead((-1.0, 0.0, 10.0), (2,)), None, (2,)),
    "QHead": (QHead(4), (4,), None),
    "DuelingQHead": (DuelingQHead(4), (4,), None),
    "DistributionalQHead": (DistributionalQHead(3, -1.0, 1.0, 4), None, (3,)),
    "DistributionalQHead, dueling": (DistributionalQHead(2, -1.0, 1.0, 4, dueling=True), None, (2,)),
    "QuantileQHead": (QuantileQHead(3, 4), (3, 4), None),
    "QuantileQHead, dueling": (QuantileQHead(2, 4, dueling=True), (2, 4), None),
}

SCALE = 0.3  # of the layer before each head, below


def headed(head, shape, action):
    return Member(lambda key: Headed(head, FEATURES, scale=SCALE, key=key), FLAT, shape, action)


MEMBERS = {
    **TORSOS,
    **{name: headed(*each) for name, each in HEADS.items()},
    "Headed": Member(
        lambda key: Headed(QHead(3), FEATURES, (8,), scale=0.1, activation="elu", layer_norm=True, key=key),
        FLAT,
        (3,),
    ),
    "PolicyAndValue": Member(
        lambda key: PolicyAndValue(
            FEATURES, CategoricalHead(3), ScalarValueHead(), value_sizes=(4,), key=key
        ),
        FLAT,
    ),
    "Ensemble": Member(lambda key: Ensemble(lambda key: ContinuousQ(3, 2, (6,), key=key), 3, key=key), TWO),
}


def inputs_of(member, batch_shape, key, size=1.0):
    """Arguments of a call: normal numbers times `size`, and integers that are drawn too."""

    def draw(kind):
        if isinstance(kind, Below):
            return jax.random.randint(key, (*batch_shape, *kind.shape), 0, kind.n)
        return size * jax.random.normal(key, (*batch_shape, *kind))

    return jax.tree.map(draw, member.inputs, is_leaf=lambda x: isinstance(x, Shape | Below))


FILES = ("mlp", "noisy", "cnn", "residual", "inputs", "composition", "ensembles", "headed", "heads")
FILES += ("value_heads", "q_heads")
ELSEWHERE = {"Dense", "LayerNorm", "Combined"}  # parts of others

T, B = 3, 2


@functools.cache
def construct(name):
    """Two modules, of one program."""
    build = jax.jit(MEMBERS[name].build)
    return build(jax.random.key(0)), build(jax.random.key(1))


def call(module, *inputs):
    return module(*inputs, key=jax.random.key(9)) if is_noisy(module) else module(*inputs)


def axis_of(name):
    """Where the first leading axis of an output is: an ensemble puts its members before it."""
    return 1 if name == "Ensemble" else 0


def test_every_module_has_its_place_here():
    named = set()
    for file in FILES:
        module = importlib.import_module(f"shoal.nets.{file}")
        classes = inspect.getmembers(module, inspect.isclass)
        named |= {
            name for name, cls in classes if issubclass(cls, nnx.Module) and cls.__module__ == module.__name__
        }
    assert named - ELSEWHERE == {name.split(",")[0].split(" of ")[0] for name in MEMBERS}


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.quick("NoisyMLP", "GridCNN", "Inputs", "DistributionalQHead")
@pytest.mark.rare()
def test_leading_axes_are_free_and_nothing_compiles_again(name):
    """[T, B], [B] and [] give the same numbers, and so do vmap, scan and a stack of two modules."""
    member, (module, other) = MEMBERS[name], construct(name)
    first = axis_of(name)
    traces = []

    @jax.jit
    def everything(module, other, inputs):
        traces.append(1)
        direct = call(module, *inputs)
        mapped = jax.vmap(lambda inputs: call(module, *inputs), out_axes=first)(inputs)
        _, scanned = jax.lax.scan(lambda carry, inputs: (carry, call(module, *inputs)), None, inputs)
        row = call(module, *jax.tree.map(lambda x: x[1], inputs))
        one = call(module, *jax.tree.map(lambda x: x[1, 0], inputs))
        both = jax.tree.map(lambda *leaves: jnp.stack(leaves), other, module)
        stacked = jax.vmap(lambda module: call(module, *inputs), axis_size=2)(both)
        return direct, mapped, scanned, row, one, jax.tree.map(lambda x: x[1], stacked)

    inputs = inputs_of(member, (T, B), jax.random.key(2))
    direct, mapped, scanned, row, one, stacked = everything(module, other, inputs)
    everything(other, module, inputs)
    assert len(traces) == 1
    close = functools.partial(jax.tree.map, functools.partial(np.testing.assert_allclose, atol=2e-5))
    close(mapped, direct)
    close(jax.tree.map(lambda x: jnp.moveaxis(x, 0, first), scanned), direct)
    close(row, jax.tree.map(lambda x: jnp.take(x, 1, first), direct))
    close(one, jax.tree.map(lambda x: jnp.take(jnp.take(x, 1, first), 0, first), direct))
    close(stacked, direct)
    if member.shape is not None:
        assert direct.shape == (T, B, *member.shape)
        assert direct.dtype == jnp.float32
        assert getattr(module, "out_features", 0) in (0, *member.shape)
    if member.action is not None:
        assert direct.mode().shape == (T, B, *member.action)


def measure(result, noise):
    """A number that every parameter and input has a part in, also where a distribution comes out."""
    if isinstance(result, tuple) and not hasattr(result, "mode"):
        return sum(measure(part, noise) for part in result)
    if not hasattr(result, "mode"):
        return jnp.mean(jnp.square(result))
    if hasattr(result, "mean"):
        return jnp.mean(jnp.square(result.mean())) + jnp.mean(result.variance())
    if type(result).__name__ == "Deterministic":
        return jnp.mean(jnp.square(result.value))
    mode = jax.lax.stop_gradient(result.mode())
    action = mode if jnp.issubdtype(mode.dtype, jnp.integer) else 0.9 * jnp.tanh(mode + noise)
    entropy = result.entropy_estimate() if hasattr(result, "entropy_estimate") else result.entropy()
    return jnp.mean(result.log_prob(action)) + jnp.mean(entropy)


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.quick("MLP, plain last layer", "GSDEHead", "DuelingQHead")
@pytest.mark.rare()
def test_gradients_are_finite_at_extreme_inputs(name):
    member, (module, _) = MEMBERS[name], construct(name)

    @jax.jit
    def gradients(module, numbers, others):
        def loss(module, numbers):
            inputs = jax.tree.map(
                lambda a, b: b if a is None else a, numbers, others, is_leaf=lambda x: x is None
            )
            return measure(call(module, *inputs), 0.1)

        return jax.value_and_grad(loss, argnums=(0, 1))(module, numbers)

    inputs = inputs_of(member, (4,), jax.random.key(3))
    is_float = jax.tree.map(lambda x: jnp.issubdtype(x.dtype, jnp.floating), inputs)
    others = jax.tree.map(lambda x, yes: jnp.zeros(()) if yes else x, inputs, is_float)
    changed = 0.0
    for size in (1.0, 0.0, 1e4, -1e4):
        numbers = jax.tree.map(
            lambda x, yes, size=size: (x if size == 1.0 else jnp.full(x.shape, size)) if yes else None,
            inputs,
            is_float,
        )
        value, gradient = gradients(module, numbers, others)
        leaves = jax.tree.leaves((value, gradient))
        assert all(np.all(np.isfinite(leaf)) for leaf in leaves), size
        changed += sum(float(jnp.sum(jnp.abs(leaf))) for leaf in jax.tree.leaves(gradient))
    assert changed > 0 or not jax.tree.leaves((module, numbers))


@pytest.mark.parametrize("name", MEMBERS)
@pytest.mark.quick("NoisyMLP", "GridCNN", "Chain")
def test_two_constructions_have_equal_structure(name):
    """Each is traced by itself, so that a lambda or another object made in between would show."""
    structures = [
        jax.tree.structure(jax.eval_shape(functools.partial(MEMBERS[name].build), jax.random.key(0)))
        for _ in range(2)
    ]
    assert structures[0] == structures[1] == jax.tree.structure(construct(name)[0])
    assert hash(structures[0]) == hash(structures[1])
    leaves = jax.tree.leaves(construct(name)[0])
    assert all(leaf.dtype == jnp.float32 and not leaf.weak_type for leaf in leaves)
    assert num_parameters(construct(name)[0]) == num_parameters(construct(name)[1])


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.quick("CategoricalHead", "BetaHead")
def test_initial_outputs_are_of_the_stated_scale(name):
    """What a head is given begins with the standard deviation of its own layer, and with no bias."""
    head = HEADS[name][0]
    features = max(FEATURES, head.num_inputs)
    build = jax.jit(lambda key, scale: Headed(head, features, scale=scale, key=key))
    x = jax.random.normal(jax.random.key(1), (4000, features))
    for scale in (0.01, SCALE):
        layer = build(jax.random.key(0), scale).mlp
        outputs = np.asarray(layer(x))
        np.testing.assert_allclose(outputs.std(axis=0), scale, rtol=0.06)  # five times its own deviation
        np.testing.assert_array_equal(layer(jnp.zeros(features)), 0.0)
