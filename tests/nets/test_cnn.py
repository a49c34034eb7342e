"""Convolutional torsos against Flax's layers with the same weights, and what they say of bad sizes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from shoal.base.errors import ShoalError
from shoal.nets import cnn
from shoal.nets.cnn import CNN, GridCNN
from shoal.nets.convolution import ChannelNorm, convolve, convolve_plain, max_pool, max_pool_plain
from shoal.nets.mlp import MLP
from shoal.nets.residual import ResidualCNN

KEY = jax.random.key(0)


def flax_conv(conv, padding):
    """Flax's convolution with the same weights."""
    out, height, width, inputs = conv.kernel.shape
    theirs = nnx.Conv(
        inputs, out, (height, width), strides=conv.strides, padding=padding.upper(), rngs=nnx.Rngs(0)
    )
    theirs.kernel[...] = conv.kernel.transpose(1, 2, 3, 0)
    theirs.bias[...] = conv.bias
    return theirs


@jax.jit
def jittered(module, key):
    """With noise on every parameter, so that biases and norms are not trivial."""
    leaves, structure = jax.tree.flatten(module)
    keys = jax.random.split(key, len(leaves))
    noisy = [leaf + 0.3 * jax.random.normal(k, leaf.shape) for leaf, k in zip(leaves, keys, strict=True)]
    return jax.tree.unflatten(structure, noisy)


@pytest.mark.parametrize(
    "image, kernel, strides, padding",
    [
        ((5, 6, 3), (2, 2), (1, 1), "valid"),
        ((7, 6, 2), (3, 2), (2, 1), "same"),
        ((12, 11, 1), (8, 5), (4, 3), "valid"),
        ((4, 4, 3), (3, 3), (2, 2), "same"),
        ((3, 3, 2), (3, 3), (1, 1), "valid"),
        ((5, 5, 1), (1, 1), (3, 3), "valid"),
        ((14, 14, 13), (3, 3), (1, 1), "same"),  # large enough for lax's gradient
    ],
)
def test_convolution_equals_a_double_loop_and_its_gradients_equal_laxs(image, kernel, strides, padding):
    keys = jax.random.split(KEY, 3)
    x = jax.random.normal(keys[0], (2, *image))
    weights = jax.random.normal(keys[1], (4, *kernel, image[2]))

    def theirs(x, weights):
        return jax.lax.conv_general_dilated(
            x, weights, strides, padding.upper(), dimension_numbers=("NHWC", "OHWI", "NHWC")
        )

    def both(convolution):
        def loss(x, weights):
            y = convolution(x, weights)
            return jnp.sum(y * jnp.sin(jnp.arange(y.size).reshape(y.shape))), y

        return jax.jit(jax.value_and_grad(loss, argnums=(0, 1), has_aux=True))(x, weights)

    (_, y), gradients = both(lambda x, w: convolve(x, w, strides, padding))
    (_, expected), expected_gradients = both(theirs)
    np.testing.assert_allclose(y, in_numpy(x, weights, strides, padding), atol=2e-5)
    np.testing.assert_allclose(y, expected, atol=2e-5)
    np.testing.assert_allclose(gradients[0], expected_gradients[0], atol=5e-5)
    np.testing.assert_allclose(gradients[1], expected_gradients[1], atol=1e-4)
    np.testing.assert_allclose(jax.jit(lambda: convolve(x, weights, strides, padding))(), y, atol=2e-5)


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


def test_convolution_has_derivatives_forwards_and_of_second_order():
    x, kernel = jax.random.normal(KEY, (2, 4, 4, 2)), jax.random.normal(jax.random.key(1), (3, 2, 2, 2))
    loss = jax.jit(lambda x, kernel: jnp.sum(jnp.tanh(convolve(x, kernel))))
    for argument in (0, 1):
        hessian = jax.jit(jax.jacfwd(jax.grad(loss, argnums=argument), argnums=argument))(x, kernel)
        backwards = jax.jit(jax.jacrev(jax.grad(loss, argnums=argument), argnums=argument))(x, kernel)
        np.testing.assert_allclose(hessian, backwards, atol=1e-4)
        assert np.max(np.abs(hessian)) > 0.1


@pytest.mark.parametrize("size", [6, 40])  # by the patches of the image, and by `lax.conv`
@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.quick("valid-6", "same-40")
def test_both_forms_of_a_convolution_agree(size, padding):
    """Values and gradients within the rounding of sums of at most 40 x 40 products for each image."""
    keys = jax.random.split(jax.random.key(0), 3)
    x, kernel = jax.random.normal(keys[0], (2, size, size, 3)), jax.random.normal(keys[1], (16, 3, 3, 3))

    def results(form):
        def loss(x, kernel):
            y = form(x, kernel, (2, 1), padding)
            return jnp.mean(jnp.sin(y)), y

        return jax.jit(jax.grad(loss, (0, 1), has_aux=True))(x, kernel)

    for ours, plain in zip(*map(jax.tree.leaves, (results(convolve), results(convolve_plain))), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=1e-4, atol=2e-5)


def test_both_forms_of_max_pooling_agree_where_no_numbers_are_equal():
    """Bit for bit, gradients too up to the order of a sum of nine."""
    x = jax.random.permutation(jax.random.key(0), 2 * 8 * 9 * 3).reshape(2, 8, 9, 3) / 100.0

    def results(form):
        def loss(x):
            y = form(x, (3, 3), (2, 2), "same")
            return jnp.sum(jnp.sin(y)), y

        return jax.jit(jax.grad(loss, has_aux=True))(x)

    (gradient, y), (plain_gradient, plain_y) = results(max_pool), results(max_pool_plain)
    np.testing.assert_array_equal(y, plain_y)
    np.testing.assert_allclose(gradient, plain_gradient, rtol=1e-6, atol=1e-6)


def test_max_pool_equals_flaxs_and_passes_the_gradient_to_the_largest():
    x = jax.random.normal(KEY, (2, 7, 6, 3))
    for window, strides, padding in (((3, 3), (2, 2), "same"), ((2, 3), (2, 1), "valid")):
        expected = nnx.max_pool(x, window, strides, padding.upper())
        np.testing.assert_array_equal(max_pool(x, window, strides, padding), expected)
        weights = jax.random.normal(jax.random.key(1), expected.shape)
        ours = jax.grad(lambda x, *how: jnp.sum(weights * max_pool(x, *how)))(x, window, strides, padding)  # noqa: B023
        theirs = jax.grad(lambda x, *how: jnp.sum(weights * nnx.max_pool(x, *how)))(  # noqa: B023
            x, window, strides, padding.upper()
        )
        np.testing.assert_allclose(ours, theirs, atol=1e-6)


@pytest.mark.parametrize("padding", ["valid", "same"])
@pytest.mark.parametrize("channels_first", [False, True])
@pytest.mark.quick("False-valid", "True-same")
def test_cnn_equals_flaxs_layers(padding, channels_first):
    shape = (2, 9, 8) if channels_first else (9, 8, 2)
    cnn = CNN(
        shape,
        (3, 4),
        (3, (2, 3)),
        ((2, 1), 1),
        padding=padding,
        channels_first=channels_first,
        sizes=(5,),
        out_features=2,
        layer_norm=True,
        key=KEY,
    )
    cnn = jittered(cnn, jax.random.key(1))
    x = jax.random.normal(jax.random.key(2), (3, *shape))
    y = np.moveaxis(np.asarray(x), 1, -1) if channels_first else x
    for conv, norm in zip(cnn.convs, cnn.norms, strict=True):
        theirs = nnx.LayerNorm(len(norm.scale), epsilon=1e-6, rngs=nnx.Rngs(0))
        theirs.scale[...], theirs.bias[...] = norm.scale, norm.bias
        y = jax.nn.relu(theirs(flax_conv(conv, padding)(y)))
    np.testing.assert_allclose(jax.jit(CNN.__call__)(cnn, x), cnn.mlp(y.reshape(3, -1)), atol=2e-4)


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
    grid = GridCNN((4, 5, 2), (6, 3), embedding=3, channels=(4, 5), sizes=(6,), out_features=2, key=KEY)
    assert [conv.kernel.shape for conv in grid.cnn.convs] == [(4, 2, 2, 6), (5, 2, 2, 4)]
    assert grid.cnn.mlp.in_features == 2 * 3 * 5
    x = jax.random.randint(jax.random.key(1), (7, 4, 5, 2), 0, 3)
    tiles, colours = grid.embeddings[0].tables
    y = jnp.concatenate([tiles[x[..., 0]], colours[x[..., 1]]], axis=-1)
    for conv in grid.cnn.convs:
        y = jax.nn.relu(flax_conv(conv, "valid")(y))
    np.testing.assert_allclose(grid(x), grid.cnn.mlp(y.reshape(7, -1)), atol=2e-5)
    np.testing.assert_array_equal(grid(x.astype(jnp.uint8)), grid(x))


@pytest.mark.full
@pytest.mark.usefixtures("eager")
def test_the_windows_of_a_grid_may_differ_and_step(monkeypatch):
    network = jittered(
        GridCNN((6, 7, 2), (6, 3), channels=(4, 5), kernels=(3, (1, 2)), strides=(2, (2, 1)), key=KEY), KEY
    )
    assert [conv.kernel.shape[1:3] for conv in network.cnn.convs] == [(3, 3), (1, 2)]
    assert network.out_features == 1 * 2 * 5
    x = jax.random.randint(jax.random.key(1), (4, 6, 7, 2), -1, 8)
    y = network.embeddings[0](x)
    for conv in network.cnn.convs:
        y = jax.nn.relu(flax_conv(conv, "valid")(y))
    for most in (28, 27):  # by looking up, and by embedding
        monkeypatch.setattr(cnn, "MAX_LOOKUP_CODES", most)
        np.testing.assert_allclose(network(x), y.reshape(4, -1), rtol=1e-4, atol=2e-5)


@pytest.mark.full
@pytest.mark.usefixtures("eager")
def test_looking_up_what_cells_contribute_is_embedding_them(monkeypatch):
    """The output and all gradients, of cells out of range too; what cannot be looked up is embedded."""
    network = jittered(GridCNN((4, 5, 2), (6, 3), embedding=3, channels=(4, 5), sizes=(6,), key=KEY), KEY)
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


def test_residual_cnn_equals_flaxs_layers():
    network = jittered(ResidualCNN((7, 6, 2), (3, 4), blocks=2, sizes=(5,), key=KEY), jax.random.key(1))
    assert len(network.convs) == 2 * (1 + 2 * 2)
    x = jax.random.normal(jax.random.key(2), (3, 7, 6, 2))
    convs = iter([flax_conv(conv, "same") for conv in network.convs])
    y = x
    for _ in range(2):
        y = nnx.max_pool(next(convs)(y), (3, 3), (2, 2), "SAME")
        for _ in range(2):
            inside = next(convs)(jax.nn.relu(y))
            y = y + next(convs)(jax.nn.relu(inside))
    assert y.shape == (3, 2, 2, 4)
    expected = network.mlp(jax.nn.relu(y).reshape(3, -1))
    np.testing.assert_allclose(jax.jit(ResidualCNN.__call__)(network, x), expected, atol=2e-4)


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


@pytest.mark.parametrize(
    "build, message",
    [
        (lambda: CNN((8, 8), key=KEY), r"in_shape=\(8, 8\) of a CNN must be \(height, width, channels\)"),
        (lambda: CNN((3, 8, 0), channels_first=True, key=KEY), r"must be \(channels, height, width\)"),
        (lambda: CNN((84, 84, 4), (8,), (8, 4), (4, 2), key=KEY), r"kernels=\(8, 4\) .* equally many"),
        (
            lambda: CNN((16, 16, 3), key=KEY),
            r"kernels\[1\]=\(4, 4\) of a CNN is larger than the 3 x 3 image that reaches it; .* padding='same'",
        ),
        (lambda: CNN((8, 8, 3), (0,), (2,), (1,), key=KEY), r"channels\[0\]=0 of a CNN .* at least 1"),
        (
            lambda: CNN((8, 8, 3), (4,), (-2,), (1,), key=KEY),
            r"kernels\[0\]=-2 must be an integer of at least",
        ),
        (lambda: CNN((8, 8, 3), (4,), (2,), ((1, 2, 3),), key=KEY), r"strides\[0\]=\(1, 2, 3\) .* a pair"),
        (lambda: CNN((8, 8, 3), (4,), (2,), (1,), padding="full", key=KEY), r"padding='full' .* 'valid' or"),
        (lambda: CNN((8, 8, 3), (4,), (2,), (1,), activation="rleu", key=KEY), r"'rleu'.* mean 'relu'\?"),
        (lambda: CNN((8, 8, 3), (4,), (2,), (1,), initialiser="he", key=KEY), r"initialiser='he' is none"),
        (
            lambda: CNN((4, 4, 3), (4,), (2,), (1,), key=KEY)(jnp.zeros((2, 3, 4, 4))),
            r"x has shape \(2, 3, 4, 4\)",
        ),
        (lambda: GridCNN((5, 5, 3), (4, 4), key=KEY), r"values=\(4, 4\) of a GridCNN must be 3 numbers"),
        (lambda: GridCNN((3, 3, 2), (4, 4), key=KEY), r"kernels\[2\]=\(2, 2\) .* the 1 x 1 image"),
        (
            lambda: GridCNN((5, 5, 2), (4, 4), kernels=(2, 2), key=KEY),
            r"kernels=\(2, 2\) .* equally many",
        ),
        (lambda: GridCNN((5, 5, 1), (4,), key=KEY)(jnp.zeros((5, 5, 1))), r"x is float32; .* integers"),
        (
            lambda: ResidualCNN((8, 8, 1), (4, -1), key=KEY),
            r"channels=\(4, -1\) .* ResidualCNN must be integers",
        ),
        (lambda: ResidualCNN((8, 8, 1), (4,), blocks=-1, key=KEY), r"blocks=-1 of a ResidualCNN"),
    ],
)
def test_bad_sizes_are_named(build, message):
    with pytest.raises(ShoalError, match=message):
        build()


def test_an_mlp_follows_whatever_the_convolutions_give():
    cnn = CNN((4, 4, 1), (2,), (2,), (2,), sizes=(), key=KEY)
    assert isinstance(cnn.mlp, MLP)
    assert cnn.out_features == 2 * 2 * 2
