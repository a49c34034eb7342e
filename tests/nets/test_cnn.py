"""Convolutional torsos against loops in NumPy with the same weights, and what they say of bad sizes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from drawn_modules import drawn_module

from shoal.base.errors import ShoalError
from shoal.nets import cnn
from shoal.nets.cnn import CNN, GridCNN
from shoal.nets.convolution import ChannelNorm, convolve, convolve_plain, max_pool, max_pool_plain
from shoal.nets.residual import ResidualCNN

KEY = jax.random.key(0)


# Image, kernel, strides and padding.
CASES = [
    ((5, 6, 3), (2, 2), (1, 1), "valid"),
    ((7, 6, 2), (3, 2), (2, 1), "same"),
    ((12, 11, 1), (8, 5), (4, 3), "valid"),
    ((4, 4, 3), (3, 3), (2, 2), "same"),
    ((3, 3, 2), (3, 3), (1, 1), "valid"),
    ((5, 5, 1), (1, 1), (3, 3), "valid"),
    ((40, 40, 3), (5, 5), (2, 1), "same"),  # too large for products over patches
]


def test_convolution_equals_a_double_loop_and_its_gradients_equal_the_plain_forms():
    rng = np.random.default_rng(0)
    arrays = [
        (rng.normal(size=(2, *image)), rng.normal(size=(4, *kernel, image[2]))) for image, kernel, *_ in CASES
    ]

    @jax.jit
    def everything(arrays):
        def both(form, x, weights, how):
            def loss(x, weights):
                y = form(x, weights, *how)
                return jnp.sum(y * jnp.sin(jnp.arange(y.size).reshape(y.shape))), y

            return *jax.grad(loss, argnums=(0, 1), has_aux=True)(x, weights), form(x, weights, *how)

        forms = (convolve, convolve_plain)
        return [[both(form, *a, case[2:]) for form in forms] for a, case in zip(arrays, CASES, strict=True)]

    results = everything(jax.tree.map(jnp.float32, arrays))
    for case, (x, weights), ((gradients, y, alone), (slopes, plain, _)) in zip(
        CASES, arrays, results, strict=True
    ):
        np.testing.assert_allclose(y, in_numpy(x, weights, *case[2:]), atol=2e-5, err_msg=str(case))
        np.testing.assert_allclose(y, plain, atol=2e-5, err_msg=str(case))
        np.testing.assert_allclose(gradients[0], slopes[0], atol=5e-5, err_msg=str(case))
        np.testing.assert_allclose(gradients[1], slopes[1], atol=1e-4, err_msg=str(case))
        np.testing.assert_allclose(alone, y, atol=2e-5, err_msg=str(case))


def in_numpy(x, kernel, strides, padding):
    x, kernel = np.asarray(x, np.float64), np.asarray(kernel, np.float64)
    sizes, windows = x.shape[1:3], kernel.shape[1:3]
    if padding == "same":
        missing = [
            max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(sizes, windows, strides, strict=True)
        ]
        x = np.pad(x, [(0, 0), *((m // 2, m - m // 2) for m in missing), (0, 0)])
    rows, columns = ((n - k) // s + 1 for n, k, s in zip(x.shape[1:3], windows, strides, strict=True))
    y = np.zeros((len(x), rows, columns, len(kernel)))
    for i in range(rows):
        for j in range(columns):
            top, left = i * strides[0], j * strides[1]
            window = x[:, top : top + windows[0], left : left + windows[1]]
            y[:, i, j] = np.einsum("bmnc,omnc->bo", window, kernel)
    return y


def conv_in_numpy(conv, x, padding):
    return in_numpy(x, conv.kernel, conv.strides, padding) + np.asarray(conv.bias)


def pooled_in_numpy(x, window, strides):
    """The maxima of windows of an image that is padded as "same" says."""
    after = [
        max((-(-n // s) - 1) * s + k - n, 0) for n, k, s in zip(x.shape[1:3], window, strides, strict=True)
    ]
    x = np.pad(x, [(0, 0), *((m // 2, m - m // 2) for m in after), (0, 0)], constant_values=-np.inf)
    windows = np.lib.stride_tricks.sliding_window_view(x, window, (1, 2))
    return windows[:, :: strides[0], :: strides[1]].max((-2, -1))


def test_convolution_has_derivatives_forwards_and_of_second_order():
    rng = np.random.default_rng(1)
    x, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((2, 4, 4, 2), (3, 2, 2, 2)))

    @jax.jit
    def hessians(x, kernel):
        gradient = jax.grad(lambda x, kernel: jnp.sum(jnp.tanh(convolve(x, kernel))), argnums=(0, 1))
        return [kind(gradient, argnums=(0, 1))(x, kernel) for kind in (jax.jacfwd, jax.jacrev)]

    for forwards, backwards in zip(*map(jax.tree.leaves, hessians(x, kernel)), strict=True):
        np.testing.assert_allclose(forwards, backwards, atol=1e-4)
        assert np.max(np.abs(forwards)) > 0.1


def test_both_forms_of_max_pooling_agree_where_no_numbers_are_equal():
    """Bit for bit, gradients too up to the order of a sum of nine."""
    x = np.random.default_rng(0).permutation(2 * 8 * 9 * 3).reshape(2, 8, 9, 3).astype(np.float32) / 100
    ways = (((3, 3), (2, 2), "same"), ((2, 3), (2, 1), "valid"))

    @jax.jit
    def results(x):
        def loss(x, form, how):
            y = form(x, *how)
            return jnp.sum(jnp.sin(y)), y

        forms = max_pool, max_pool_plain
        return [[jax.grad(loss, has_aux=True)(x, form, how) for form in forms] for how in ways]

    for (gradient, y), (plain_gradient, plain_y) in results(x):
        np.testing.assert_array_equal(y, plain_y)
        np.testing.assert_allclose(gradient, plain_gradient, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(results(x)[0][0][1], pooled_in_numpy(x, (3, 3), (2, 2)))


@pytest.mark.parametrize(("padding", "channels_first"), [("valid", False), ("same", True)])
def test_cnn_equals_numpy_layer_by_layer(padding, channels_first):
    shape = (2, 9, 8) if channels_first else (9, 8, 2)
    options = dict(
        padding=padding, channels_first=channels_first, sizes=(5,), out_features=2, layer_norm=True
    )
    cnn = drawn_module(lambda key: CNN(shape, (3, 4), (3, (2, 3)), ((2, 1), 1), **options, key=key))
    y = x = np.random.default_rng(2).normal(size=(3, *shape)).astype(np.float32)
    y = np.moveaxis(y, 1, -1) if channels_first else y
    for conv, norm in zip(cnn.convs, cnn.norms, strict=True):
        y = conv_in_numpy(conv, y, padding)
        y = (y - y.mean(-1, keepdims=True)) / np.sqrt(y.var(-1, keepdims=True) + 1e-6)
        y = np.maximum(y * np.asarray(norm.scale) + np.asarray(norm.bias), 0.0)
    np.testing.assert_allclose(cnn(x), cnn.mlp(y.reshape(3, -1).astype(np.float32)), atol=2e-4)


def test_bytes_are_taken_and_the_defaults_are_mnihs():
    cnn = jax.eval_shape(lambda key: CNN((84, 84, 4), key=key), KEY)
    assert [conv.kernel.shape for conv in cnn.convs] == [(32, 8, 8, 4), (64, 4, 4, 32), (64, 3, 3, 64)]
    assert cnn.mlp.in_features == 7 * 7 * 64
    assert cnn.out_features == 512
    small = CNN((4, 4, 1), (2,), (2,), (2,), sizes=(), key=KEY)
    x = jax.random.randint(KEY, (2, 4, 4, 1), 0, 255)
    np.testing.assert_allclose(small(x.astype(jnp.uint8)), small(x.astype(jnp.float32)), rtol=1e-6)


def test_channel_norm_of_equal_channels_is_its_bias():
    norm = ChannelNorm(3)
    np.testing.assert_array_equal(norm(jnp.full((2, 2, 3), 7.0)), 0.0)


def test_grid_cnn_embeds_each_integer_of_a_cell():
    options = dict(embedding=3, channels=(4, 5), sizes=(6,), out_features=2)
    grid = drawn_module(lambda key: GridCNN((4, 5, 2), (6, 3), **options, key=key))
    assert [conv.kernel.shape for conv in grid.cnn.convs] == [(4, 2, 2, 6), (5, 2, 2, 4)]
    assert grid.cnn.mlp.in_features == 2 * 3 * 5
    x = np.random.default_rng(1).integers(0, 3, (7, 4, 5, 2))
    tiles, colours = map(np.asarray, grid.embeddings[0].tables)
    y = np.concatenate([tiles[x[..., 0]], colours[x[..., 1]]], axis=-1)
    for conv in grid.cnn.convs:
        y = np.maximum(conv_in_numpy(conv, y, "valid"), 0.0)
    expected = grid.cnn.mlp(y.reshape(7, -1).astype(np.float32))
    for dtype in (np.int32, np.uint8):
        np.testing.assert_allclose(grid(x.astype(dtype)), expected, atol=2e-5)


@pytest.mark.full
@pytest.mark.usefixtures("eager")
def test_the_windows_of_a_grid_may_differ_and_step(monkeypatch):
    options = dict(channels=(4, 5), kernels=(3, (1, 2)), strides=(2, (2, 1)))
    network = drawn_module(lambda key: GridCNN((6, 7, 2), (6, 3), **options, key=key))
    assert [conv.kernel.shape[1:3] for conv in network.cnn.convs] == [(3, 3), (1, 2)]
    assert network.out_features == 1 * 2 * 5
    x = jax.random.randint(jax.random.key(1), (4, 6, 7, 2), -1, 8)
    y = network.embeddings[0](x)
    for conv in network.cnn.convs:
        y = np.maximum(conv_in_numpy(conv, y, "valid"), 0.0)
    for most in (28, 27):  # by looking up, and by embedding
        monkeypatch.setattr(cnn, "MAX_LOOKUP_CODES", most)
        np.testing.assert_allclose(network(x), y.reshape(4, -1), rtol=1e-4, atol=2e-5)


@pytest.mark.full
@pytest.mark.usefixtures("eager")
def test_looking_up_what_cells_contribute_is_embedding_them(monkeypatch):
    """The output and all gradients, of cells out of range too; what cannot be looked up is embedded."""
    options = dict(embedding=3, channels=(4, 5), sizes=(6,))
    network = drawn_module(lambda key: GridCNN((4, 5, 2), (6, 3), **options, key=key))
    x = jax.random.randint(jax.random.key(1), (7, 4, 5, 2), -1, 8)
    weights = jax.random.normal(jax.random.key(2), (7, 6))

    def embedded(network, x):
        return network.cnn(network.embeddings[0](x))

    def both(function):
        def loss(network):
            y = function(network, x)
            return jnp.sum(weights * y), y

        return jax.jit(jax.value_and_grad(loss, has_aux=True))(network)

    for most, convolutions in ((28, 1), (27, 2)):
        monkeypatch.setattr(cnn, "MAX_LOOKUP_CODES", most)
        program = jax.jit(functools.partial(GridCNN.__call__, network)).lower(x).as_text()
        assert program.count("stablehlo.convolution") == convolutions
        ours, theirs = both(GridCNN.__call__), both(embedded)
        for ours_leaf, theirs_leaf in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
            np.testing.assert_allclose(ours_leaf, theirs_leaf, rtol=1e-4, atol=2e-5)
    monkeypatch.setattr(cnn, "MAX_LOOKUP_CODES", 28)
    np.testing.assert_array_equal(network(x.astype(jnp.int8)), network(x))


def test_residual_cnn_equals_numpy_layer_by_layer():
    network = drawn_module(
        lambda key: ResidualCNN((7, 6, 2), (3, 4), blocks=2, sizes=(5,), key=key), scale=0.3
    )
    assert len(network.convs) == 2 * (1 + 2 * 2)
    x = np.random.default_rng(2).normal(size=(3, 7, 6, 2)).astype(np.float32)
    convs = iter(network.convs)
    y = x
    for _ in range(2):
        y = pooled_in_numpy(conv_in_numpy(next(convs), y, "same"), (3, 3), (2, 2))
        for _ in range(2):
            inside = conv_in_numpy(next(convs), np.maximum(y, 0), "same")
            y = y + conv_in_numpy(next(convs), np.maximum(inside, 0), "same")
    assert y.shape == (3, 2, 2, 4)
    expected = network.mlp(np.maximum(y, 0).reshape(3, -1).astype(np.float32))
    np.testing.assert_allclose(network(x), expected, atol=2e-4)


def test_initial_kernels_are_of_the_stated_scale():
    networks = (CNN((8, 8, 2), (4, 9), (3, 2), (1, 1), sizes=(6,), out_features=2, scale=0.5, key=KEY),)
    networks += (ResidualCNN((8, 8, 2), (4,), sizes=(6,), out_features=2, scale=0.5, key=KEY),)
    for network in networks:
        kernels = [conv.kernel for conv in network.convs] + [layer.kernel for layer in network.mlp.layers]
        for kernel, scale in [*((k, 0.5) for k in kernels), (network.mlp.projection[0].kernel, 1.0)]:
            matrix = np.asarray(kernel, np.float64).reshape(len(kernel), -1)
            np.testing.assert_allclose(np.linalg.svd(matrix, compute_uv=False), scale, rtol=1e-5)
        for layer in [*network.convs, *network.mlp.layers]:
            np.testing.assert_array_equal(layer.bias, 0.0)


@pytest.mark.quick("<lambda>-x is float32; .* integers")
@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: CNN((8, 8), key=KEY), r"in_shape=\(8, 8\) of a CNN must be \(height, width, channels\)"),
        (lambda: CNN((3, 8, 0), channels_first=True, key=KEY), r"must be \(channels, height, width\)"),
        (lambda: CNN((84, 84, 4), (8,), (8, 4), (4, 2), key=KEY), r"kernels=\(8, 4\) .* equally many"),
        (
            lambda: CNN((16, 16, 3), key=KEY),
            r"a window of 4 x 4, which is larger than the 3 x 3 image that reaches convolution 2 of a CNN; .* padding",
        ),
        (lambda: CNN((8, 8, 3), (4,), (2,), ((1, 2, 3),), key=KEY), r"strides\[0\]=\(1, 2, 3\) .* a pair"),
        (lambda: CNN((8, 8, 3), (4,), (2,), (1,), padding="full", key=KEY), r"padding='full' .* 'valid' or"),
        (
            lambda: CNN((4, 4, 3), (4,), (2,), (1,), key=KEY)(jnp.zeros((2, 3, 4, 4))),
            r"x has shape \(2, 3, 4, 4\)",
        ),
        (
            lambda: GridCNN((5, 5, 3), (4, 4), key=KEY)(jnp.zeros((5, 5, 3), int)),
            r"x has shape \(1, 5, 5, 3\), which must end in \(2,\)",
        ),
        (lambda: GridCNN((5, 5, 1), (4,), key=KEY)(jnp.zeros((5, 5, 1))), r"x is float32; .* integers"),
    ],
)
def test_bad_sizes_are_named(build, message):
    with pytest.raises(ShoalError, match=message):
        build()
