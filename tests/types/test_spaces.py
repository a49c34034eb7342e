"""Spaces: what they draw, what they contain, and that they are values."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from shoal.algos.checks import check_distribution
from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.types import EnvSpec
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete, zeros

INF = np.inf
DRAWS = 4000


def draw(space, mask=None, n=DRAWS, seed=0):
    keys = jax.random.split(jax.random.key(seed), n)
    return jax.jit(jax.vmap(lambda key: space.sample(key, mask)))(keys)


def uniform_p(values, options):
    """The p-value of a chi-squared test that `values` are uniform over `options`."""
    counts = [np.sum(np.asarray(values) == option) for option in options]
    assert sum(counts) == np.size(values)
    return stats.chisquare(counts).pvalue


SPACES = [
    Discrete(1),
    Discrete(7),
    MultiDiscrete((2, 5, 1)),
    Box(-1, 1),
    Box(-2, [3.0, 4.0], dtype=float),
    Box(0, 255, (3, 2), np.uint8),
    Box(-128, 127, (8,), np.int8),
    Box(-(2**31), 2**31 - 1, (8,), np.int32),
    Box(0, 2**32 - 1, (8,), np.uint32),
    Box(0, 1, (8,), bool),
    Box(0, 1, (8,), jnp.bfloat16),
    Box(-3.4e38, 3.4e38, (8,)),
    Box([-INF, -INF, 1e6, 2], [INF, -1e6, INF, 2]),
    Box(0, 1, (0,)),
    Dict({"b": Discrete(3), "a": Dict({"x": Box(0, 1, (2,)), "m": MultiDiscrete([2, 2])})}),
    Dict({}),
]


@pytest.mark.full
def test_samples_lie_inside_with_shape_and_dtype():
    @jax.jit
    @jax.vmap
    def drawn(key):
        samples = [space.sample(key) for space in SPACES]
        return [(x, space.contains(x)) for x, space in zip(samples, SPACES, strict=True)]

    results = drawn(jax.random.split(jax.random.key(0), 200))
    for space, (samples, inside) in zip(SPACES, results, strict=True):
        assert np.all(inside), space
        one = jax.tree.map(lambda x: np.asarray(x)[0], samples)
        assert space.contains(one)
        if not isinstance(space, Dict):
            assert (one.shape, one.dtype) == (space.shape, space.dtype)
        element = zeros(space)
        assert jax.tree.structure(element) == jax.tree.structure(one)
        assert [(x.shape, x.dtype) for x in jax.tree.leaves(element)] == [
            (x.shape, x.dtype) for x in jax.tree.leaves(one)
        ]
        assert not any(np.any(x) for x in jax.tree.leaves(element))


@pytest.mark.parametrize("space", SPACES, ids=str)
def test_spaces_are_values(space):
    again = pickle.loads(pickle.dumps(space))
    assert again is not space
    assert (again, hash(again)) == (space, hash(space))
    others = [other for other in SPACES if other is not space]
    assert space not in others
    assert {space: "found"}[space] == "found"
    traces = []
    f = jax.jit(lambda x, s: traces.append(s) or x, static_argnums=1)
    f(1, space), f(1, again)
    assert len(traces) == 1


@pytest.mark.parametrize(
    ("space", "text"),
    [
        (Box(-1, INF, (2,)), "Box(-1, inf, (2,), float32)"),
        (Box(0, [1, 2.5]), "Box(0, [1.0, 2.5], (2,), float32)"),
        (Box(0, np.arange(1, 101)), "Box(0, [1 to 100], (100,), float32)"),
        (Box(0, 1, (0,), bool), "Box([], [], (0,), bool)"),
        (MultiDiscrete([2, 3]), "MultiDiscrete(nvec=(2, 3))"),
    ],
)
def test_spaces_have_short_names(space, text):
    assert repr(space) == text


@pytest.mark.parametrize("n", [1, 2, 7])
def test_discrete_is_uniform(n):
    assert n == 1 or uniform_p(draw(Discrete(n)), range(n)) > 1e-3


def test_discrete_draws_only_legal_actions():
    masks = jnp.array([[(bits >> i) & 1 for i in range(5)] for bits in range(1, 32)], bool)
    keys = jax.random.split(jax.random.key(0), 200)
    sample = jax.vmap(jax.vmap(Discrete(5).sample, (0, None)), (None, 0))
    for mask, samples in zip(masks, jax.jit(sample)(keys, masks), strict=True):
        assert set(np.unique(samples)) == set(np.flatnonzero(mask))


def test_masked_draws_are_uniform():
    mask = jnp.array([False, True, True, False, True])
    assert uniform_p(draw(Discrete(5), mask), [1, 2, 4]) > 1e-3
    # the masks of the parts stand one after the other
    samples = draw(MultiDiscrete((2, 3)), jnp.array([False, True, True, False, True]))
    assert set(np.unique(samples[:, 0])) == {1}
    assert uniform_p(samples[:, 1], [0, 2]) > 1e-3


def test_the_parts_of_a_multi_discrete_are_independent():
    samples = draw(MultiDiscrete((3, 3)))
    assert uniform_p(3 * samples[:, 0] + samples[:, 1], range(9)) > 1e-3


@pytest.mark.parametrize("x", [0, 6, np.int64(3), np.uint8(2), jnp.int32(5)])
def test_discrete_contains(x):
    assert Discrete(7).contains(x)


@pytest.mark.parametrize("x", [-1, 7, 2**40, 1.0, True, [1], None, "a", {"x": 1}, jnp.float32(0), np.nan])
def test_discrete_does_not_contain(x):
    assert not Discrete(7).contains(x)


def test_multi_discrete_contains():
    space = MultiDiscrete(np.array([2, 3]))
    assert space.nvec == (2, 3) and space.shape == (2,) and space == MultiDiscrete([2, 3])
    assert space.contains([1, 2])
    for x in ([2, 0], [0, 3], [-1, 0], [0.0, 1.0], [0], [[0, 0]], 0, None, [0, [1]]):
        assert not space.contains(x), x


@pytest.mark.parametrize("x", [[0, 0], [-1.0, 2.0], jnp.array([1.0, -1.0])])
def test_box_contains(x):
    assert Box(-1, [1, 2]).contains(x)


@pytest.mark.parametrize(
    "x", [[1.1, 0], [0, np.nan], [-INF, 0], [0], 0, [[0, 0]], [True, True], None, {"x": 0}, "ab", [0, [1]]]
)
def test_box_does_not_contain(x):
    assert not Box(-1, [1, 2]).contains(x)


def test_box_kinds_of_elements():
    assert Box(-INF, INF).contains(INF) and not Box(-INF, INF).contains(np.nan)
    pixels = Box(0, 255, (2,), np.uint8)
    assert pixels.contains(np.array([0, 255], np.uint8)) and pixels.contains([0, 255])
    assert not pixels.contains([0.5, 1.0]) and not pixels.contains([0, 256]) and not pixels.contains([0, -1])
    flags = Box(0, 1, (2,), bool)
    assert flags.contains([True, False]) and not flags.contains([1, 0])


def test_box_bounds():
    box = Box(-1, [1, 2])
    assert (box.shape, box.dtype, box.bounded) == ((2,), np.float32, True)
    assert not Box(-1, INF).bounded and not Box(-INF, 1).bounded and Box(0, 9, (), np.int32).bounded
    assert Box(0, 1, (2, 3)).low.shape == (2, 3)
    assert (Box(0, 1, dtype=np.float64).dtype, Box(0, 1, dtype=np.int64).dtype) == (np.float32, np.int32)


def test_box_does_not_share_its_bounds():
    high = np.ones(2, np.float32)
    box = Box(0, high)
    before = hash(box)
    high[0] = 5
    assert box == Box(0, [1, 1]) and hash(box) == before
    with pytest.raises(ValueError, match="read-only"):
        box.high[0] = 5


def test_equal_bounds_make_equal_boxes():
    assert Box(-0.0, 1) == Box(0.0, 1) and hash(Box(-0.0, 1)) == hash(Box(0.0, 1))
    assert Box(0, 1) != Box(0, 1, (1,)) and Box(0, 1) != Box(0, 1, dtype=np.int32) and Box(0, 1) != Box(0, 2)
    assert Box(0, 1) != Discrete(2) and Discrete(2) != MultiDiscrete((2,))


def test_box_follows_its_distributions():
    x = np.asarray(draw(Box([-2, -INF, 3, -INF], [5, INF, INF, -4])))
    assert stats.kstest(x[:, 0], stats.uniform(-2, 7).cdf).pvalue > 1e-3
    assert stats.kstest(x[:, 1], stats.norm.cdf).pvalue > 1e-3
    assert stats.kstest(x[:, 2] - 3, stats.expon.cdf).pvalue > 1e-3
    assert stats.kstest(-4 - x[:, 3], stats.expon.cdf).pvalue > 1e-3
    assert np.abs(np.corrcoef(x.T) - np.eye(4)).max() < 4 / np.sqrt(DRAWS)


@pytest.mark.quick("0-1-bool")
@pytest.mark.parametrize(
    ("low", "high", "dtype"), [(-2, 3, np.int32), (0, 3, np.uint8), (125, 127, np.int8), (0, 1, bool)]
)
def test_integer_boxes_are_uniform_with_both_ends(low, high, dtype):
    assert uniform_p(draw(Box(low, high, (), dtype)), range(low, high + 1)) > 1e-3


@pytest.mark.quick("int32")
@pytest.mark.parametrize("dtype", [np.int32, np.uint32])
def test_integer_boxes_reach_the_ends_of_their_type(dtype):
    info = np.iinfo(dtype)
    whole = np.asarray(draw(Box(info.min, info.max, (), dtype)), np.float64)
    width = float(info.max) - float(info.min)
    assert stats.kstest((whole - info.min) / width, stats.uniform.cdf).pvalue > 1e-3
    assert (
        uniform_p(draw(Box(info.max - 2, info.max, (), dtype)), [info.max - 2, info.max - 1, info.max]) > 1e-3
    )


def test_dict_is_a_sorted_mapping():
    space = Dict({"b": Discrete(3), "a": Box(0, 1)})
    assert list(space) == ["a", "b"] and len(space) == 2 and space["b"] == Discrete(3)
    assert space == Dict({"a": Box(0, 1), "b": Discrete(3)}) and space != Dict({"a": Box(0, 1)})
    assert not jax.tree.all(jax.tree.map(lambda part: part == 0, space))  # a leaf, not a pytree


def test_dict_contains():
    space = Dict({"a": Discrete(3), "b": Box(0, 1)})
    assert space.contains({"b": 0.5, "a": 2})
    for x in ({"a": 2}, {"a": 2, "b": 2.0}, {"a": 3, "b": 0.5}, {"a": 2, "b": 0.5, "c": 0}, 3, None):
        assert not space.contains(x), x


def test_dict_masks_go_by_name():
    space = Dict({"a": Discrete(3), "b": Discrete(3)})
    samples = draw(space, {"b": jnp.array([False, False, True])}, n=200)
    assert set(np.unique(samples["b"])) == {2} and set(np.unique(samples["a"])) == {0, 1, 2}


def test_the_parts_of_a_dict_are_drawn_independently():
    samples = draw(Dict({"a": Discrete(3), "b": Discrete(3)}))
    assert uniform_p(3 * samples["a"] + samples["b"], range(9)) > 1e-3


WRONG = {
    "a fraction in whole numbers": (
        lambda: Box(0.5, 1.5, dtype=np.int32),
        "low=0.5 cannot be a bound in int32",
    ),
    "NaN in whole numbers": (lambda: Box(0, np.nan, (2,), np.int32), "high=nan cannot be a bound in int32"),
    "beyond an image's range": (lambda: Box(0, 256, (2,), np.uint8), "high=256 cannot be a bound in uint8"),
    "beyond float32": (
        lambda: Box(-1e39, 1, (2,)),
        "low=-1e+39 cannot be a bound in float32; -inf or inf says",
    ),
    "a text": (lambda: Box("a", 1, (2,)), "low='a' cannot be a bound in float32"),
    "a dtype as the shape": (
        lambda: Box(0.5, 1.5, np.int32),
        "is not a shape; give a tuple of whole numbers, such as (3,)",
    ),
    "a fraction in the shape": (lambda: Box(0, 1, (2.5,)), "Box: shape=(2.5,) is not a shape"),
    "a truth value in the shape": (lambda: Box(0, 1, (True,)), "Box: shape=(True,) is not a shape"),
    "objects": (lambda: Box(0, 1, (2,), object), "dtype=object is none of real numbers"),
    "a ragged bound": (lambda: Box([[1, 2], [3]], 4, (2,)), "low=[[1, 2], [3]] does not fit shape=(2,)"),
    "a bound of another shape": (lambda: Box(0, np.ones(3), (2,)), "does not fit shape=(2,)"),
    "no mapping": (lambda: Dict(None), "Dict: None is not a mapping"),
    "an unknown dtype": (lambda: Box(0, 1, (2,), "foo"), "Box: dtype=foo is none of real numbers"),
    "a number as a name": (lambda: Dict({1: Discrete(2), "a": Discrete(2)}), "Dict: 1 names a space; text"),
    "a ragged list of values": (lambda: MultiDiscrete([[2, 3], [4]]), "has no numbers of values"),
    "fractions of values": (
        lambda: MultiDiscrete([2.7, 3]),
        "MultiDiscrete([2.7, 3]) has no numbers of values",
    ),
    "complex numbers": (lambda: Box(0, 1, (2,), np.complex64), "dtype=complex64 is none of real numbers"),
    "a fraction of values": (lambda: Discrete(2.5), "Discrete(2.5) has no number of values; a whole number"),
    "a truth value of values": (lambda: Discrete(True), "Discrete(True) has no number of values"),
    "a row of values": (lambda: Discrete([2, 3]), "Discrete([2, 3]) has no number of values"),
    "one number of values": (lambda: MultiDiscrete(3), "MultiDiscrete(3) has no numbers of values"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_a_space_is_refused_in_one_sentence(case):
    make, words = WRONG[case]
    with pytest.raises(ValueError, match=r"^[^\n]+\.$") as error:
        make()
    assert words in str(error.value)


def test_bounds_keep_their_values():
    assert MultiDiscrete([2.0, np.int64(3)]).nvec == MultiDiscrete(np.asarray([2, 3])).nvec == (2, 3)
    assert Discrete(np.float32(3.0)) == Discrete(np.int64(3)) == Discrete(3) and type(Discrete(3.0).n) is int
    largest = np.finfo(np.float32).max
    space = Box(-largest, largest, (2,))
    assert space.bounded and not space.can_be_scaled
    assert Box(-1, 1).can_be_scaled and not Box(0, INF).can_be_scaled
    assert Box(0.1, 1).low == np.float32(0.1) and Box(0.0, 255.0, dtype=np.uint8).high == 255


@pytest.mark.full
def test_actions_are_not_scaled_to_bounds_at_an_infinite_distance():
    """Half of the distance would be infinite, and every action NaN."""
    largest = np.finfo(np.float32).max
    spec = EnvSpec(Box(-1, 1, (2,)), Box(-largest, largest, (2,)))
    with pytest.raises(
        ShoalError, match=r"needs finite bounds, and .* has bounds at an infinite distance; .* works"
    ):
        check_distribution(PPOConfig(), spec)
    check_distribution(PPOConfig(action_scaling="clip"), spec)
