"""Recurrent cores against Flax's cells, loops in NumPy, and what must hold of every one of them."""

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, Jaxpr
from jax.test_util import check_grads

from shoal.base.errors import ShoalError
from shoal.nets.memory.cores import CELLS, RecurrentCore, initial, unroll_cell, unroll_cell_plain

T, N, IN, SIZE = 7, 4, 3, 5
KINDS = tuple(CELLS)


def jittered(core, key):
    """The core with noise on every parameter, so that no bias is trivial."""
    leaves, structure = jax.tree.flatten(core)
    keys = jax.random.split(key, len(leaves))
    noisy = [leaf + 0.3 * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, noisy)


def made(kind, **options):
    return jittered(RecurrentCore(IN, SIZE, kind, key=jax.random.key(0), **options), jax.random.key(1))


def drawn(seed=2, steps=T):
    """Inputs, a memory that is not zero, and resets that are at the start, in the middle, twice, and nowhere."""
    x_key, carry_key = jax.random.split(jax.random.key(seed))
    first = np.zeros((steps, N), bool)
    first[0, 1] = first[steps // 2, 2] = first[1:3, 3] = True
    return jax.random.normal(x_key, (steps, N, IN)), jnp.asarray(first), carry_key


def begun(core, key, batch_shape=(N,)):
    leaves, structure = jax.tree.flatten(core.initial(batch_shape))
    keys = jax.random.split(key, len(leaves))
    return jax.tree.unflatten(
        structure, [jax.random.normal(k, leaf.shape) for k, leaf in zip(keys, leaves, strict=True)]
    )


unroll = jax.jit(RecurrentCore.unroll)


def close(first, second, atol=1e-5):
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=atol), first, second)


def blocks(array, n):
    return np.split(np.asarray(array), n)


def flax_cell(kind, layer):
    """Flax's cell and its parameters, copied from a layer."""
    gates = CELLS[kind].gates
    inputs, hidden, bias = (
        blocks(layer.kernel, gates),
        blocks(layer.recurrent, gates),
        blocks(layer.bias, gates),
    )
    if kind == "gru":
        names = "rzn"
        tree = {f"i{g}": {"kernel": w.T, "bias": b} for g, w, b in zip(names, inputs, bias, strict=True)}
        tree |= {f"h{g}": {"kernel": u.T} for g, u in zip(names, hidden, strict=True)}
        tree["hn"]["bias"] = layer.candidate_bias
        return nn.GRUCell(SIZE), tree
    if kind == "lstm":
        names = "ifgo"
        tree = {f"i{g}": {"kernel": w.T} for g, w in zip(names, inputs, strict=True)}
        tree |= {f"h{g}": {"kernel": u.T, "bias": b} for g, u, b in zip(names, hidden, bias, strict=True)}
        return nn.LSTMCell(SIZE), tree
    if kind == "mgu":
        names = "fn"
        tree = {f"i{g}": {"kernel": w.T, "bias": b} for g, w, b in zip(names, inputs, bias, strict=True)}
        tree |= {f"h{g}": {"kernel": u.T} for g, u in zip(names, hidden, strict=True)}
        tree["hn"]["bias"] = layer.candidate_bias
        return nn.MGUCell(SIZE), tree
    tree = {"i": {"kernel": inputs[0].T, "bias": bias[0]}, "h": {"kernel": hidden[0].T}}
    return nn.SimpleCell(SIZE), tree


@pytest.mark.parametrize("kind", ["gru", "lstm", "rnn", "mgu"])
@pytest.mark.quick("lstm", "mgu")
def test_a_layer_equals_flaxs_cell(kind):
    core = made(kind)
    x, _, key = drawn()
    carry = begun(core, key)
    cell, tree = flax_cell(kind, core.layers[0])
    state = (carry[0][1], carry[0][0]) if kind == "lstm" else carry[0][0]  # Flax's is (c, h)
    expected = []
    apply = jax.jit(cell.apply)
    for x_t in x:
        state, y = apply({"params": tree}, state, x_t)
        expected.append(y)
    after, outputs, _ = unroll(core, carry, x, jnp.zeros((T, N), bool))
    close(outputs, jnp.stack(expected))
    close(after[0], (state[1], state[0]) if kind == "lstm" else (state,))


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def numpy_step(kind, layer, x, h, c):
    """One step of one sequence in float64: (h, c)."""
    gates = CELLS[kind].gates
    p = np.split(np.asarray(layer.kernel, np.float64) @ x + np.asarray(layer.bias, np.float64), gates)
    if kind == "mingru":
        z = sigmoid(p[0])
        return (1 - z) * h + z * p[1], c
    q = np.split(np.asarray(layer.recurrent, np.float64) @ h, gates)
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layers, outputs", [(1, "last"), (3, "last"), (3, "sum")])
@pytest.mark.quick("1-last-rnn", "3-last-mgu", "3-sum-lstm", "1-last-gru", "3-sum-mingru")
def test_equals_a_loop_in_numpy_with_resets(kind, layers, outputs):
    """Each sequence, step and layer by itself; memory and what is remembered of it too."""
    core = made(kind, layers=layers, outputs=outputs)
    x, first, key = drawn()
    carry = begun(core, key)
    after, actual, before = unroll(core, carry, x, first)
    for n in range(N):
        states = [[np.asarray(part[n], np.float64) for part in state] for state in carry]
        for t in range(T):
            close([[part[t, n] for part in state] for state in before], [list(s) for s in states])
            y, total = np.asarray(x[t, n], np.float64), 0.0
            for k, layer in enumerate(core.layers):
                state = [np.zeros(SIZE) if first[t, n] else part for part in states[k]]
                h, c = numpy_step(kind, layer, y, state[0], state[-1])
                states[k] = [h, c] if len(state) == 2 else [h]
                y, total = h, total + h
            np.testing.assert_allclose(actual[t, n], total if outputs == "sum" else y, atol=1e-5)
        close([[part[n] for part in state] for state in after], states)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("gru", "mingru")
def test_step_by_step_and_by_chunks_equal_the_whole(kind):
    """Acting (T = 1) and replaying from the memory at any step give what one unroll gives."""
    core = made(kind, layers=2)
    x, first, key = drawn()
    carry = begun(core, key)
    after, outputs, before = unroll(core, carry, x, first)
    stepped, single = carry, []
    for t in range(T):
        close(stepped, jax.tree.map(lambda part, t=t: part[t], before))
        stepped, y, _ = unroll(core, stepped, x[t : t + 1], first[t : t + 1])
        single.append(y[0])
    close(jnp.stack(single), outputs)
    close(stepped, after)
    at = jax.tree.map(lambda part: part[3], before)
    close(unroll(core, at, x[3:6], first[3:6])[1], outputs[3:6])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("lstm", "mingru")
def test_a_reset_makes_two_sequences_of_one_for_every_pattern(kind):
    """All 2^4 patterns of resets at once: each stretch between resets is as if it were alone."""
    core, steps = made(kind), 4
    patterns = np.stack([(np.arange(2**steps) >> t) & 1 for t in range(steps)]).astype(bool)  # [T, 16]
    x = jnp.broadcast_to(drawn(steps=steps)[0][:, :1], (steps, 2**steps, IN))
    carry = begun(core, jax.random.key(5), (2**steps,))
    _, outputs, _ = unroll(core, carry, x, jnp.asarray(patterns))
    none = jnp.zeros((steps, 2**steps), bool)
    alone = {}  # outputs of a sequence that begins at step b with no memory
    for b in range(steps):
        alone[b] = unroll(core, core.initial((2**steps,)), x[b:], none[b:])[1]
    unbroken = unroll(core, carry, x, none)[1]
    for n, pattern in enumerate(patterns.T):
        for t in range(steps):
            begins = [b for b in range(t + 1) if pattern[b]]
            expected = alone[begins[-1]][t - begins[-1], n] if begins else unbroken[t, n]
            np.testing.assert_allclose(outputs[t, n], expected, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("rnn", "mingru")
def test_a_reset_stops_nan_and_the_gradient(kind):
    core = made(kind)
    x, _, key = drawn()
    first = jnp.zeros((T, N), bool).at[3].set(True)
    poisoned = x.at[2].set(jnp.nan)
    lost = jax.tree.map(lambda state: jnp.full_like(state, jnp.nan), begun(core, key))

    @jax.jit
    def gradient(x, carry, first):
        return jax.grad(lambda x: jnp.sum(core.unroll(carry, x, first)[1][3:] ** 2))(x)

    known = unroll(core, begun(core, key), x, first)[1][3:]
    np.testing.assert_array_equal(unroll(core, begun(core, key), poisoned, first)[1][3:], known)
    np.testing.assert_array_equal(unroll(core, lost, x, first.at[0].set(True))[1][3:], known)
    plain = gradient(x, begun(core, key), first)
    assert np.array_equal(plain[:3], np.zeros((3, N, IN)))
    assert (np.abs(plain[3:]) > 0).all()
    np.testing.assert_array_equal(gradient(poisoned, begun(core, key), first)[3:], plain[3:])
    np.testing.assert_array_equal(gradient(x, lost, first.at[0].set(True)), plain)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("lstm", "mingru")
def test_gradients_by_finite_differences(kind):
    core = made(kind, layers=2, outputs="sum")
    x, first, key = drawn(steps=4)
    carry = begun(core, key)
    loss = jax.jit(lambda core, carry, x: jnp.sum(core.unroll(carry, x, first)[1] ** 2))
    check_grads(loss, (core, carry, x), order=1, modes=["rev"], atol=3e-2, rtol=3e-2)
    gradients = jax.tree.leaves(jax.jit(jax.grad(loss))(core, carry, x))
    assert all((np.abs(leaf) > 0).any() for leaf in gradients)  # nothing is left out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("lstm", "mingru")
@pytest.mark.rare("gru", "mgu")
def test_gradients_are_finite_at_extreme_inputs(kind):
    core = made(kind)
    gradient = jax.jit(
        jax.grad(lambda core, x: jnp.mean(core(core.initial((N,)), x, jnp.zeros((T, N), bool))[1]))
    )
    for value in (1e6, -1e6, 0.0):
        assert all(
            np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradient(core, jnp.full((T, N, IN), value)))
        )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.quick("mingru")
def test_contract(kind):
    """A pytree of floats, the same structure each time, any batch axes, and vmap over members."""
    cores = [RecurrentCore(IN, SIZE, kind, layers=2, key=jax.random.key(seed)) for seed in (0, 1)]
    assert jax.tree.structure(cores[0]) == jax.tree.structure(cores[1])
    traced = jax.jit(lambda key: RecurrentCore(IN, SIZE, kind, layers=2, key=key))(jax.random.key(0))
    close(traced, cores[0])
    assert jax.tree.structure(traced) == jax.tree.structure(cores[0])
    assert all(leaf.dtype == jnp.float32 for leaf in jax.tree.leaves(cores[0]))
    assert jax.tree.structure(cores[0].initial((N,))) == jax.tree.structure(initial(kind, SIZE, 2, (N,)))

    x, first, _ = drawn()
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


@pytest.mark.parametrize("kind", [kind for kind in KINDS if CELLS[kind].step])
@pytest.mark.quick("gru")
def test_the_gradient_is_that_of_the_plain_loop(kind):
    """Of every parameter, the inputs and the first memory, against JAX's own gradient of a loop over steps."""
    core = made(kind, layers=2, outputs="sum")
    x, first, carry_key = drawn()
    carry = begun(core, carry_key)
    weights = jax.random.normal(jax.random.key(5), (T, N, SIZE))

    def plain(core, carry, x):
        total = 0.0
        for t in range(T):
            below, after = x[t], []
            output = 0.0
            for layer, state in zip(core.layers, carry, strict=True):
                cleared = [jnp.where(first[t][:, None], 0.0, part).T for part in state]
                gates = CELLS[kind].gates
                projected = jnp.split(layer.kernel @ below.T + layer.bias[:, None], gates)
                hidden = jnp.split(layer.recurrent @ cleared[0], gates)
                bias = layer.candidate_bias if CELLS[kind].candidate_bias else jnp.zeros(SIZE)
                new = CELLS[kind].step(tuple(projected), tuple(hidden), bias[:, None], tuple(cleared))
                after.append(tuple(part.T for part in new))
                below = after[-1][0]
                output += below
            carry = after
            total += jnp.sum(weights[t] * output)
        return total + sum(jnp.sum(jnp.sin(part)) for state in carry for part in state)

    def ours(core, carry, x):
        carry, outputs = core(carry, x, first)
        return jnp.sum(weights * outputs) + sum(jnp.sum(jnp.sin(part)) for state in carry for part in state)

    for expected, actual in zip(
        *(
            jax.tree.leaves(jax.jit(jax.value_and_grad(f, argnums=(0, 1, 2)))(core, carry, x))
            for f in (plain, ours)
        ),
        strict=True,
    ):
        np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if CELLS[kind].keep_gates])
@pytest.mark.quick("lstm", "mingru")
def test_a_latch_keeps_what_was_when_it_was_opened(kind):
    """Units 0 to 3 of 8 are opened by input 2, at step 3: what comes then stays, and what comes later passes by."""
    options = dict(latches=4, latch_input=2, key=jax.random.key(0))
    core = RecurrentCore(5, 8, kind, **options)
    plain = RecurrentCore(5, 8, kind, key=jax.random.key(0))
    x = 0.5 * jax.random.normal(jax.random.key(1), (T, N, 5))
    x = x.at[:, :, 2].set(0.0).at[3, :, 2].set(1.0)

    def held(core, x):
        """The state that gates write to, after each step."""
        (after,), _, (before,) = unroll(core, core.initial((N,)), x, jnp.zeros((T, N), bool))
        return jnp.concatenate([before[-1], after[-1][None]])[1:]

    other = jax.random.normal(jax.random.key(2), (N, 5)).at[:, 2].set(0.0)
    states = held(core, x)
    at_opening = jnp.abs(held(core, x.at[3].add(other)) - states)
    at_another = jnp.abs(held(core, x.at[5].add(other)) - states)
    assert jnp.mean(at_opening[-1, :, :4]) > max(0.1, 10 * jnp.mean(at_another[-1, :, :4]))
    assert jnp.mean(jnp.abs(states[3] - states[2])[:, :4]) > 0.1
    assert jnp.max(jnp.abs(states[-1] - states[3])[:, :4]) < 0.15
    rows = np.arange(len(plain.layers[0].kernel)) % 8 >= 4
    np.testing.assert_array_equal(core.layers[0].kernel[rows], plain.layers[0].kernel[rows])
    np.testing.assert_array_equal(core.layers[0].bias[rows], plain.layers[0].bias[rows])
    two = RecurrentCore(5, 8, kind, layers=2, **options)
    np.testing.assert_array_equal(np.abs(two.layers[1].bias) > 2, False)


def test_bad_input_is_named():
    key = jax.random.key(0)
    with pytest.raises(ShoalError, match=r"core='gruu' is none of .*did you mean 'gru'"):
        RecurrentCore(3, 4, "gruu", key=key)
    with pytest.raises(ShoalError, match="size=0 of a core"):
        RecurrentCore(3, 0, key=key)
    with pytest.raises(ShoalError, match="layers=0 of a core"):
        initial("gru", 4, 0, ())
    with pytest.raises(ShoalError, match="in_features=0 of a core"):
        RecurrentCore(0, 4, key=key)
    with pytest.raises(ShoalError, match="outputs='mean' of a core must be one of last, sum"):
        RecurrentCore(3, 4, outputs="mean", key=key)
    with pytest.raises(ShoalError, match="latches=5 of a core must be between 0 and its size of 4"):
        RecurrentCore(3, 4, latches=5, key=key)
    with pytest.raises(ShoalError, match="latches=2 need gates, and core='rnn' has none; choose one of gru"):
        RecurrentCore(3, 4, "rnn", latches=2, key=key)
    with pytest.raises(ShoalError, match="latch_input=3 of a core must be the number of one of its 3 inputs"):
        RecurrentCore(3, 4, latches=2, latch_input=3, key=key)
    core = RecurrentCore(3, 4, key=key)
    with pytest.raises(ShoalError, match=r"x of shape \(2, 5, 2\) and first of shape \(2, 5\)"):
        core(core.initial((5,)), jnp.zeros((2, 5, 2)), jnp.zeros((2, 5), bool))
    with pytest.raises(ShoalError, match="no step"):
        core(core.initial((5,)), jnp.zeros((0, 5, 3)), jnp.zeros((0, 5), bool))


@pytest.mark.parametrize("kind", [kind for kind, cell in CELLS.items() if cell.step])
@pytest.mark.quick("gru", "lstm")
def test_both_forms_of_unrolling_a_cell_agree(kind):
    """Values bit for bit; gradients within the rounding of sums over steps and sequences.

    Where a gradient is computed too, the programs of the two forms differ, and what XLA fuses in them.
    """
    layer = made(kind).layers[0]
    x, first, key = drawn()
    state = tuple(part.T for part in begun(made(kind), key)[0])
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
