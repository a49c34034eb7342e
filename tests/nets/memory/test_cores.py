"""Recurrent cores against loops in NumPy, and what must hold of every one of them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_modules import drawn_module
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.test_util import check_grads

from shoal.base.errors import ShoalError
from shoal.nets.initialisers import orthogonals
from shoal.nets.memory.cores import CELLS, RecurrentCore, initial, unroll_cell, unroll_cell_plain
from shoal.nets.networks import NetworkConfig
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Discrete

T, N, IN, SIZE = 7, 4, 3, 5
KINDS = tuple(CELLS)


def made(kind, **options):
    return drawn_module(lambda key: RecurrentCore(IN, SIZE, kind, key=key, **options))


def drawn(steps=T, batch=N):
    """Inputs, and resets that are at the start, in the middle, twice, and nowhere."""
    first = np.zeros((steps, batch), bool)
    first[0, 1] = first[steps // 2, 2] = first[1:3, 3] = True
    return jnp.asarray(np.random.default_rng(2).normal(size=(steps, batch, IN)), jnp.float32), jnp.asarray(
        first
    )


def begun(core, batch=N):
    """A memory that is not zero."""
    return drawn_module(lambda _: core.initial((batch,)), seed=3, scale=1.0)


unroll = jax.jit(RecurrentCore.unroll)


def close(first, second, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), first, second)


def blocks(array, n):
    return np.split(np.asarray(array), n)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_step(kind, layer, x, h, c):
    """One step of all sequences in float64: (h, c)."""
    gates = CELLS[kind].gates
    p = np.split(x @ np.asarray(layer.kernel, np.float64).T + np.asarray(layer.bias), gates, axis=1)
    if kind == "mingru":
        z = sigmoid(p[0])
        return (1 - z) * h + z * p[1], c
    q = np.split(h @ np.asarray(layer.recurrent, np.float64).T, gates, axis=1)
    if kind == "rnn":
        return np.tanh(p[0] + q[0]), c
    if kind == "lstm":
        i, f, o = (sigmoid(p[k] + q[k]) for k in (0, 1, 3))
        c = f * c + i * np.tanh(p[2] + q[2])
        return o * np.tanh(c), c
    b = np.asarray(layer.candidate_bias, np.float64)
    keep = sigmoid(p[-2] + q[-2])
    opened = sigmoid(p[0] + q[0]) if kind == "gru" else keep
    return (1 - keep) * np.tanh(p[-1] + opened * (q[-1] + b)) + keep * h, c


@pytest.mark.quick("gru-1-last")
@pytest.mark.parametrize(
    ("kind", "layers", "outputs"),
    [("rnn", 1, "last"), ("mgu", 2, "last"), ("lstm", 2, "sum"), ("gru", 1, "last"), ("mingru", 2, "sum")],
)
def test_equals_a_loop_in_numpy_with_every_pattern_of_resets(kind, layers, outputs):
    """Each step and layer by itself, for all 2^4 patterns; memory and what is remembered of it too."""
    core, steps = made(kind, layers=layers, outputs=outputs), 4
    first = (np.arange(16) >> np.arange(steps)[:, None]) & 1 == 1  # [steps, 16]
    x, carry = drawn(steps, 16)[0], begun(core, 16)
    after, actual, before = unroll(core, carry, x, jnp.asarray(first))
    states = [[np.asarray(part, np.float64) for part in state] for state in carry]
    for t in range(steps):
        close([[part[t] for part in state] for state in before], [list(s) for s in states])
        y, total = np.asarray(x[t], np.float64), 0.0
        for k, layer in enumerate(core.layers):
            state = [np.where(first[t][:, None], 0.0, part) for part in states[k]]
            h, c = numpy_step(kind, layer, y, state[0], state[-1])
            states[k] = [h, c] if len(state) == 2 else [h]
            y, total = h, total + h
        np.testing.assert_allclose(actual[t], total if outputs == "sum" else y, atol=1e-5)
    close([list(state) for state in after], states)


@pytest.mark.parametrize("kind", ["lstm", "mingru"])
def test_step_by_step_and_by_chunks_equal_the_whole(kind):
    """Acting (T = 1) and replaying from the memory at any step give what one unroll gives."""
    core = made(kind, layers=2)
    x, first = drawn(5)
    carry = begun(core)
    after, outputs, before = jax.tree.map(np.asarray, unroll(core, carry, x, first))
    stepped = carry
    for t in range(len(x)):
        close(stepped, jax.tree.map(lambda part, t=t: part[t], before))
        stepped, y, _ = unroll(core, stepped, x[t : t + 1], first[t : t + 1])
        close(y[0], outputs[t])
    close(stepped, after)
    at = jax.tree.map(lambda part: part[2], before)
    close(unroll(core, at, x[2:4], first[2:4])[1], outputs[2:4])


@pytest.mark.parametrize("kind", ["lstm", "mingru"])
def test_a_reset_stops_nan_and_the_gradient(kind):
    core = made(kind)
    x, carry = drawn()[0], begun(core)
    first = jnp.asarray(np.arange(T)[:, None] == np.full(N, 3))
    poisoned = x.at[2].set(jnp.nan)
    lost = jax.tree.map(lambda state: np.full_like(state, np.nan), carry)

    @jax.jit
    def gradient(x, carry, first):
        return jax.grad(lambda x: jnp.sum(core.unroll(carry, x, first)[1][3:] ** 2))(x)

    known = unroll(core, carry, x, first)[1][3:]
    np.testing.assert_array_equal(unroll(core, carry, poisoned, first)[1][3:], known)
    np.testing.assert_array_equal(unroll(core, lost, x, first.at[0].set(True))[1][3:], known)
    plain = gradient(x, carry, first)
    assert np.array_equal(plain[:3], np.zeros((3, N, IN)))
    assert (np.abs(plain[3:]) > 0).all()
    np.testing.assert_array_equal(gradient(poisoned, carry, first)[3:], plain[3:])
    np.testing.assert_array_equal(gradient(x, lost, first.at[0].set(True)), plain)


@pytest.mark.quick("mingru")
@pytest.mark.parametrize("kind", ["lstm", "mingru"])
def test_gradients_by_finite_differences(kind):
    core = made(kind, layers=2, outputs="sum")
    x, first = drawn(4)
    carry = begun(core)
    loss = jax.jit(lambda core, carry, x: jnp.sum(core.unroll(carry, x, first)[1] ** 2))
    check_grads(loss, (core, carry, x), order=1, modes=["rev"], atol=3e-2, rtol=3e-2)
    gradients = jax.tree.leaves(jax.jit(jax.grad(loss))(core, carry, x))
    assert all((np.abs(leaf) > 0).any() for leaf in gradients)  # nothing is left out


@pytest.mark.parametrize("kind", ["lstm", "mingru"])
def test_gradients_are_finite_at_extreme_inputs(kind):
    core = made(kind)
    gradient = jax.jit(
        jax.grad(lambda core, x: jnp.mean(core(core.initial((N,)), x, jnp.zeros((T, N), bool))[1]))
    )
    for value in (1e6, -1e6, 0.0):
        assert all(
            np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(core, jnp.full((T, N, IN), value)))
        )


@pytest.mark.parametrize("kind", ["lstm", "mingru"])
@pytest.mark.quick("mingru")
def test_contract(kind):
    """A pytree of floats, the same structure each time, any batch axes, and vmap over members."""
    traced = jax.eval_shape(lambda key: RecurrentCore(IN, SIZE, kind, layers=2, key=key), jax.random.key(0))
    cores = [
        drawn_module(lambda key: RecurrentCore(IN, SIZE, kind, layers=2, key=key), seed) for seed in (0, 1)
    ]
    assert jax.tree.structure(cores[0]) == jax.tree.structure(cores[1]) == jax.tree.structure(traced)
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(traced))
    assert jax.tree.structure(cores[0].initial((N,))) == jax.tree.structure(initial(kind, SIZE, 2, (N,)))

    x, first = drawn()
    flat = cores[0](cores[0].initial((N,)), x, first)
    one = cores[0](cores[0].initial(), x[:, 2], first[:, 2])
    close(one, (jax.tree.map(lambda part: part[2], flat[0]), flat[1][:, 2]))
    folded = cores[0](cores[0].initial((2, 2)), x.reshape(T, 2, 2, IN), first.reshape(T, 2, 2))
    assert folded[1].shape == (T, 2, 2, SIZE)
    close(folded[1].reshape(T, N, SIZE), flat[1])

    members = jax.tree.map(lambda *leaves: jnp.stack(leaves), *cores)
    mapped = jax.jit(jax.vmap(lambda core: core(core.initial((N,)), x, first)[1]))(members)
    close(mapped[1], cores[1](cores[1].initial((N,)), x, first)[1])


@pytest.mark.parametrize("kind", KINDS)
def test_initial_weights(kind):
    """Orthogonal blocks, gate by gate; a gate that keeps begins by keeping."""
    layer = RecurrentCore(IN, SIZE, kind, key=jax.random.key(0)).layers[0]
    cell = CELLS[kind]
    kernels = [layer.kernel, *([layer.recurrent] if cell.step else [])]
    for block in [b for kernel in kernels for b in blocks(kernel, cell.gates)]:
        np.testing.assert_allclose(np.linalg.svd(block, compute_uv=False), 1.0, rtol=1e-5)
    for k, bias in enumerate(blocks(layer.bias, cell.gates)):
        np.testing.assert_array_equal(bias, 1.0 if k == cell.unit_bias_block else 0.0)


@pytest.mark.usefixtures("own_kernels")
def test_kernels_are_drawn_gate_by_gate_or_of_all_gates_as_a_whole():
    def layer_of(*initialisers, kind="gru", size=40):
        return RecurrentCore(24, size, kind, initialisers=initialisers, key=jax.random.key(1)).layers[0]

    whole = layer_of("glorot_normal_whole", "orthogonal_whole")
    np.testing.assert_allclose(np.linalg.svd(whole.recurrent, compute_uv=False), 1.0, rtol=1e-5)
    np.testing.assert_allclose(np.std(whole.kernel), (2 / (24 + 120)) ** 0.5, rtol=0.05)
    by_gate = layer_of("glorot_normal", "orthogonal")
    np.testing.assert_allclose(np.std(by_gate.kernel), (2 / (24 + 40)) ** 0.5, rtol=0.05)
    for block in blocks(by_gate.recurrent, 3):
        np.testing.assert_allclose(np.linalg.svd(block, compute_uv=False), 1.0, rtol=1e-5)
    # As it has always been: one loop draws all gates of both kernels.
    default = layer_of("orthogonal", "orthogonal")
    drawn = orthogonals(jax.random.split(jax.random.key(1), 1)[0], [(40, 24)] * 3 + [(40, 40)] * 3)
    np.testing.assert_array_equal(default.kernel, jnp.concatenate(drawn[:3]))
    np.testing.assert_array_equal(default.recurrent, jnp.concatenate(drawn[3:]))
    assert layer_of("he_uniform", "orthogonal", kind="mingru").kernel.shape == (80, 24)


@pytest.mark.usefixtures("own_kernels")
def test_the_initialiser_of_the_network_reaches_its_core():
    spec = EnvSpec(Box(-1.0, 1.0, (2,)), Discrete(3))

    def core_of(**settings):
        config = NetworkConfig(core="gru", core_size=30, hidden_sizes=(20,), shared_torso=True, **settings)
        layer = config.build(spec, jax.random.key(0)).actor.torso.core.layers[0]
        return np.asarray(layer.kernel), np.asarray(layer.recurrent)

    for found, expected in (
        (core_of(initialiser="he_normal"), ("he_normal", "he_normal")),
        (core_of(initialiser="he_normal", core_initialiser="orthogonal"), ("orthogonal", "orthogonal")),
        (core_of(core_recurrent_initialiser="orthogonal_whole"), ("orthogonal", "orthogonal_whole")),
    ):
        config = NetworkConfig(
            core="gru", core_initialiser=expected[0], core_recurrent_initialiser=expected[1]
        )
        assert config.core_initialisers == expected
        same = core_of(core_initialiser=expected[0], core_recurrent_initialiser=expected[1])
        jax.tree.map(np.testing.assert_array_equal, found, same)


def equations(jaxpr):
    """All equations of a program, those inside of its calls included."""
    for equation in jaxpr.eqns:
        yield equation
        for value in jax.tree.leaves(
            tuple(equation.params.values()), is_leaf=lambda x: isinstance(x, ClosedJaxpr | Jaxpr)
        ):
            if isinstance(value, ClosedJaxpr | Jaxpr):
                yield from equations(value.jaxpr if isinstance(value, ClosedJaxpr) else value)


def loops_and_products(function, *arguments):
    """The loops of a program, how many products it has outside of them, and in each how many there are inside."""
    whole = list(equations(jax.make_jaxpr(function)(*arguments).jaxpr))
    loops = [list(equations(e.params["jaxpr"].jaxpr)) for e in whole if e.primitive.name == "scan"]
    inside = [sum(e.primitive.name == "dot_general" for e in loop) for loop in loops]
    return sum(e.primitive.name == "dot_general" for e in whole) - sum(inside), inside


def test_the_input_projection_stands_outside_the_loop():
    """In the loop over time there is one product a layer, with the hidden state, forwards and backwards."""
    core = RecurrentCore(IN, SIZE, "gru", layers=2, key=jax.random.key(0))
    arguments = core.initial((N,)), jnp.zeros((T, N, IN)), jnp.zeros((T, N), bool)
    assert loops_and_products(RecurrentCore.unroll, core, *arguments) == (2, [1, 1])

    def loss(core, carry, x, first):
        return jnp.sum(core(carry, x, first)[1])

    outside, inside = loops_and_products(jax.grad(loss), core, *arguments)
    assert inside == [1, 1, 1, 1]
    # Two projections; backwards one for each of their kernels, one for the inputs of the second layer, and three,
    # one a gate, for each of the recurrent kernels.
    assert outside == 2 + 2 + 1 + 2 * 3
    core = RecurrentCore(IN, SIZE, "mingru", key=jax.random.key(0))
    arguments = core.initial((N,)), *arguments[1:]
    assert loops_and_products(RecurrentCore.unroll, core, *arguments) == (1, [])


@pytest.mark.parametrize("kind", [kind for kind in KINDS if CELLS[kind].keep_gates])
@pytest.mark.quick("lstm", "mingru")
def test_a_latch_keeps_what_was_when_it_was_opened(kind):
    """Units 0 to 3 of 8 are opened by input 2, at step 3: what comes then stays, and what comes later passes by."""

    @jax.jit
    def build(key):
        latches = dict(latches=4, latch_input=2, key=key)
        return (
            RecurrentCore(5, 8, kind, **latches),
            RecurrentCore(5, 8, kind, key=key),
            RecurrentCore(5, 8, kind, layers=2, **latches),
        )

    core, plain, two = build(jax.random.key(0))
    rng = np.random.default_rng(1)
    x = np.asarray(0.5 * rng.normal(size=(T, N, 5)), np.float32)
    x[:, :, 2] = np.arange(T)[:, None] == 3

    def held(core, changed=T):
        """The state that gates write to, after each step; another input comes at the step that is `changed`."""
        inputs = x + other * (np.arange(T)[:, None, None] == changed)
        (after,), _, (before,) = unroll(
            core, core.initial((N,)), jnp.asarray(inputs), jnp.zeros((T, N), bool)
        )
        return np.concatenate([before[-1], after[-1][None]])[1:]

    other = np.asarray(rng.normal(size=(N, 5)) * (np.arange(5) != 2), np.float32)
    states = held(core)
    at_opening, at_another = (np.abs(held(core, step) - states) for step in (3, 5))
    assert np.mean(at_opening[-1, :, :4]) > max(0.1, 10 * np.mean(at_another[-1, :, :4]))
    assert np.mean(np.abs(states[3] - states[2])[:, :4]) > 0.1
    assert np.max(np.abs(states[-1] - states[3])[:, :4]) < 0.15
    rows = np.arange(len(plain.layers[0].kernel)) % 8 >= 4
    np.testing.assert_array_equal(core.layers[0].kernel[rows], plain.layers[0].kernel[rows])
    np.testing.assert_array_equal(core.layers[0].bias[rows], plain.layers[0].bias[rows])
    np.testing.assert_array_equal(np.abs(two.layers[1].bias) > 2, False)


def test_bad_input_is_named():
    key = jax.random.key(0)
    with pytest.raises(ShoalError, match=r"core='gruu' is none of .*did you mean 'gru'"):
        RecurrentCore(3, 4, "gruu", key=key)
    with pytest.raises(ShoalError, match="outputs='mean' is none of last, sum"):
        RecurrentCore(3, 4, outputs="mean", key=key)
    with pytest.raises(ShoalError, match=r"initialiser='orthogonel' is none of .*did you mean 'orthogonal'"):
        RecurrentCore(3, 4, initialisers=("orthogonel", "orthogonal"), key=key)
    with pytest.raises(ShoalError, match="latches=5 of a core must be between 0 and its size of 4"):
        RecurrentCore(3, 4, latches=5, key=key)
    with pytest.raises(ShoalError, match="latches=2 need gates, and core='rnn' has none; choose one of gru"):
        RecurrentCore(3, 4, "rnn", latches=2, key=key)
    core = RecurrentCore(3, 4, key=key)
    with pytest.raises(ShoalError, match=r"x of shape \(2, 5, 2\) and first of shape \(2, 5\)"):
        core(core.initial((5,)), jnp.zeros((2, 5, 2)), jnp.zeros((2, 5), bool))


@pytest.mark.parametrize("kind", [kind for kind, cell in CELLS.items() if cell.step])
@pytest.mark.quick("gru", "lstm")
def test_both_forms_of_unrolling_a_cell_agree(kind):
    """Values bit for bit; gradients within the rounding of sums over steps and sequences.

    Where a gradient is computed too, the programs of the two forms differ, and what XLA fuses in them.
    """
    core = made(kind)
    layer = core.layers[0]
    x, first = drawn()
    state = tuple(part.T for part in begun(core)[0])
    blocks = tuple(layer.project(x).reshape(-1, SIZE, T, N).transpose(0, 2, 1, 3))

    arguments = layer.recurrent, jnp.linspace(-0.3, 0.3, SIZE), state, blocks

    def results(form):
        def states_of(recurrent, bias, state, blocks):
            return form(CELLS[kind].step, recurrent, bias, state, blocks, first)

        def loss(*arguments):
            states = states_of(*arguments)
            return sum(jnp.sum(jnp.sin(3.0 * part)) for part in states), states

        return jax.jit(states_of)(*arguments), jax.jit(jax.grad(loss, (0, 1, 2, 3), has_aux=True))(*arguments)

    (states, (gradient, beside)), (plain_states, (plain_gradient, plain_beside)) = map(
        results, (unroll_cell, unroll_cell_plain)
    )
    jax.tree.map(np.testing.assert_array_equal, states, plain_states)
    close(beside, plain_beside, atol=5e-7)
    close(gradient, plain_gradient, atol=2e-5)
