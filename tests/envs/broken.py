"""Environments that are each wrong in one way, with the rule that must find it and what it must say.

All but a few are a small random walk with a single thing changed, so that any further finding would be
a false alarm of the checker.
"""

import random
import sys
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from shoal.envs.base import environment, restart, transition
from shoal.types import TimeStep
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete


class Case(NamedTuple):
    """An environment, the rules that it breaks, and what the sentences must contain."""

    make: Any
    rules: tuple[str, ...]
    words: tuple[str, ...]
    options: Mapping[str, Any] = MappingProxyType({})


CASES: dict[str, Case] = {}


def breaks(*rules: str, words: tuple[str, ...], is_environment: bool = True, **options: Any) -> Any:
    """Makes a class an environment and registers it as a case."""

    def register(cls: Any) -> Any:
        cls = environment(cls) if is_environment else cls
        CASES[cls.__name__] = Case(cls, rules, words, options)
        return cls

    return register


class WalkState(NamedTuple):
    position: Any
    velocity: Any


@environment
class Walk:
    """A good environment: a particle is pushed left or right until it leaves [-1, 1]."""

    force: float = 0.1

    observation_space = Box(-3, 3, (2,))
    action_space = Discrete(3)

    def reset(self, key):
        position = jax.random.uniform(key, minval=-0.5, maxval=0.5)
        state = WalkState(position, jnp.zeros_like(position))
        return state, restart(jnp.stack(state))

    def step(self, state, action, key):
        velocity = 0.9 * state.velocity + self.force * (action - 1)
        state = WalkState(state.position + velocity, velocity)
        outside = jnp.abs(state.position) > 1
        return state, transition(jnp.stack(state), -(state.position**2), terminated=outside)


def changed(which: str, **fields: Any) -> tuple[Any, Any]:
    """A reset and a step of Walk whose time-steps have fields replaced by functions of the time-step."""

    def replaced(timestep: TimeStep) -> TimeStep:
        return timestep._replace(**{name: function(timestep) for name, function in fields.items()})

    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return state, replaced(timestep) if which != "step" else timestep

    def step(self, state, action, key):
        state, timestep = Walk.step(self, state, action, key)
        return state, replaced(timestep) if which != "reset" else timestep

    return reset, step


def variant(name: str, rules: Any, words: Any, which: str = "both", attributes: Any = None, **fields: Any):
    """Registers a Walk whose time-steps (of reset, step or both) have fields replaced."""
    reset, step = changed(which, **fields)
    body = {"reset": reset, "step": step, "__doc__": name, **(attributes or {})}
    rules, words = ((x,) if isinstance(x, str) else x for x in (rules, words))
    CASES[name] = Case(environment(type(name, (Walk,), body)), rules, words)


def with_space(name: str, words: Any, **spaces: Any) -> None:
    """Registers a Walk with other spaces; nothing is traced then."""
    words = (words,) if isinstance(words, str) else words
    make = environment(type(name, (Walk,), spaces))
    CASES[name] = Case(make, ("space", "not-checked"), words)


# --- Spaces -------------------------------------------------------------------------------------

with_space("DiscreteZero", "action_space is Discrete(0)", action_space=Discrete(0))
with_space("DiscreteNegative", "Discrete(-3)", action_space=Discrete(-3))
with_space("DiscreteHuge", "at most 2147483647", action_space=Discrete(2**40))
with_space("MultiDiscreteEmpty", "MultiDiscrete(())", action_space=MultiDiscrete(()))
with_space("MultiDiscreteZero", "action_space.nvec[1] is 0", action_space=MultiDiscrete((3, 0)))
with_space(
    "BoxUpsideDown",
    ("observation_space is a Box with low 1 and high -1 at [1]",),
    observation_space=Box((-1, 1), (1, -1)),
)
with_space("BoxNaN", "low nan and high 1", observation_space=Box((np.nan, -1), (1, 1)))
with_space("BoxInfinite", "low inf and high inf", observation_space=Box((-1, np.inf), (1, np.inf)))
with_space("BoxEmpty", "shape (0,)", observation_space=Box(-1, 1, (0,)))
with_space("DictEmpty", "Dict({})", observation_space=Dict({}))
with_space(
    "DictNested", "observation_space['eye']['n'] is Discrete(0)",
    observation_space=Dict({"eye": Dict({"n": Discrete(0)})}),
)  # fmt: skip
for name, (names, words) in {
    "CriticOnlyUnknown": (("sate",), "critic_only names 'sate', but observation_space has 'eye', 'state'"),
    "CriticOnlyText": ("state", "critic_only is 'state'; a tuple of names would be right"),
    "CriticOnlyAll": (("eye", "state"), "critic_only names all entries of observation_space"),
}.items():
    body = {
        "observation_space": Dict({"eye": Box(-1, 1, (2,)), "state": Box(-1, 1, (2,))}),
        "critic_only": names,
    }
    CASES[name] = Case(environment(type(name, (Walk,), body)), ("critic-only", "not-checked"), (words,))
CASES["ActorOnlyToo"] = Case(
    environment(
        type(
            "ActorOnlyToo",
            (Walk,),
            {
                "observation_space": Dict({"eye": Box(-1, 1, (2,)), "state": Box(-1, 1, (2,))}),
                "critic_only": ("state",),
                "actor_only": ("state", "eyes"),
            },
        )
    ),
    ("actor-only", "not-checked"),
    (
        "actor_only names 'eyes', but observation_space has 'eye', 'state'",
        "critic_only and actor_only both name 'state', which nobody is shown",
    ),
)
CASES["CriticOnlyWithoutDict"] = Case(
    environment(type("CriticOnlyWithoutDict", (Walk,), {"critic_only": ("state",)})),
    ("critic-only", "not-checked"),
    ("critic_only is ('state',), but observation_space is Box",),
)
with_space("NotASpace", ("action_space is a builtins.int",), action_space=3)
with_space("NoSpace", ("NoneType",), observation_space=None)


# --- The protocol -------------------------------------------------------------------------------


@breaks(
    "protocol",
    "not-checked",
    words=("no `action_space`", "no `num_agents`", "no method `step(state, action, key)`"),
    is_environment=False,
)
class Unfinished:
    observation_space = Box(-1, 1, (2,))
    info_summaries = MappingProxyType({})

    def reset(self, key):
        return (), restart(jnp.zeros(2))


@breaks("protocol", "not-checked", words=("observation_space raises KeyError: 'missing'",))
class SpaceRaises(Walk):
    @property
    def observation_space(self):
        return {}["missing"]


for agents in (0, 1.5, True):
    name = f"Agents{agents}"
    CASES[name] = Case(
        environment(type(name, (Walk,), {"num_agents": agents})),
        ("protocol", "not-checked"),
        (f"num_agents is {agents}",),
    )

CASES["AClass"] = Case(lambda: Walk, ("protocol", "not-checked"), ("Walk is a class",))
CASES["ANumber"] = Case(lambda: 3, ("protocol", "not-checked"), ("int has no `observation_space`",))


# --- What reset and step return -----------------------------------------------------------------


@breaks("return-value", "not-checked", words=("step returns 5 values; it must return (state, TimeStep)",))
class GymnasiumTuple(Walk):
    def step(self, state, action, key):
        state, timestep = Walk.step(self, state, action, key)
        return state, timestep.observation, timestep.reward, timestep.last, {}


@breaks("return-value", "not-checked", words=("reset returns float32[2] as its second value",))
class ResetObservation(Walk):
    def reset(self, key):
        return Walk.reset(self, key)[0], jnp.zeros(2)


@breaks("return-value", "not-checked", words=("reset returns a TimeStep; it must return",))
class TimeStepAlone(Walk):
    def reset(self, key):
        return Walk.reset(self, key)[1]


@breaks("return-value", "not-checked", words=("reset returns a str as `1` of the state",))
class TextInState(Walk):
    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return (state, "running"), timestep


variant(
    "NoReward", ("return-value", "not-checked"), "step returns None as `reward`", "step", reward=lambda t: None,
)  # fmt: skip
variant("InfoList", ("return-value", "not-checked"), "returns a list as `info`", info=lambda t: [t.reward])


# --- The state ----------------------------------------------------------------------------------


class Changing(Walk):
    """Wraps the state of Walk in one that is changed after each step."""

    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return self.begin(state), timestep

    def step(self, state, action, key):
        inner, timestep = Walk.step(self, state["walk"], action, key)
        return self.change(inner), timestep

    def begin(self, state):
        return {"walk": state, "extra": jnp.zeros(())}


STATE = ("state-changes", "not-checked")


@breaks(*STATE, words=("`extra` of the state is float32 after reset and missing after step",))
class LosesALeaf(Changing):
    def change(self, state):
        return {"walk": state}


@breaks(*STATE, words=("`more` of the state is missing after reset and float32 after step",))
class GainsALeaf(Changing):
    def change(self, state):
        return {"walk": state, "extra": jnp.zeros(()), "more": jnp.zeros(())}


@breaks(*STATE, words=("`extra` of the state is float32 after reset and int32 after step",))
class ChangesDtype(Changing):
    def change(self, state):
        return {"walk": state, "extra": jnp.zeros((), jnp.int32)}


@breaks(*STATE, words=("`extra` of the state is float32 after reset and float32[1] after step",))
class ChangesShape(Changing):
    def change(self, state):
        return {"walk": state, "extra": jnp.zeros((1,))}


@breaks(*STATE, words=("`extra` of the state is weakly typed float32 after reset and float32 after step",))
class ChangesWeakType(Changing):
    def begin(self, state):
        return {"walk": state, "extra": 0.0}

    def change(self, state):
        return {"walk": state, "extra": state.velocity}


@breaks(*STATE, words=("`structure` of the state is PyTreeDef",))
class ChangesStructure(Changing):
    def change(self, state):
        return {"walk": WalkState(*state), "extra": jnp.zeros(())} | {"walk": OtherState(*state)}


class OtherState(NamedTuple):
    position: Any
    velocity: Any


# --- The time-step ------------------------------------------------------------------------------

TYPE = ("timestep-type", "not-checked")
variant(
    "RewardVector", TYPE, "`reward` of step has shape [1]; a scalar", "step", reward=lambda t: t.reward[None]
)
variant(
    "RewardInt", TYPE, "`reward` of reset has dtype int32; float32", reward=lambda t: t.reward.astype(int)
)
variant("RewardPython", TYPE, "`reward` of step has dtype weakly typed float32", "step", reward=lambda t: 1.0)
variant("DiscountVector", TYPE, "`discount` of reset has shape [2]", discount=lambda t: jnp.ones(2))
variant("DiscountBool", TYPE, "`discount` of step has dtype bool", "step", discount=lambda t: t.discount > 0)
variant("FirstFloat", TYPE, "`first` of reset has dtype float32; bool", first=lambda t: t.reward)
variant("LastVector", TYPE, "`last` of step has shape [1]", "step", last=lambda t: t.last[None])
variant(
    "MaskComesAndGoes", TYPE, "`action_mask` of the time-step is missing after reset and bool[3] after step", "step",
    action_mask=lambda t: jnp.ones(3, bool),
)  # fmt: skip
variant("AliveAlone", TYPE, "`alive` of reset has shape [1]", alive=lambda t: jnp.ones(1, bool))

OBSERVED = ("observation-type", "not-checked")
variant(
    "ObservationShape", OBSERVED, "observation of reset has shape [3]; [2]", observation=lambda t: jnp.zeros(3),
)  # fmt: skip
variant(
    "ObservationDtype", OBSERVED, "observation of step has dtype int32; float32", "step",
    observation=lambda t: t.observation.astype(int),
)  # fmt: skip
variant(
    "ObservationTuple", OBSERVED, "observation of reset is a tuple", observation=lambda t: tuple(t.observation),
)  # fmt: skip
variant(
    "ObservationLacks", OBSERVED, "observation['b'] of reset is missing",
    attributes={"observation_space": Dict({"a": Box(-3, 3, (2,)), "b": Discrete(2)})},
    observation=lambda t: {"a": t.observation},
)  # fmt: skip
variant(
    "ObservationMore", OBSERVED, "observation['c'] of reset is not in the observation space",
    attributes={"observation_space": Dict({"a": Box(-3, 3, (2,))})},
    observation=lambda t: {"a": t.observation, "c": t.reward},
)  # fmt: skip

variant(
    "ObservationOutside", "observation-outside", ("observation[0] after", "between -0.6 and 0.6"),
    attributes={"observation_space": Box((-0.6, -3), (0.6, 3))},
)  # fmt: skip
variant(
    "ObservationIndex", "observation-outside", "observation after 1 random step is 3; between 0 and 2", "step",
    attributes={
        "observation_space": Discrete(3),
        "reset": lambda self, key: (Walk.reset(self, key)[0], restart(jnp.zeros((), jnp.int32))),
    },
    observation=lambda t: jnp.asarray(3, jnp.int32),
)  # fmt: skip
variant(
    "ObservationIndices", "observation-outside", "observation[1] after reset is -1; between 0 and 3",
    attributes={"observation_space": MultiDiscrete((3, 4))},
    observation=lambda t: jnp.asarray([1, -1], jnp.int32),
)  # fmt: skip
variant(
    "ObservationNaN", "not-finite", ("observation[1]", "nan"), "step",
    observation=lambda t: t.observation.at[1].set(jnp.where(t.observation[0] > 0.5, jnp.nan, 0.0)),
)  # fmt: skip
variant(
    "RewardNaN", "not-finite", ("the reward after", "is nan"), "step", reward=lambda t: jnp.sqrt(t.observation[0]),
)  # fmt: skip
variant(
    "RewardOnReset", "reset-reward", "the reward of reset is 0.25", "reset", reward=lambda t: jnp.float32(0.25),
)  # fmt: skip
variant(
    "NeverFirst", "first-flag", "False on the time-step of reset for 16 of 16", first=lambda t: jnp.asarray(False),
)  # fmt: skip
variant(
    "AlwaysFirst", "first-flag", "`first` is True on the time-step of step 1", first=lambda t: jnp.asarray(True),
)  # fmt: skip
variant(
    "EndsOnReset", ("ends-on-reset", "not-checked"), "for 16 of 16 keys", "reset", last=lambda t: jnp.asarray(True)
)  # fmt: skip
variant(
    "EndsOnSomeResets", "ends-on-reset", "of 16 keys", "reset", last=lambda t: t.observation[0] > 0.2
)  # fmt: skip


# --- Ends ---------------------------------------------------------------------------------------

variant(
    "GammaAsDiscount", "discount", "the discount after 1 random step is 0.99", "step",
    discount=lambda t: t.discount * 0.99,
)  # fmt: skip
variant(
    "DiscountWithoutEnd", "discount", ("is 0 although `last` is False",), "step",
    discount=lambda t: t.discount * (t.observation[0] < 0),
)  # fmt: skip
variant(
    "TerminationTruncates", "termination", ("none of", "ends has discount 0", "the actions decide", "reward -10"),
    "step", discount=lambda t: jnp.ones(()), reward=lambda t: jnp.where(t.last, -10.0, t.reward),
)  # fmt: skip


@breaks("self-reset", words=("the state after an end does not depend on the state before it",))
class ResetsItself(Walk):
    """Where an episode has ended, the step returns the start of the next, as batches of other libraries do."""

    def step(self, state, action, key):
        state, timestep = Walk.step(self, state, action, key)
        new, start = Walk.reset(self, key)
        state = jax.tree.map(lambda x, y: jnp.where(timestep.last, x, y), new, state)
        observation = jnp.where(timestep.last, start.observation, timestep.observation)
        return state, timestep._replace(observation=observation)


@breaks("never-ends", words=("none of 16 environments ended within 384 random steps",), max_steps=300)
class NeverEnds(Walk):
    def step(self, state, action, key):
        state = WalkState(jnp.clip(state.position + 0.1 * (action - 1.0), -1, 1), state.velocity)
        return state, transition(jnp.stack(state), state.position)


class TimedState(NamedTuple):
    walk: Any
    steps: Any


@breaks("truncation", words=("counter `steps`", "after 20 steps", "discount 0"))
class TimeLimitTerminates(Walk):
    """Ends after 20 steps, or sooner outside of [-1, 1]; both terminate."""

    limit: int = 20

    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return TimedState(state, jnp.zeros((), jnp.int32)), timestep

    def step(self, state, action, key):
        walk, timestep = Walk.step(self, state.walk, action, key)
        steps = state.steps + 1
        last = timestep.last | (steps >= self.limit)
        timestep = timestep._replace(last=last, discount=1 - last.astype(jnp.float32))
        return TimedState(walk, steps), timestep


@breaks("truncation", words=("after 5000 steps",))
class FarTimeLimitTerminates(TimeLimitTerminates):
    """No random episode gets as far as the limit."""

    limit: int = 5000


@breaks("truncation", words=("counter `clock`", "after 12 steps"))
class PackedClock(Walk):
    """The clock counts down in a vector of other numbers, and the end is exactly at 0."""

    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return {"walk": state, "clock": jnp.asarray([7.0, 12.0, 3.0])}, timestep

    def step(self, state, action, key):
        walk, timestep = Walk.step(self, state["walk"], action, key)
        walk = WalkState(jnp.clip(walk.position, -1, 1), walk.velocity)
        clock = state["clock"].at[1].add(-1)
        timestep = transition(jnp.stack(walk), -(walk.position**2), terminated=clock[1] == 0)
        return {"walk": walk, "clock": clock}, timestep


class Timed(Walk):
    """A walk that a number of the state ends, whatever is done: terminated, though it is a time limit."""

    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return {"walk": state, "clock": self.begin()}, timestep

    def step(self, state, action, key):
        walk, timestep = Walk.step(self, state["walk"], action, key)
        clock = self.tick(state["clock"])
        last = timestep.last | self.over(clock)
        timestep = timestep._replace(last=last, discount=1 - last.astype(jnp.float32))
        return {"walk": walk, "clock": clock}, timestep


@breaks("truncation", words=("the counter `clock`", "after 30 steps"))
class UnsignedClock(Timed):
    def begin(self):
        return jnp.zeros((), jnp.uint32)

    def tick(self, clock):
        return clock + jnp.uint32(1)

    def over(self, clock):
        return clock >= 30


# --- Masks and agents ---------------------------------------------------------------------------


def masked_parts(self, state, action, key):
    state, timestep = Walk.step(self, state, action[0], key)
    return state, timestep._replace(action_mask=jnp.asarray([True, True, True, False, False]))


variant(
    "MaskAllFalse", "action-mask", ("action_mask after", "is False for all 3 actions"),
    action_mask=lambda t: jnp.broadcast_to(t.observation[0] < 0.4, (3,)),
)  # fmt: skip
variant(
    "MaskPartFalse", "action-mask", "is False for all 2 actions of part 1",
    attributes={"action_space": MultiDiscrete((3, 2)), "step": masked_parts},
    action_mask=lambda t: jnp.asarray([True, True, False, False, False]),
)  # fmt: skip
MASK = ("action-mask", "not-checked")
variant("MaskShape", MASK, "action_mask of reset has shape [2]; [3]", action_mask=lambda t: jnp.ones(2, bool))
variant("MaskDtype", MASK, "action_mask of reset has dtype float32; bool", action_mask=lambda t: jnp.ones(3))
variant(
    "MaskOfBox", MASK, "belongs to no discrete action",
    attributes={"action_space": Box(-1, 1)}, action_mask=lambda t: jnp.ones(1, bool),
)  # fmt: skip


@environment
class Pair:
    """A good environment of two agents, who walk apart; each may die, and the world ends with both."""

    num_agents = 2
    observation_space = Box(-9, 9, (1,))
    action_space = Discrete(3)

    def reset(self, key):
        position = jax.random.uniform(key, (2,), minval=-0.5, maxval=0.5)
        return (position, jnp.ones(2, bool)), self.seen(restart(position[:, None]), jnp.ones(2, bool))

    def seen(self, timestep, alive):
        reward = jnp.broadcast_to(timestep.reward, (2,))
        return timestep._replace(reward=reward, discount=alive.astype(jnp.float32), alive=alive)

    def step(self, state, action, key):
        position = jnp.clip(state[0] + 0.5 * (action - 1), -9, 9)
        alive = state[1] & (jnp.abs(position) < 1.5)
        timestep = transition(position[:, None], 0.0, terminated=~alive.any())
        return (position, alive), self.seen(timestep, alive)


AGENTS = ("agents", "not-checked")


@breaks(*AGENTS, words=("`reward` of step has shape []; [2], one for each agent",))
class OneRewardForAll(Pair):
    def step(self, state, action, key):
        state, timestep = Pair.step(self, state, action, key)
        return state, timestep._replace(reward=timestep.reward.sum())


@breaks(*AGENTS, words=("observation of step has shape [3, 1]; [2, 1], one for each agent",))
class AgentAppears(Pair):
    def step(self, state, action, key):
        state, timestep = Pair.step(self, state, action, key)
        return state, timestep._replace(observation=jnp.zeros((3, 1)))


@breaks(*AGENTS, words=("`alive` of reset has shape [1]; [2]",))
class AliveOfOne(Pair):
    def seen(self, timestep, alive):
        return Pair.seen(self, timestep, alive)._replace(alive=alive[:1])


@breaks("alive", words=("an agent is no longer alive", "only the world as a whole is cut"))
class AgentIsCut(Pair):
    def seen(self, timestep, alive):
        return Pair.seen(self, timestep, alive)._replace(discount=jnp.full(2, alive.any(), jnp.float32))


@breaks("alive", words=("an agent is no longer alive after 1 random step,",))
class AgentIsCutAtOnce(Pair):
    def step(self, state, action, key):
        state, timestep = Pair.step(self, (state[0], jnp.ones(2, bool)), action, key)
        discount = jnp.where(timestep.last, 0.0, jnp.ones(2))
        return state, timestep._replace(alive=jnp.array([True, False]), discount=discount)


@breaks("alive", words=("the discount of an agent", "is 0 although it is alive"))
class EndedAgentIsAlive(Pair):
    def seen(self, timestep, alive):
        return Pair.seen(self, timestep, alive)._replace(alive=jnp.ones(2, bool))


# --- Info ---------------------------------------------------------------------------------------

variant(
    "InfoAppears", ("info-changes", "not-checked"), "`speed` of the info is missing after reset and float32", "step",
    info=lambda t: {"speed": t.reward},
)  # fmt: skip
variant(
    "InfoDtype", ("info-changes", "not-checked"), "`speed` of the info is int32 after reset and float32",
    info=lambda t: {"speed": t.reward},
    attributes={
        "reset": lambda self, key: (
            Walk.reset(self, key)[0],
            Walk.reset(self, key)[1]._replace(info={"speed": jnp.zeros((), jnp.int32)}),
        )
    },
)  # fmt: skip
variant(
    "SummaryUnknown", "info-summary", "info_summaries['speed'] is 'maximum'; 'last', 'sum', 'mean' or 'max'",
    attributes={"info_summaries": {"speed": "maximum"}}, info=lambda t: {"speed": t.reward},
)  # fmt: skip
variant(
    "SummaryOfNothing", "info-summary", ("names 'sped', but `info` has 'speed'", "did you mean 'speed'"),
    attributes={"info_summaries": {"sped": "max"}}, info=lambda t: {"speed": t.reward},
)  # fmt: skip
variant(
    "SummaryList", "info-summary", "info_summaries is ['speed']", attributes={"info_summaries": ["speed"]}
)


variant(
    "InfoNaN", "not-finite", ("info['speed']['root'] after", "is nan; every entry of `info`"),
    info=lambda t: {"speed": {"root": jnp.sqrt(t.observation[0])}},
)  # fmt: skip
variant(
    "InfoNarrow", "not-finite", "info['speed'] after reset is nan",
    info=lambda t: {"speed": jnp.sqrt(-1 - t.observation[1] ** 2).astype(jnp.bfloat16)},
)  # fmt: skip


# --- Keys and actions ---------------------------------------------------------------------------


@breaks("key-ignored", words=("all 16 keys give the same start",))
class KeyIgnored(Walk):
    def reset(self, key):
        return Walk.reset(self, jax.random.key(3))


@breaks("key-ignored", words=("all 16 keys",))
class KeyOnlyStored(Walk):
    """The state differs by the key that it stores, and by nothing else."""

    def reset(self, key):
        state, timestep = Walk.reset(self, jax.random.key(3))
        return (state, key, jax.random.key_data(key)), timestep

    def step(self, state, action, key):
        walk, timestep = Walk.step(self, state[0], action, key)
        return (walk, key, jax.random.key_data(key)), timestep


class Noisy(Walk):
    """A good walk in a wind: what the two methods draw, and from which key, is what the cases below change."""

    def reset(self, key):
        own, key = jax.random.split(key)
        state, timestep = Walk.reset(self, own)
        return {"walk": state, "key": key, "steps": jnp.zeros((), jnp.int32)}, timestep

    def step(self, state, action, key):
        own = self.key_of_step(state, key)
        walk, timestep = Walk.step(self, state["walk"], action, key)
        reward = timestep.reward + jax.random.normal(own)
        state = {"walk": walk, "key": self.next_key(state, key), "steps": state["steps"] + 1}
        return state, timestep._replace(reward=reward)

    def key_of_step(self, state, key):
        return key

    def next_key(self, state, key):
        return state["key"]


@breaks(
    "key-ignored", words=("step draws random numbers from a constant key", "every step has the same noise")
)
class ConstantKeyInStep(Noisy):
    def key_of_step(self, state, key):
        return jax.random.key(0)


@breaks("key-ignored", words=("step draws random numbers from a constant key",))
class ConstantKeyInLoop(Noisy):
    """The draw is within a loop, a branch and a jit, from a constant key that is split on the way."""

    def step(self, state, action, key):
        def gust(i, carry):
            own, wind = carry
            own, part = jax.random.split(own)
            drawn = jax.lax.cond(wind > 0, jax.random.normal, lambda k: -1.0 + 0 * wind, part)
            return own, wind + drawn

        _, wind = jax.lax.fori_loop(0, 3, jax.jit(gust), (jax.random.key(1), jnp.ones(())))
        walk, timestep = Walk.step(self, state["walk"], action, key)
        return {**state, "walk": walk}, timestep._replace(reward=timestep.reward + wind)


@breaks("key-ignored", words=("step draws random numbers from a constant key",))
class ConstantKeyBesideOneKept(Noisy):
    """That the key of the step is stored in the state does not make anything random."""

    def key_of_step(self, state, key):
        return jax.random.PRNGKey(7)

    def next_key(self, state, key):
        return key


@breaks("key-ignored", words=("made of `steps` of the state alone", "every episode has the same noise"))
class KeyOfTheClock(Noisy):
    def key_of_step(self, state, key):
        return jax.random.fold_in(jax.random.key(0), state["steps"])


@breaks("key-ignored", words=("`key` of the state, which no step changes", "every step of an episode"))
class KeyNeverSplit(Noisy):
    def key_of_step(self, state, key):
        return state["key"]


@breaks("key-ignored", words=("`key` of the state, which no step changes",))
class KeySplitButNotKept(Noisy):
    """The half that would be kept is dropped, so that the same half is drawn from at each step."""

    def key_of_step(self, state, key):
        _, own = jax.random.split(state["key"])
        return own


@breaks("key-ignored", words=("step draws random numbers from its key, but nothing", "depends on them"))
class NoiseDropped(Noisy):
    def step(self, state, action, key):
        key, own = jax.random.split(key)
        _ = jax.random.normal(own)
        walk, timestep = Walk.step(self, state["walk"], action, key)
        return {**state, "walk": walk, "key": key}, timestep


@breaks("key-ignored", words=("reset draws random numbers from a constant key", "every episode begins alike"))
class ConstantKeyInReset(Noisy):
    """The start is the same in every episode; the steps draw from their own key, as they should."""

    def reset(self, key):
        return Noisy.reset(self, jax.random.key(3))


@breaks("key-ignored", words=("reset draws random numbers from its key, but nothing",))
class StartDropped(Noisy):
    def reset(self, key):
        state, _ = Noisy.reset(self, key)
        walk = WalkState(jnp.zeros(()), jnp.zeros(()))
        return {**state, "walk": walk}, restart(jnp.stack(walk))


@breaks(
    "key-reused",
    words=("a key is used twice, at last by `reward = timestep.reward + jax.random.normal(own)`",),
)
class KeyUsedTwice(Noisy):
    def key_of_step(self, state, key):
        jax.random.uniform(key)
        return key


@breaks("action-ignored", words=("no action changes anything",))
class ActionIgnored(Walk):
    def step(self, state, action, key):
        return Walk.step(self, state, jax.random.randint(key, (), 0, 3), key)


# --- Hidden state and randomness ----------------------------------------------------------------

HIDDEN = ("hidden-state", "not-checked")
CALLS = [0]


@breaks(*HIDDEN, words=("two equal calls differ", "`reward` of the time-step after"))
class GlobalCounter(Walk):
    def step(self, state, action, key):
        CALLS[0] += 1
        state, timestep = Walk.step(self, state, action, key)
        return state, timestep._replace(reward=timestep.reward + CALLS[0])


@breaks(*HIDDEN, words=("two equal calls differ",))
class PythonRandomInJit(Walk):
    """The inner jit is traced once and keeps its draw until something traces it again."""

    @jax.jit
    def reset(self, key):
        state, _ = Walk.reset(self, key)
        state = state._replace(position=state.position + random.uniform(0, 0.1))
        return state, restart(jnp.stack(state))


@breaks(*HIDDEN, words=("the same compiled rollout", "differs"))
class CallbackRandom(Walk):
    def step(self, state, action, key):
        state, timestep = Walk.step(self, state, action, key)
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        noise = jax.pure_callback(
            lambda x: np.random.uniform(0, 0.1, np.shape(x)).astype(np.float32),
            shape, state.position, vmap_method="expand_dims",
        )  # fmt: skip
        return state, timestep._replace(reward=timestep.reward + noise)


@breaks(*HIDDEN, words=("two equal calls differ",))
class MutatesItself(Walk):
    drift: float = 0.0

    def step(self, state, action, key):
        object.__setattr__(self, "drift", self.drift + 0.01)
        state, timestep = Walk.step(self, state, action, key)
        return state, timestep._replace(reward=timestep.reward - self.drift)


@breaks(*HIDDEN, words=("keeps a traced value in another place than the state, which is used at `",))
class KeepsState(Walk):
    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        object.__setattr__(self, "kept", state)
        return (), timestep

    def step(self, state, action, key):
        return (), Walk.step(self, self.kept, action, key)[1]


LATEST: dict[str, Any] = {}
HISTORY: list[Any] = []


@breaks("hidden-state", words=("keeps a traced value in the global `LATEST`",))
class KeepsInAGlobal(Walk):
    """What is kept is never used again, so that no error shows it."""

    def step(self, state, action, key):
        LATEST["state"] = state
        return Walk.step(self, state, action, key)


@breaks("hidden-state", words=("keeps a traced value in the global `HISTORY`",))
class KeepsInAList(Walk):
    @jax.jit
    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        HISTORY.append((state, timestep.observation))
        return state, timestep


@breaks("hidden-state", words=("keeps a traced value in the attribute `latest`",))
class KeepsInItself(Walk):
    def step(self, state, action, key):
        object.__setattr__(self, "latest", [action])
        return Walk.step(self, state, action, key)


@breaks("hidden-state", words=("keeps a traced value in the class attribute `latest`",))
class KeepsInItsClass(Walk):
    def step(self, state, action, key):
        type(self).latest = state
        return Walk.step(self, state, action, key)


def remembering():
    """A function whose closure keeps the value of its last call."""
    kept = None

    def remember(value):
        nonlocal kept
        kept = value
        return value

    return remember


@breaks("hidden-state", words=("keeps a traced value in a place outside of the state",))
class KeepsInAClosure(Walk):
    remember = staticmethod(remembering())

    def step(self, state, action, key):
        return Walk.step(self, self.remember(state), action, key)


@breaks("hidden-state", words=("changes the field `calls` of the environment itself",))
class ChangesItsField(Walk):
    """Nothing depends on the field, but it is part of what a program is compiled for."""

    calls: int = 0

    def step(self, state, action, key):
        object.__setattr__(self, "calls", self.calls + 1)
        return Walk.step(self, state, action, key)


# --- Changes in place ---------------------------------------------------------------------------


class Dictionary(Walk):
    """Walk with a state that can be changed."""

    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return state._asdict() | {"visits": jnp.zeros(4)}, timestep

    def step(self, state, action, key):
        walk, timestep = Walk.step(self, WalkState(state["position"], state["velocity"]), action, key)
        state.update(walk._asdict())
        return state, timestep


@breaks("in-place", words=("step changes `position` of the state that it is given, in place",))
class StateChangedInPlace(Dictionary):
    pass


@breaks("in-place", words=("step changes `latest` of the state",))
class StateGrowsInPlace(Dictionary):
    """The state that is returned is a new one, without what was written into the one that was given."""

    def step(self, state, action, key):
        given = dict(state)
        state["latest"] = action
        return Dictionary.step(self, given, action, key)


@breaks("in-place", words=("step changes `push` of the action",))
class ActionChangedInPlace(Walk):
    action_space = Dict({"push": Discrete(3)})

    def step(self, state, action, key):
        action["push"] = 2 - action["push"]
        return Walk.step(self, state, action["push"], key)


@breaks("in-place", "not-checked", words=('step changes an array in place: `state["visits"][0] += 1`',))
class ArrayChangedInPlace(Dictionary):
    def step(self, state, action, key):
        state["visits"][0] += 1
        return Dictionary.step(self, state, action, key)


# --- Several at once ------------------------------------------------------------------------------


@breaks(
    *("hidden-state", "in-place", "parameter", "first-flag", "reset-reward", "observation-outside"),
    *("not-finite", "action-mask", "action-ignored", "key-ignored", "discount", "never-ends"),
    words=(
        "keeps a traced value in the global `LATEST`",
        "step changes `position` of the state that it is given, in place",
        "a numeric field (force, wind)",
        "`if self.wind > 0:`",
        "TracerBool",
        "False on the time-step of reset for 16 of 16",
        "the reward of reset is 0.25",
        "observation[0] after reset",
        "between -0.3 and 0.3",
        "info['time'] after reset is inf; every entry of `info`",
        "action_mask after reset is False for all 3 actions",
        "no action changes anything",
        "all 16 keys give the same start",
        "the discount after 1 random step is 0.99",
        "none of 16 environments ended within 384 random steps",
    ),
    max_steps=300,
)
class ManyAtOnce(Dictionary):
    """No rule hides another."""

    wind: float = 0.0

    observation_space = Box((-0.3, -3), (0.3, 3))

    def reset(self, key):
        state, timestep = Dictionary.reset(self, jax.random.key(3))
        wrong = {"reward": jnp.float32(0.25), "first": timestep.last, "action_mask": jnp.zeros(3, bool)}
        return state, timestep._replace(info={"time": 1 / timestep.reward}, **wrong)

    def step(self, state, action, key):
        LATEST["state"] = state["position"]
        push = 1.5
        if self.wind > 0:
            push = 2
        state, timestep = Dictionary.step(self, state, push, key)
        state["position"] = jnp.clip(state["position"], -1, 1)
        wrong = {"discount": jnp.float32(0.99), "last": timestep.first, "action_mask": jnp.ones(3, bool)}
        return state, timestep._replace(info={"time": timestep.reward}, **wrong)


# --- Tracing, mapping, parameters ---------------------------------------------------------------

UNTRACEABLE = ("not-traceable", "not-checked")


@breaks(*UNTRACEABLE, words=("step cannot be traced", "`if state.position > 0:`", "broken.py", "TracerBool"))
class PythonIf(Walk):
    def step(self, state, action, key):
        if state.position > 0:
            action = action * 0
        return Walk.step(self, state, action, key)


@breaks(*UNTRACEABLE, words=("reset cannot be traced", "np.cos(", "TracerArrayConversionError"))
class NumpyOfTracer(Walk):
    def reset(self, key):
        state, _ = Walk.reset(self, key)
        return state, restart(np.cos(np.asarray(jnp.stack(state))))


@breaks(*UNTRACEABLE, words=("range(action)", "TracerIntegerConversionError"))
class PythonRange(Walk):
    def step(self, state, action, key):
        for _ in range(action):
            state = WalkState(state.position + 0.1, state.velocity)
        return Walk.step(self, state, action, key)


@breaks(*UNTRACEABLE, words=("float(state.position)",))
class PythonFloat(Walk):
    def step(self, state, action, key):
        return Walk.step(self, state._replace(position=float(state.position)), action, key)


@breaks(*UNTRACEABLE, words=("step cannot be traced", ".item()"))
class ArrayItem(Walk):
    def step(self, state, action, key):
        return Walk.step(self, state, action.item(), key)


@breaks("not-vmappable", "not-checked", words=("step cannot be mapped by jax.vmap", "pure_callback"))
class CallbackUnmapped(Walk):
    def step(self, state, action, key):
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        position = jax.pure_callback(np.asarray, shape, state.position)
        return Walk.step(self, state._replace(position=position), action, key)


@breaks("vmap-differs", words=("one environment and a batch", "`reward`"))
class BatchMean(Walk):
    """A callback that takes the mean over whatever it is given: under vmap, over the batch."""

    def step(self, state, action, key):
        state, timestep = Walk.step(self, state, action, key)
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        reward = jax.pure_callback(
            lambda x: np.full(np.shape(x), np.mean(x), np.float32),
            shape, state.position, vmap_method="expand_dims",
        )  # fmt: skip
        return state, timestep._replace(reward=reward)


@breaks("parameter", words=("a numeric field (force, wind)", "`if self.wind > 0:`", "TracerBool"))
class IfOnParameter(Walk):
    wind: float = 0.0

    def step(self, state, action, key):
        if self.wind > 0:
            action = jnp.minimum(action + 1, 2)
        return Walk.step(self, state, action, key)


@breaks("parameter", words=("parameters as data", "and as constants differ", "`reward`"))
class PythonTypeOfParameter(Walk):
    scale: float = 2.0

    def step(self, state, action, key):
        state, timestep = Walk.step(self, state, action, key)
        scale = self.scale if isinstance(self.scale, float) else 1.0
        return state, timestep._replace(reward=timestep.reward + scale)


@breaks("parameter", words=("is int32[] where the parameters are constants and float32[]",))
class DtypeOfParameter(Walk):
    count: float = 3

    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return (state, jnp.zeros((), jnp.int32) + self.count), timestep

    def step(self, state, action, key):
        walk, timestep = Walk.step(self, state[0], action, key)
        return (walk, state[1]), timestep


@breaks(
    "not-a-pytree", words=("PlainClass is not a pytree", "`@shoal.envs.environment`"), is_environment=False
)
class PlainClass(Walk):
    """Without the decorator, a subclass of an environment is none of JAX's pytrees."""


@breaks("not-a-pytree", words=("the parameter 'label' of TextParameter is 'left', a str",))
class TextParameter(Walk):
    label: Any = "left"


@environment
class Listed(Walk):
    sizes: tuple = ()


CASES["ListParameter"] = Case(
    lambda: Listed(sizes=[1, 2]), ("not-a-pytree",), ("the static field `sizes` of Listed is [1, 2], a list",)
)


# --- Errors of its own --------------------------------------------------------------------------


@breaks(
    "raises",
    "not-checked",
    words=("step raises ZeroDivisionError: integer division or modulo by zero (tests/envs/broken.py, line",),
)
class Divides(Walk):
    def step(self, state, action, key):
        return 1 // 0


@breaks("raises", "not-checked", words=("reset raises TypeError",))
class NoKey(Walk):
    def reset(self):
        return Walk.reset(self, jax.random.key(0))


@breaks(
    "raises",
    "not-checked",
    words=("reset raises SystemExit: 0, which ends the process (tests/envs/broken.py, line",),
)
class Exits(Walk):
    def reset(self, key):
        sys.exit(0)


@breaks("raises", "not-checked", words=("running it raised", "lost the connection"))
class CallbackRaises(Walk):
    def step(self, state, action, key):
        def fail(x):
            raise OSError("lost the connection")

        shape = jax.ShapeDtypeStruct((), jnp.float32)
        position = jax.pure_callback(fail, shape, state.position, vmap_method="expand_dims")
        return Walk.step(self, state._replace(position=position), action, key)
