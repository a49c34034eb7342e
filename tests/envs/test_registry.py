"""Names, parameters, and the sentences for those that do not exist."""

import subprocess
import sys

import jax.numpy as jnp
import pytest

import shoal
from shoal.base.errors import ShoalError
from shoal.envs import (
    TimeLimit,
    environment,
    environments,
    make,
    parameters_of,
    register,
    registry,
    restart,
    transition,
)
from shoal.envs.classic.cartpole import CartPole
from shoal.types.spaces import Box, Discrete


@environment
class Lamp:
    """On or off; `sizes` and `bright` make fields of all kinds."""

    count: int
    bright: bool = False
    power: float = 1.0
    label: str = "lamp"

    observation_space = Box(0.0, 1.0, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        return (), restart(jnp.zeros(1))

    def step(self, state, action, key):
        return (), transition(jnp.zeros(1), self.power)


def lamp_of(power: float = 3.0):
    return Lamp(1, power=power)


NOT_AN_ENVIRONMENT = 7


def test_parameters_of_the_environment_and_its_time_limit_are_given_flat():
    env = make("CartPole-v1", gravity=9.9, max_episode_steps=20)
    assert env == TimeLimit(CartPole(gravity=9.9), 20)
    assert make("CartPole-v1").max_steps == 500
    assert make("CartPole-v1", max_episode_steps=None) == CartPole()


def test_module_and_name():
    assert make(f"{__name__}:Lamp", count=2, max_episode_steps=4) == TimeLimit(Lamp(2), 4)
    assert make(f"{__name__}:lamp_of", power=2.0) == Lamp(1, power=2.0)


def test_register(monkeypatch):
    monkeypatch.setattr("shoal.envs.registry._entries", {})
    register("Lamp", Lamp, max_episode_steps=3)
    register("Another", f"{__name__}:lamp_of")
    assert environments() == ["Another", "Lamp"]
    assert make("Lamp", count=1) == TimeLimit(Lamp(1), 3)
    assert make("Another") == Lamp(1, power=3.0)
    with pytest.raises(ShoalError, match="'Lamp' is taken already"):
        register("Lamp", lamp_of)
    register("Lamp", lamp_of, replace=True)
    assert make("Lamp") == Lamp(1, power=3.0)
    with pytest.raises(ShoalError, match="try 'a-b'"):
        register("a:b", Lamp)


def test_a_name_may_stand_for_parameters(monkeypatch):
    monkeypatch.setattr("shoal.envs.registry._entries", {})
    register("Lamp-3", Lamp, max_episode_steps=5, parameters={"count": 3, "power": 2.0})
    assert make("Lamp-3") == TimeLimit(Lamp(3, power=2.0), 5)
    assert make("Lamp-3", count=4, max_episode_steps=None) == Lamp(4, power=2.0)
    assert parameters_of("Lamp-3")["count"].default == 3
    assert parameters_of("Lamp-3")["bright"].default is False
    register("Lamp-x", Lamp, parameters={"kount": 3})
    with pytest.raises(ShoalError, match=r"no parameter 'kount'.*did you mean 'count'"):
        make("Lamp-x")


def test_parameters_of():
    parameters = parameters_of(f"{__name__}:Lamp")
    assert list(parameters) == ["max_episode_steps", "trial_episodes", "count", "bright", "power", "label"]
    assert parameters["power"].annotation is float
    assert parameters["power"].default == 1.0
    assert parameters_of("Acrobot-v1")["max_episode_steps"].default == 500


def test_every_registered_environment_can_be_made():
    assert {"Acrobot-v1", "CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Pendulum-v1"} <= set(
        environments()
    )
    for name in environments():
        assert make(name).num_agents >= 1


@pytest.mark.parametrize(
    ("name", "parameters", "sentence"),
    [
        ("Cartpole", {}, "there is no environment 'Cartpole'; did you mean 'CartPole-v1'?"),
        ("LunarLander-v2", {}, "there is no environment 'LunarLander-v2'; `shoal envs` lists them, and "),
        ("CartPole-v1", {"gravty": 1.0}, "has no parameter 'gravty' (it has angle_limit, cart_mass, force, "),
        ("CartPole-v1", {"max_steps": 1}, "did you mean 'max_episode_steps'?"),
        ("CartPole-v1", {"gravity": "9.8"}, "gravity='9.8' is not a number; give one such as 9.8."),
        ("CartPole-v1", {"gravity": True}, "gravity=True is not a number"),
        ("CartPole-v1", {"max_episode_steps": 0}, "max_episode_steps=0 is not a whole number of 1 or more"),
        ("CartPole-v1", {"max_episode_steps": 2.5}, "max_episode_steps=2.5 is not a whole number of 1 or more"),
        (f"{__name__}:Lamp", {}, "needs the parameter 'count', which has no default"),
        (f"{__name__}:Lamp", {"count": 1.5}, "count=1.5 is not a whole number"),
        (f"{__name__}:Lamp", {"count": 1, "bright": 1}, "bright=1 is not True or False; give one such as False."),
        (f"{__name__}:Lmp", {}, f"{__name__} has no 'Lmp'; did you mean 'Lamp'?"),
        (f"{__name__}:NOT_AN_ENVIRONMENT", {}, "is of type int, not a class or function"),
        ("gymnax", {}, "'gymnax' begins the names of gymnax's environments, such as gymnax/Acrobot-v1; `shoal envs`"),
        ("fractions:Fraction", {}, "made a Fraction, which has no `observation_space`"),
        ("no_such_module:Env", {}, "there is no module 'no_such_module'"),
    ],
)  # fmt: skip
def test_bad_input_is_answered_in_one_sentence(name, parameters, sentence):
    with pytest.raises(ShoalError) as raised:
        make(name, **parameters)
    assert sentence in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_module_whose_own_import_fails_is_not_called_missing(tmp_path, monkeypatch):
    (tmp_path / "broken_world.py").write_text("import no_such_dependency\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ShoalError, match=r"broken_world.py, line 1: .*No module named 'no_such_dependency'"):
        make("broken_world:Env")


def test_the_decorator_names_what_a_class_lacks():
    with pytest.raises(ShoalError, match="the environment Half has no `step`"):

        @environment
        class Half:
            observation_space = Box(0.0, 1.0)
            action_space = Discrete(2)

            def reset(self, key): ...


def test_the_decorator_gives_defaults_and_keeps_what_is_there():
    assert Lamp(1).num_agents == 1
    assert dict(Lamp(1).info_summaries) == {}
    with pytest.raises(TypeError):
        Lamp(1).info_summaries["x"] = "sum"

    @environment
    class Several:
        num_agents: int
        observation_space = Box(0.0, 1.0)
        action_space = Discrete(2)
        info_summaries = {"eaten": "sum"}  # noqa: RUF012

        def reset(self, key): ...
        def step(self, state, action, key): ...

    assert Several(3).num_agents == 3
    assert Several(3).info_summaries == {"eaten": "sum"}
    with pytest.raises(TypeError, match="num_agents"):
        Several()


def test_listing_the_names_does_not_import_jax():
    program = "import sys, shoal.envs as e; e.environments(); sys.exit('jax' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@environment
class Named(Lamp):
    """Fields that have the names of arguments."""

    count: int = 1
    name: str = "lamp"
    seed: float = 1.0
    steps: int = 3


@pytest.mark.full
def test_a_field_may_have_the_name_of_an_argument():
    world = make(f"{__name__}:Named", name="mine", seed=2.0, steps=4)
    assert (world.name, world.seed, world.steps) == ("mine", 2.0, 4)
    fields = {"name": "mine", "seed": 2.0, "steps": 4}
    ignore = ("key-ignored", "action-ignored", "never-ends")
    world = f"{__name__}:Named"
    assert (
        shoal.check(world, keys=2, steps=2, max_steps=2, ignore=ignore, environment_parameters=fields) == []
    )
    assert shoal.rollout(world, num_envs=2, num_steps=2, devices=1, environment_parameters=fields).steps == 4
    with pytest.raises(ShoalError, match="Named has no parameter 'colour'"):
        shoal.rollout(world, num_envs=2, num_steps=2, environment_parameters={"colour": 3})


def test_a_class_that_is_decorated_twice_is_as_it_was():
    again = environment(Lamp)
    assert again is Lamp
    assert (
        environment(environment(type("Twice", (Lamp,), {"__annotations__": {"more": float}, "more": 2.0})))(
            1
        ).more
        == 2.0
    )


@pytest.mark.parametrize("module", ["gymnasium.wrappers", "dm_env.some", "navix.environments", "mine"])
def test_an_environment_of_another_library_is_refused_in_one_sentence(module):
    """Each has some of the attributes of Shoal's."""
    names = {
        "gymnasium": ("action_space", "observation_space", "spec"),
    }
    attributes = dict.fromkeys(("reset", "step", *names.get(module.split(".")[0], ("action_size",))))
    made = type("Foreign", (), attributes | {"__module__": module})()
    hint = (
        "is @environment missing"
        if module == "mine"
        else f"it is an environment of {module.split('.')[0]}, and Shoal"
    )
    for call in (shoal.train, shoal.rollout, shoal.check):
        with pytest.raises(
            ShoalError, match=rf"^the environment is a Foreign, which has no `\w+`; {hint}[^\n]*[.?]$"
        ):
            call(made)


def test_parts_of_the_package_need_no_import_of_their_own():
    code = (
        "import sys, shoal; assert 'jax' not in sys.modules; shoal.envs; assert 'jax' not in sys.modules; "
        "print(shoal.envs.TimeLimit.__name__, shoal.types.spaces.Discrete(2), shoal.nets.__name__)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "TimeLimit Discrete(n=2) shoal.nets\n"


def test_every_built_in_entry_is_one_that_can_be_registered(monkeypatch):
    """They are listed without the checks of `register`."""
    built_in = registry._entries
    monkeypatch.setattr(registry, "_entries", {})
    for name, entry in built_in.items():
        registry.register(
            name, entry.constructor, max_episode_steps=entry.max_episode_steps, parameters=entry.parameters
        )
    assert registry._entries == built_in
