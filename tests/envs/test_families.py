"""The names of other packages' environments are those that the packages themselves have."""

import importlib
import importlib.util
import inspect
import itertools
import re
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.base.errors import ShoalError
from shoal.base.imports import import_object
from shoal.envs.registry import adapted, make
from shoal.envs.suites.conversion import converted
from shoal.envs.suites.families import FAMILIES, closest_environment
from shoal.envs.suites.packages import import_suite
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

KEY = jax.random.key(0)
# Names that an adapter does not offer: of interfaces of their own, or that need a further package.
LEFT_OUT = {
    "jaxmarl/": {
        *("LearnedPolicyEnemySMAX", "storm", "storm_2p"),
        *("ant_4x2", "halfcheetah_6x1", "hopper_3x1", "humanoid_9|8", "walker2d_2x3"),
        *("JaxRobotarium_arctic_transport", "JaxRobotarium_discovery", "JaxRobotarium_foraging"),
        *("JaxRobotarium_material_transport", "JaxRobotarium_navigation", "JaxRobotarium_predator_prey"),
        *("JaxRobotarium_rware", "JaxRobotarium_warehouse"),
    }
}


# What people type who know the names of other packages, and what they want; nothing where there is nothing like it.
TYPED = {
    "gymnax/Breakout-MinAtar": "Breakout-MinAtar ALE/Breakout-v5 BreakoutNoFrameskip-v4 MinAtar/Breakout-v1 "
    "minatar-breakout",
    "gymnax/Pong-misc": "ALE/Pong-v5 PongDeterministic-v4",
    "gymnax/SpaceInvaders-MinAtar": "SpaceInvaders-MinAtar ALE/SpaceInvaders-v5 minatar/space_invaders",
    "gymnax/Catch-bsuite": "Catch-bsuite gymnax/Cach-bsuite",
    "gymnax/FrozenLake-misc": "FrozenLake-v1",
    "jumanji/PacMan-v1": "ALE/MsPacman-v5 PacMan-v0",
    "brax/halfcheetah": "HalfCheetah-v4 halfcheetah",
    "brax/ant": "ant Ant-v5 brax-ant",
    "brax/walker2d": "Walker2d-v4",
    "brax/inverted_double_pendulum": "InvertedDoublePendulum-v4",
    "brax/reacher": "Reacher-v5",
    "playground/CheetahRun": "CheetahRun cheetah-run cheetah_run dm_control/cheetah-run-v0 gymnax/CheetahRun",
    "playground/BallInCup": "ball_in_cup-catch",
    "playground/Go1JoystickFlatTerrain": "Go1JoystickFlatTerrain",
    "jumanji/Snake-v1": "Snake-v1 Snake snake-v0",
    "jumanji/Game2048-v1": "Game2048-v1 2048",
    "jaxmarl/SMAX": "SMAX",
    "jaxmarl/MPE_simple_spread_v3": "MPE_simple_spread_v3 simple_spread_v3 MPE_simple_spred_v3",
    "jaxmarl/overcooked": "Overcooked",
    "MiniGrid-Empty-5x5": "MiniGrid-Empty-5x5-v0",
    "MiniGrid-DoorKey-8x8": "MiniGrid-DoorKey-8x8-v0",
    "CartPole-v1": "CartPole-v0 gym/CartPole-v1 cart-pole CartPol-v1",
    "mpe/Spread-v0": "mpe/Spraed-v0",
    "craftax/Craftax-Symbolic-v1": "Craftax-Symbolic-v1",
    "": "procgen-coinrun-v0 coinrun starpilot bigfish leaper LunarLander-v3 BipedalWalker-v3 Taxi-v3 ALE/Qbert-v5 "
    "ALE/Tennis-v5 ALE/Asteroids-v5 BabyAI-GoToRedBall-v0 CliffWalking-v0 AntMaze_UMaze-v4 chess go_9x9 quadruped-run",
}


@pytest.mark.parametrize(("typed", "meant"), [(x, y) for y, names in TYPED.items() for x in names.split()])
def test_the_environment_that_was_meant(typed, meant, monkeypatch):
    """Whether its package is installed or not: none is looked for."""
    monkeypatch.setattr(importlib.util, "find_spec", None)
    assert closest_environment(typed, shoal.environments()) == meant
    if typed.partition("/")[0] + "/" not in FAMILIES:
        with pytest.raises(ShoalError) as error:
            make(typed)
        assert str(error.value).endswith(
            f"did you mean {meant!r}?" if meant else "module:Name is one of your own."
        )


@pytest.mark.quick("craftax/")
@pytest.mark.parametrize("prefix", FAMILIES)
def test_every_listed_name_is_found_without_its_prefix(prefix):
    """Or the environment of Shoal's own of that name, or of another package."""
    for name in set(FAMILIES[prefix].names) - set(shoal.environments()):
        found = closest_environment(name, shoal.environments())
        assert found.partition("/")[2] == name, found


def names_in(prefix):
    """The names in a package's own registry."""
    if prefix == "craftax/":  # a function that compares texts
        source = inspect.getsource(import_suite(prefix, "craftax.craftax_env").make_craftax_env_from_name)
        return {name for name in re.findall(r'"(Craftax[\w-]+)"', source) if "AutoReset" not in name}
    if prefix == "jaxdem/":
        return set(FAMILIES[prefix].adapter().makers())
    module, table = {
        "brax/": ("brax.envs", "_envs"),
        "gymnax/": ("gymnax", "registered_envs"),
        "jaxmarl/": ("jaxmarl.registration", "registered_envs"),
        "jumanji/": ("jumanji.registration", "_REGISTRY"),
        "playground/": ("mujoco_playground._src.registry", "ALL_ENVS"),
    }[prefix]
    return set(getattr(import_suite(prefix, module), table))


@pytest.mark.full
@pytest.mark.parametrize("prefix", FAMILIES)
@pytest.mark.rare("jaxmarl/")
def test_the_names_of_a_family_are_those_of_its_package(prefix):
    family = FAMILIES[prefix]
    if not family.is_installed:
        pytest.skip(f"{family.title} is not installed: {family.install}")
    assert set(family.names) == names_in(prefix) - LEFT_OUT.get(prefix, set())
    assert len(family.names) == len(set(family.names))


@pytest.mark.full
@pytest.mark.parametrize("prefix", [x for x in FAMILIES if x != "jaxmarl/"])
def test_a_class_without_the_convention_is_refused(prefix):
    pytest.importorskip(FAMILIES[prefix].package)
    with pytest.raises(ShoalError, match=f"{prefix}json:JSONDecoder made a JSONDecoder, which has no `reset"):
        make(f"{prefix}json:JSONDecoder")


@pytest.mark.parametrize(
    ("name", "parameter", "sentence"),
    [
        ("playground/CartpoleBalance", "ctrl_dt", " is traced, as within"),
        ("jumanji/Snake-v1", "num_rows", "=<traced> is"),
    ],
)  # fmt: skip
def test_a_number_that_is_static_is_not_traced(name, parameter, sentence):
    pytest.importorskip(FAMILIES[name.partition("/")[0] + "/"].package)
    with pytest.raises(ShoalError, match=f"{name}: {parameter}{sentence}"):
        jax.vmap(lambda x: make(name, **{parameter: x}).action_space)(jnp.ones(2))


@pytest.mark.quick("gymnax/Catch-bsuite-rows")
@pytest.mark.parametrize(
    ("name", "parameter"),
    [("gymnax/Catch-bsuite", "rows"), ("gymnax/DeepSea-bsuite", "size"), ("jumanji/Snake-v1", "num_rows")],
)
def test_a_size_of_zero_is_named(name, parameter):
    pytest.importorskip(FAMILIES[name.partition("/")[0] + "/"].package)
    with pytest.raises(ShoalError, match=f"{name} cannot be made with {parameter}=0: "):
        make(name, **{parameter: 0})


@pytest.mark.parametrize("prefix", [x for x in FAMILIES if x not in ("jaxmarl/", "craftax/")])
def test_what_cannot_be_called_makes_no_environment(prefix):
    pytest.importorskip(FAMILIES[prefix].package)
    with pytest.raises(
        ShoalError, match=f"{prefix}math:pi is of type float, not a class or function that makes"
    ):
        make(f"{prefix}math:pi")


# By prefix a class with the convention, and a wrapper of its package.
CLASSES = {
    "brax/": ("brax.envs.fast:Fast", "brax.envs.wrappers.training:AutoResetWrapper"),
    "gymnax/": ("gymnax.environments.bsuite.catch:Catch", "gymnax.wrappers:FlattenObservationWrapper"),
    "jaxmarl/": ("jaxmarl.environments.mpe.simple:SimpleMPE", "jaxmarl.wrappers.baselines:MPELogWrapper"),
    "jumanji/": ("jumanji.environments:Snake", "jumanji.wrappers:AutoResetWrapper"),
    "playground/": ("fake_brax:PushedPoint", "brax.envs.wrappers.training:AutoResetWrapper"),
}


@pytest.mark.quick("brax/")
@pytest.mark.parametrize("prefix", CLASSES)
def test_classes_of_ones_own(prefix, monkeypatch):
    pytest.importorskip(FAMILIES[prefix].package)
    own, wrapper = map(import_object, CLASSES[prefix])
    # Named as classes of the packages that observe the time or keep their limit.
    named = {x: type(x, (own,), {"__module__": "mine"}) for x in ("HandOver", "MMST", "MetaMaze")}
    made = {"wrapped": lambda: wrapper(own()), "NoHash": type("NoHash", (own,), {"__hash__": None}), **named}
    for name, value in made.items():
        monkeypatch.setattr(sys.modules[__name__], name, value, raising=False)
    for name, sentence in [
        ("wrapped", "give the environment"),
        ("NoHash", "has no hash; a dataclass has one"),
    ]:
        with pytest.raises(ShoalError, match=f"^{prefix}{__name__}:{name} made a .*{sentence}"):
            make(f"{prefix}{__name__}:{name}")
        with pytest.raises(ShoalError, match=f"^(AutoReset|Flatten|MPELog|NoHash).*{sentence}"):
            FAMILIES[prefix].adapter().adapted(made[name]())
    for name in named if prefix != "jaxmarl/" else ():
        env = make(f"{prefix}{__name__}:{name}")
        assert env.max_steps >= 1000
        jax.eval_shape(
            lambda key, env=env: env.step(env.reset(key)[0], env.action_space.sample(key), key), KEY
        )


def states_and_parameters(package):
    """What a package returns or takes beside its environments."""
    module = importlib.import_module(package)
    if package == "gymnax":
        world, params = module.make("Catch-bsuite")
        observation, state = world.reset(KEY)
        return [params, state, (state, params), (observation, state)]
    if package == "jumanji":
        state, first = module.make("Snake-v1", num_rows=4, num_cols=4).reset(KEY)
        return [state, first, (state, first), (module.make("Snake-v1", num_rows=4, num_cols=4), state)]
    return [importlib.import_module("brax.envs").get_environment("fast").reset(KEY)]


@pytest.mark.quick("brax")
@pytest.mark.parametrize("package", ["brax", "gymnax", "jumanji"])
def test_a_state_is_not_taken_for_an_environment(package):
    pytest.importorskip(package)
    for value in states_and_parameters(package):
        with pytest.raises(
            ShoalError, match=rf"environment=.* is of type {type(value).__name__}; give an environment"
        ):
            shoal.train(value, total_steps=1)


# The real spaces of the packages: the call that makes one, and Shoal's space of the same elements.
WHOLE = {
    "gymnasium.spaces": {
        "Discrete(3)": Discrete(3),
        "Discrete(3, start=-1)": Discrete(3),
        "MultiBinary(3)": MultiDiscrete([2, 2, 2]),
        "MultiBinary((2, 1))": MultiDiscrete([2, 2]),
        "MultiDiscrete([2, 3])": MultiDiscrete([2, 3]),
        "MultiDiscrete([2, 3], start=[1, -2], dtype=np.int8)": MultiDiscrete([2, 3]),
        "MultiDiscrete(np.asarray([[2], [4]]))": MultiDiscrete([2, 4]),
        "MultiDiscrete([3], start=[2])": Discrete(3),
    },
    "gymnax.environments.spaces": {"Discrete(3)": Discrete(3)},
    "jaxmarl.environments.spaces": {
        "Discrete(3)": Discrete(3),
        "MultiDiscrete([2, 3])": MultiDiscrete([2, 3]),
    },
    "jumanji.specs": {
        "DiscreteArray(3, np.int8)": Discrete(3),
        "MultiDiscreteArray(np.asarray([2, 3]))": MultiDiscrete([2, 3]),
        "MultiDiscreteArray(np.asarray([[2], [3]]))": MultiDiscrete([2, 3]),
        "MultiDiscreteArray(np.asarray([4]))": Discrete(4),
    },
}
OTHERS = [
    ("gymnasium.spaces", "Box(-1, np.inf, (2,), np.float64)", Box(-1, np.inf, (2,))),
    ("gymnasium.spaces", "Box(0, 255, (2, 2), np.uint8)", Box(0, 255, (2, 2), np.uint8)),
    ("gymnasium.spaces", "Dict(b=m.Discrete(3, start=4), a=m.Dict(x=m.MultiBinary(2)))",
     Dict({"b": Discrete(3), "a": Dict({"x": MultiDiscrete([2, 2])})})),
    ("gymnax.environments.spaces", "Box(0, 1e9, (2,), jnp.uint8)", Box(0, 255, (2,), np.uint8)),
    ("jaxmarl.environments.spaces", "Dict({'a': m.Discrete(3)})", Dict({"a": Discrete(3)})),
    ("jaxmarl.environments.spaces", "Box(0, jnp.ones(2), (2,))", Box(0, 1, (2,))),
    ("jumanji.specs", "BoundedArray((2,), float, -1, 1)", Box(-1, 1, (2,))),
    ("jumanji.specs", "Array((2,), float)", Box(-np.inf, np.inf, (2,))),
]  # fmt: skip


def space_in(package, call):
    """A space of a package, whose module is `m` in the call."""
    pytest.importorskip(package.partition(".")[0])
    module = importlib.import_module(package)
    return eval(f"m.{call}", {"m": module, "np": np, "jnp": jnp})


def has(space, element):
    """Whether an element is in a space, as its package says."""
    if not hasattr(space, "validate"):
        return bool(space.contains(element))
    try:
        return space.validate(jnp.asarray(element)) is not None
    except ValueError:
        return False


def elements_of(space):
    """All elements of a small space of Shoal's."""
    parts = [range(n) for n in getattr(space, "nvec", (getattr(space, "n", 0),))]
    return [jnp.asarray(x, jnp.int32).reshape(space.shape) for x in itertools.product(*parts)]


@pytest.mark.quick("gymnasium.spaces-MultiDiscrete([3], start=[2])")
@pytest.mark.parametrize(("package", "call"), [(x, call) for x, calls in WHOLE.items() for call in calls])
def test_an_agent_plays_all_elements_of_a_space_and_no_others(package, call):
    space = space_in(package, call)
    made = converted(space)
    assert made.space == WHOLE[package][call] and hash(made) == hash(converted(space_in(package, call)))
    own = [made.to_package(x) for x in elements_of(made.space)]
    assert {x.dtype for x in own} == {jax.dtypes.canonicalize_dtype(space.dtype)}
    # Independently of Shoal: whatever the package admits among all arrays of small numbers of the shape.
    grid = itertools.product(range(-3, 7), repeat=int(np.prod(space.shape)))
    arrays = [np.asarray(x, own[0].dtype).reshape(space.shape) for x in grid]
    assert {x.tobytes() for x in map(np.asarray, own)} == {x.tobytes() for x in arrays if has(space, x)}
    back = [np.asarray(made.to_shoal(x)) for x in own]
    np.testing.assert_array_equal(back, elements_of(made.space))


@pytest.mark.full
@pytest.mark.parametrize(("package", "call", "space"), OTHERS)
def test_spaces_of_arrays_and_of_parts(package, call, space):
    own = space_in(package, call)
    made = converted(own)
    assert made.space == space
    element = made.to_package(space.sample(KEY))
    assert has(own, jax.tree.map(np.asarray, element)) and space.contains(made.to_shoal(element))


def test_the_shape_of_an_observation_is_that_which_is_made():
    element = jax.ShapeDtypeStruct((4,), np.int8)
    assert converted(space_in("gymnax.environments.spaces", "Box(0, 1, 7)"), element).space == Box(0, 1, (4,))
    bits = converted(space_in("gymnasium.spaces", "MultiBinary(4)"), element)
    assert bits.space == Box(0, 1, (4,), np.int8) and bits.space.contains(bits.to_shoal(np.ones(4, bool)))


@pytest.mark.parametrize(
    "call", ["Tuple([m.Discrete(2)])", "Text(3)", "Sequence(m.Discrete(2))", "OneOf([m.Discrete(2)])"]
)
def test_a_space_that_shoal_has_not_is_one_sentence(call):
    name = call.partition("(")[0]
    with pytest.raises(
        ShoalError, match=f"^a space of the class {name} has no equal in Shoal, which has Discrete"
    ):
        converted(space_in("gymnasium.spaces", call))


def echo(action_space, observation_space):
    """A world of gymnax's convention that shows the action that it was given."""
    cartpole = importlib.import_module("gymnax.environments.classic_control.cartpole").CartPole

    def step(self, key, state, action, params):
        return action, state, 0.0, jnp.asarray(False), {}

    members = {
        "action_space": lambda self, params=None: action_space,
        "observation_space": lambda self, params=None: observation_space,
        "reset_env": lambda self, key, params: (
            jnp.asarray(observation_space.sample()),
            cartpole.reset_env(self, key, params)[1],
        ),
        "step_env": step,
    }
    return type("Echo", (cartpole,), members)()


@pytest.mark.quick("MultiDiscrete([2, 3], start=[1, -2])")
@pytest.mark.parametrize(
    "call", ["Discrete(3, start=-1)", "MultiDiscrete([2, 3], start=[1, -2])", "MultiBinary(2)"]
)
def test_actions_and_observations_of_a_world_are_those_of_its_own_spaces(call):
    pytest.importorskip("gymnax")
    space = space_in("gymnasium.spaces", call)
    env = adapted(echo(space, space))
    state, timestep = env.reset(KEY)
    assert env.observation_space.contains(timestep.observation)
    for action in elements_of(env.action_space):
        shown = env.step(state, action, KEY)[1].observation  # Shoal's again, from 0
        assert env.observation_space.contains(shown) and jnp.array_equal(shown, action)


def test_each_agent_of_a_world_has_its_own_first_action():
    pytest.importorskip("jaxmarl")
    simple = importlib.import_module("jaxmarl.environments.mpe.simple_spread").SimpleSpreadMPE
    gym = importlib.import_module("gymnasium.spaces")
    spaces = {f"agent_{i}": gym.Discrete(3 + i, start=-i) for i in range(3)}
    members = {
        "action_space": lambda self, agent: spaces[agent],
        "step_env": lambda self, key, state, actions: (
            *simple.step_env(self, key, state, actions)[:4],
            actions,
        ),
    }
    env = adapted(type("Own", (simple,), members)())
    assert env.action_space == Discrete(5)
    state, _ = env.reset(KEY)
    _, timestep = env.step(state, jnp.asarray([2, 3, 4]), KEY)
    assert {k: int(x) for k, x in timestep.info.items()} == {"agent_0": 2, "agent_1": 2, "agent_2": 2}
