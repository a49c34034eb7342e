"""The names of other packages' environments are those that the packages themselves have."""

import importlib
import importlib.util
import inspect
import re
import sys

import jax
import jax.numpy as jnp
import pytest

import shoal
from shoal.base.errors import ShoalError
from shoal.base.imports import import_object
from shoal.envs.registry import make
from shoal.envs.suites.families import FAMILIES, closest_environment
from shoal.envs.suites.packages import import_suite

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
def test_the_names_of_a_family_are_those_of_its_package(prefix):
    family = FAMILIES[prefix]
    if not family.is_installed:
        pytest.skip(f"{family.title} is not installed: {family.install}")
    assert set(family.names) == names_in(prefix) - LEFT_OUT.get(prefix, set())
    assert len(family.names) == len(set(family.names))


@pytest.mark.parametrize("prefix", [x for x in FAMILIES if x != "jaxmarl/"])
def test_a_class_without_the_convention_is_refused(prefix):
    pytest.importorskip(FAMILIES[prefix].package)
    with pytest.raises(ShoalError, match=f"{prefix}json:JSONDecoder made a JSONDecoder, which has no `reset"):
        make(f"{prefix}json:JSONDecoder")


@pytest.mark.parametrize(
    ("name", "parameter", "sentence"),
    [("playground/CartpoleBalance", "ctrl_dt", " is a traced value"), ("jumanji/Snake-v1", "num_rows", "=<traced> is")],
)  # fmt: skip
def test_a_number_that_is_static_is_not_traced(name, parameter, sentence):
    pytest.importorskip(FAMILIES[name.partition("/")[0] + "/"].package)
    with pytest.raises(ShoalError, match=f"{name}: {parameter}{sentence}"):
        jax.vmap(lambda x: make(name, **{parameter: x}).action_space)(jnp.ones(2))


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
            importlib.import_module(FAMILIES[prefix].adapter).adapted(made[name]())
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


@pytest.mark.parametrize("package", ["brax", "gymnax", "jumanji"])
def test_a_state_is_not_taken_for_an_environment(package):
    pytest.importorskip(package)
    for value in states_and_parameters(package):
        with pytest.raises(
            ShoalError, match=rf"environment=.* is of type {type(value).__name__}; give an environment"
        ):
            shoal.train(value, total_steps=1)
