"""Recurrent cores: a network's memory from step to step.

A core unrolls over T steps of N sequences at once, [T, N, ...]; acting is the same with T = 1. The input
projection of the whole sequence is one product outside the loop over time: only the product with the hidden
state stays inside, and minGRU, whose gates do not see the hidden state, needs no loop at all. Where `first` is True
the memory is cleared *before* that step is processed, so that no sequence sees the one before it.

Inside the loop arrays are feature-major, `[size, N]`, and each gate is an array of its own: the data of a gate
then lies in one piece, and a step takes half as long on a CPU.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx

from shoal.base.errors import ShoalError, nearest
from shoal.nets.initialisers import kernels_of_gates
from shoal.xla.barriers import materialise
from shoal.xla.plain import uses_plain_form

Array = jax.Array
State = tuple[Array, ...]  # of one layer: the hidden state, and others that the cell keeps; each [..., size]
Carry = tuple[State, ...]  # of all layers
Blocks = tuple[Array, ...]  # one array for each gate, [..., size, N]
CellStep = Callable[[Blocks, Blocks, Array, State], State]

OUTPUTS = ("last", "sum")


def gru(projected: Blocks, hidden: Blocks, bias: Array, state: State) -> State:
    """Gated recurrent unit, with the reset gate after the recurrent product (one product for all gates).

        r = σ(x_r + h_r),  z = σ(x_z + h_z),  n = tanh(x_n + r (h_n + b)),  h' = (1 - z) n + z h

    Source: Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder"; the order is cuDNN's.
    """
    (h,), (x_r, x_z, x_n), (h_r, h_z, h_n) = state, projected, hidden
    reset, update = jax.nn.sigmoid(x_r + h_r), jax.nn.sigmoid(x_z + h_z)
    candidate = jnp.tanh(x_n + reset * (h_n + bias))
    return ((1.0 - update) * candidate + update * h,)


def lstm(projected: Blocks, hidden: Blocks, bias: Array, state: State) -> State:
    """Long short-term memory; the state is (h, c).

        i, f, o = σ(x + h),  g = tanh(x_g + h_g),  c' = f c + i g,  h' = o tanh(c')

    Source: Hochreiter and Schmidhuber 1997; the forget gate, Gers et al. 2000, has an initial bias of 1, as
    Jozefowicz et al. 2015 advise.
    """
    _, c = state
    i, f, g, o = (x + h for x, h in zip(projected, hidden, strict=True))
    c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(c), c


def rnn(projected: Blocks, hidden: Blocks, bias: Array, state: State) -> State:
    """Simple recurrence, `h' = tanh(x + h)` (Elman 1990, "Finding Structure in Time")."""
    return (jnp.tanh(projected[0] + hidden[0]),)


def mgu(projected: Blocks, hidden: Blocks, bias: Array, state: State) -> State:
    """Minimal gated unit: one gate forgets and resets, applied after the recurrent product as in `gru`.

        f = σ(x_f + h_f),  n = tanh(x_n + f (h_n + b)),  h' = (1 - f) n + f h

    Source: Zhou et al. 2016, "Minimal Gated Unit for Recurrent Neural Networks", whose f is 1 - f here; the gate
    has an initial bias of 1, so that it begins by keeping.
    """
    (h,), (x_f, x_n), (h_f, h_n) = state, projected, hidden
    forget = jax.nn.sigmoid(x_f + h_f)
    candidate = jnp.tanh(x_n + forget * (h_n + bias))
    return ((1.0 - forget) * candidate + forget * h,)


class Cell(NamedTuple):
    """The properties of one kind of core."""

    gates: int  # blocks of the input projection
    step: CellStep | None  # of arrays [size, N], the bias [size, 1]; None: parallel over time
    states: int = 1  # arrays that it keeps; the first is its output
    candidate_bias: bool = False  # on the recurrent side of the candidate, inside the gate
    unit_bias_block: int | None = None  # the block whose bias begins at 1
    # Blocks of gates, and the sign with which a unit keeps its state.
    keep_gates: tuple[tuple[int, int], ...] = ()


CELLS = {
    "gru": Cell(3, gru, candidate_bias=True, keep_gates=((1, 1),)),
    "lstm": Cell(4, lstm, states=2, unit_bias_block=1, keep_gates=((0, -1), (1, 1))),
    "rnn": Cell(1, rnn),
    "mgu": Cell(2, mgu, candidate_bias=True, unit_bias_block=0, keep_gates=((0, 1),)),
    "mingru": Cell(2, None, keep_gates=((0, -1),)),
}

# Of a latch's gates: it keeps for some 150 steps, until an input of about 1 opens it.
LATCH_GATE_BIAS, LATCH_INPUT_WEIGHT = 5.0, 8.0


def initial(kind: str, size: int, layers: int, batch_shape: tuple[int, ...]) -> Carry:
    """Make the memory of a core before its first step: zeros, each [*batch_shape, size]."""
    zeros = jnp.zeros((*batch_shape, size), jnp.float32)
    return ((zeros,) * CELLS[kind].states,) * layers


def check_latches(kind: str, size: int, latches: int) -> None:
    """Require that a core has this many units to be latches, and gates."""
    if not 0 <= latches <= size:
        raise ShoalError(f"latches={latches} of a core must be between 0 and its size of {size}.")
    if latches and not CELLS[kind].keep_gates:
        with_gates = ", ".join(name for name, cell in CELLS.items() if cell.keep_gates)
        raise ShoalError(
            f"latches={latches} need gates, and core={kind!r} has none; choose one of {with_gates}."
        )


def unroll_cell(
    step: CellStep, recurrent: Array, bias: Array, state: State, projected: Blocks, first: Array
) -> State:
    """Run a cell over T steps of N sequences, all feature-major.

        unroll_cell_plain(...): a scan of `step` over time, of bit-equal values (besides a gradient within rounding)

    Its gradient is that of the scan within float32's rounding, but the recurrent weights' is one product outside, over
    all steps at once: inside, each step would add a matrix of their size to a sum. There is no forward-mode derivative.

    Args:
      recurrent: kernel of the hidden state, [gates * size, size].
      bias: on the recurrent side of the candidate, [size].
      state: from before the first step, each [size, N].
      projected: the inputs' projection, one block for each gate, [T, size, N].
      first: whether the state is cleared before each step, [T, N].
    Returns:
      the states after each step, each [T, size, N].
    """
    unroll = unroll_cell_plain if uses_plain_form("unroll_cell") else _unroll_cell
    return unroll(step, recurrent, bias, state, projected, first)


def unroll_cell_plain(
    step: CellStep, recurrent: Array, bias: Array, state: State, projected: Blocks, first: Array
) -> State:
    """Scan `step` over time, with the scan's own gradient: the plain form of `unroll_cell`."""
    return _unroll_cell_forward(step, recurrent, bias, state, projected, first)[0]


_unroll_cell = jax.custom_vjp(unroll_cell_plain, nondiff_argnums=(0,))


def _unroll_cell_forward(
    step: CellStep, recurrent: Array, bias: Array, state: State, projected: Blocks, first: Array
) -> tuple[State, tuple]:
    def forward_step(state: State, inputs: tuple[Blocks, Array]) -> tuple[State, tuple[State, State, Blocks]]:
        projected, first = inputs
        cleared = jax.tree.map(lambda part: jnp.where(first, 0.0, part), state)
        hidden = tuple((recurrent @ cleared[0]).reshape(len(projected), *cleared[0].shape))
        new = step(projected, hidden, bias[:, None], cleared)
        return new, (new, cleared, hidden)

    _, (states, cleared, hidden) = jax.lax.scan(forward_step, state, (projected, first))
    return states, (recurrent, bias, cleared, hidden, projected, first)


def _unroll_cell_backward(step: CellStep, residuals: tuple, gradient: State) -> tuple:
    recurrent, bias, cleared, hidden, projected, first = residuals
    transposed = materialise(recurrent.T)  # see `shoal.xla.products.product`

    def backward_step(later_gradient: State, inputs: tuple) -> tuple[State, tuple[Blocks, Blocks, Array]]:
        gradient, cleared, hidden, projected, first = inputs
        _, pull_back = jax.vjp(step, projected, hidden, bias[:, None], cleared)
        projected_gradient, hidden_gradient, bias_gradient, (h, *rest) = pull_back(
            jax.tree.map(jnp.add, later_gradient, gradient)
        )
        h += transposed @ jnp.concatenate(hidden_gradient)
        earlier_gradient = jax.tree.map(lambda part: jnp.where(first, 0.0, part), (h, *rest))
        return earlier_gradient, (projected_gradient, hidden_gradient, bias_gradient[:, 0])

    zeros = jax.tree.map(lambda part: jnp.zeros_like(part[0]), cleared)
    inputs = gradient, cleared, hidden, projected, first
    state_gradient, (projected_gradient, hidden_gradient, bias_gradient) = jax.lax.scan(
        backward_step, zeros, inputs, reverse=True
    )
    rows = jax.tree.map(lambda part: jnp.swapaxes(part, 0, 1).reshape(part.shape[1], -1), hidden_gradient)
    before = jnp.swapaxes(cleared[0], 0, 1).reshape(len(bias), -1)
    recurrent_gradient = jnp.concatenate([row @ before.T for row in rows])
    return recurrent_gradient, bias_gradient.sum(0), state_gradient, projected_gradient, None


_unroll_cell.defvjp(_unroll_cell_forward, _unroll_cell_backward)


class Layer(nnx.Module):
    """One layer of a core. Biases are zero but where `Cell.unit_bias_block` says.

    The first `latches` of its units begin with closed gates, which input number `latch_input` opens.
    """

    def __init__(
        self,
        in_features: int,
        size: int,
        kind: str,
        *,
        latches: int = 0,
        latch_input: int = 0,
        initialisers: tuple[str, str] = ("orthogonal", "orthogonal"),
        key: Array,
    ):
        cell = CELLS[kind]
        count = 2 if cell.step else 1
        shapes = [(size, in_features), (size, size)][:count]
        kernel, *recurrent = kernels_of_gates(key, cell.gates, shapes, initialisers[:count])
        bias = jnp.zeros((cell.gates, size), jnp.float32)
        if cell.unit_bias_block is not None:
            bias = bias.at[cell.unit_bias_block].set(1.0)
        inputs = kernel.reshape(cell.gates, size, in_features)
        for block, sign in cell.keep_gates if latches else ():
            bias = bias.at[block, :latches].set(sign * LATCH_GATE_BIAS)
            inputs = inputs.at[block, :latches, latch_input].set(-sign * LATCH_INPUT_WEIGHT)
        self.kind = kind
        self.size = size
        self.kernel = nnx.data(inputs.reshape(-1, in_features))  # [gates * size, in]
        self.bias = nnx.data(bias.reshape(-1))
        if cell.step:
            self.recurrent = nnx.data(recurrent[0])  # [gates * size, size]
        if cell.candidate_bias:
            self.candidate_bias = nnx.data(jnp.zeros(size, jnp.float32))

    def project(self, x: Array) -> Array:
        """Project the inputs, feature-major: [T, N, in] -> [gates * size, T * N]."""
        return self.kernel @ x.reshape(-1, x.shape[-1]).T + self.bias[:, None]

    def unroll(self, state: State, projected: Array, first: Array) -> tuple[State, Array, State]:
        """Map state [N, size], projected inputs and first [T, N] to last state, outputs and states before each step.

        Outputs and states before each step are [T, N, size].
        """
        step = CELLS[self.kind].step
        if step is None:
            return self._unroll_in_parallel(state, projected.T.reshape(*first.shape, -1), first)
        blocks = projected.reshape(-1, self.size, *first.shape).transpose(0, 2, 1, 3)
        bias = self.candidate_bias if CELLS[self.kind].candidate_bias else jnp.zeros(self.size)
        initial_state = jax.tree.map(jnp.transpose, state)
        states = unroll_cell(step, self.recurrent, bias, initial_state, tuple(blocks), first)
        states = jax.tree.map(lambda part: jnp.swapaxes(part, 1, 2), states)
        before = jax.tree.map(lambda part, parts: jnp.concatenate([part[None], parts[:-1]]), state, states)
        return jax.tree.map(lambda part: part[-1], states), states[0], before

    def _unroll_in_parallel(self, state: State, projected: Array, first: Array) -> tuple[State, Array, State]:
        """minGRU, by an associative scan over time: log2 T rounds in place of T steps.

            z = σ(x_z),  h' = (1 - z) h + z x_h

        Each step is the affine map h -> keep h + add; the composition of two is one again. Where `first` is True the
        state before is selected away and not multiplied by 0, since it may hold NaN.

        Source: Feng et al. 2024, "Were RNNs All We Needed?", section 3.1 (the variant without log space).
        """
        gate, candidate = jnp.split(projected, 2, axis=-1)
        update = jax.nn.sigmoid(gate)
        clears = first[..., None]
        keep, add = jnp.where(clears, 0.0, 1.0 - update), update * candidate
        add = add.at[0].add(keep[0] * jnp.where(clears[0], 0.0, state[0]))
        Map = tuple[Array, Array, Array]  # keep, add, and whether any step of it clears the state

        def compose(earlier: Map, later: Map) -> Map:
            later_keep, later_add, clears = later
            earlier_keep, earlier_add = (jnp.where(clears, 0.0, x) for x in earlier[:2])
            return earlier_keep * later_keep, later_keep * earlier_add + later_add, earlier[2] | clears

        _, outputs, _ = jax.lax.associative_scan(compose, (keep, add, clears))
        before = jnp.concatenate([state[0][None], outputs[:-1]])
        return (outputs[-1],), outputs, (before,)


class RecurrentCore(nnx.Module):
    """A stack of recurrent layers, each on the outputs of the one before.

    Args:
      kind: "gru", "lstm", "rnn", "mgu" or "mingru".
      outputs: the output at each step: the "last" layer's output, or the "sum" of all layers'.
      latches: this many units of the first layer begin as latches: with closed gates, so that they keep their state
        until a certain input of about 1 opens them. Only their initial weights are set; these are learned as all
        others. After the biases for long spans of Tallec and Ollivier 2018, "Can Recurrent
        Neural Networks Warp Time?".
      latch_input: the number of that input.
      initialisers: of the kernels of each layer's input and of its hidden state, as
        `shoal.nets.initialisers.kernels_of_gates` takes them: gate by gate, or of all gates as a whole.
    Raises:
      ShoalError: an unknown kind, choice of outputs or initialiser, or latches in a core without gates.
    """

    def __init__(
        self,
        in_features: int,
        size: int,
        kind: str = "gru",
        *,
        layers: int = 1,
        outputs: str = "last",
        latches: int = 0,
        latch_input: int = 0,
        initialisers: tuple[str, str] = ("orthogonal", "orthogonal"),
        key: Array,
    ):
        for name, value, options in (("core", kind, CELLS), ("outputs", outputs, OUTPUTS)):
            if value not in options:
                raise ShoalError(
                    f"{name}={value!r} is none of {', '.join(options)}{nearest(value, options)}."
                )
        check_latches(kind, size, latches)
        self.kind = kind
        self.outputs = outputs
        self.in_features = in_features
        self.out_features = size
        first_key, *keys = jax.random.split(key, layers)
        # Only the first layer sees the input that opens latches.
        build = functools.partial(Layer, size=size, kind=kind, initialisers=initialisers)
        first = build(in_features, latches=latches, latch_input=latch_input, key=first_key)
        self.layers = nnx.List([first, *(build(size, key=layer_key) for layer_key in keys)])

    def initial(self, batch_shape: tuple[int, ...] = ()) -> Carry:
        """Make the memory of a sequence before its first step: zeros, each [*batch_shape, size]."""
        return initial(self.kind, self.out_features, len(self.layers), batch_shape)

    def unroll(self, carry: Carry, x: Array, first: Array) -> tuple[Carry, Array, Carry]:
        """Run over T steps; B stands for any number of batch axes.

        Args:
          carry: from before the first step, [*B, size].
          x: inputs, [T, *B, in_features].
          first: whether each step begins a new sequence, [T, *B].
        Returns:
          the carry after the last step; the outputs, [T, *B, size]; and the carries from before each step (from
          before a reset there, if there is one), [T, *B, size].
        Raises:
          ShoalError: shapes that do not fit each other.
        """
        if x.shape[-1:] != (self.in_features,) or x.shape[:-1] != first.shape or first.ndim < 1:
            raise ShoalError(
                f"x of shape {x.shape} and first of shape {first.shape} of a core must be "
                f"[T, ..., {self.in_features}] and [T, ...]."
            )
        return self.unroll_projected(carry, self.layers[0].project(x), first)

    def unroll_projected(self, carry: Carry, projected: Array, first: Array) -> tuple[Carry, Array, Carry]:
        """Run over T steps of inputs that the first layer has projected, `[gates * size, T * B]` (`Layer.project`)."""
        steps, *batch_shape = first.shape
        size = math.prod(batch_shape)
        carry = jax.tree.map(lambda part: part.reshape(size, part.shape[-1]), carry)
        first = first.reshape(steps, size)
        outputs: list[Array] = []
        after, before = [], []
        for layer, state in zip(self.layers, carry, strict=True):
            projected = layer.project(outputs[-1]) if outputs else projected
            new, output, states = layer.unroll(state, projected, first)
            after.append(new)
            outputs.append(output)
            before.append(states)
        output = self._combine_layers(outputs).reshape(steps, *batch_shape, self.out_features)
        last = jax.tree.map(lambda part: part.reshape(*batch_shape, part.shape[-1]), tuple(after))
        earlier = jax.tree.map(lambda part: part.reshape(steps, *batch_shape, part.shape[-1]), tuple(before))
        return last, output, earlier

    def outputs_of(self, carry: Carry) -> Array:
        """Return the output of the step after which the memory is `carry`; any leading axes."""
        return self._combine_layers([hidden for hidden, *_ in carry])

    def _combine_layers(self, outputs: Sequence[Array]) -> Array:
        """Return the last layer's output, or the sum of all layers' outputs."""
        return sum(outputs[1:], outputs[0]) if self.outputs == "sum" else outputs[-1]

    def __call__(self, carry: Carry, x: Array, first: Array) -> tuple[Carry, Array]:
        """Return the carry after the last step, and the outputs; see `unroll`."""
        carry, outputs, _ = self.unroll(carry, x, first)
        return carry, outputs
