"""Every rule of the checker has environments that break it; good environments break none."""

import re
import time
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from broken import CASES, Dictionary, Noisy, Pair, UnsignedClock, Walk, WalkState
from one_of_each import one_of_each

import shoal
from shoal.base.errors import ShoalError
from shoal.config.struct import struct
from shoal.envs import Flatten, FrameStack, RewardScale, TimeLimit, environments, make, probes
from shoal.envs.base import environment, restart, transition
from shoal.envs.checking.check_contract import never_ends
from shoal.envs.checking.check_keys import check_key_flow
from shoal.envs.checking.check_time import reported_activity
from shoal.envs.checking.check_traces import trace
from shoal.envs.checking.checker import RULES, Finding, check, report
from shoal.runs.plan.decide import decide
from shoal.runs.train.planning import Caller, plan_run
from shoal.types.spaces import Box, Dict, Discrete, MultiDiscrete

# Of the cases that are run (not refused at sight) each costs a whole check: the first suite has the one that breaks
# many rules at once, and one for each way to go on after it.
QUICK = "ManyAtOnce TerminationTruncates EndsOnReset BatchMean KeepsState CallbackRaises"
# The first of their rules, and what is found in another way than these.
FULL = """
    ObservationOutside ObservationNaN ResetsItself TimeLimitTerminates AgentIsCut EndedAgentIsAlive
    SummaryUnknown KeyIgnored KeyOfTheClock CallbackRandom ChangesItsField StateChangedInPlace
    DtypeOfParameter PlainClass PythonRandomInJit
"""
# Refused, but not at sight, as others are.
SAME = "MutatesItself GlobalCounter"


def cost(name):
    """The suite that runs a case."""
    quick, full, same = (names.split() for names in (QUICK, FULL, SAME))
    if name in quick or ("not-checked" in CASES[name].rules and name not in full + same):
        return []
    return [pytest.mark.full] + [pytest.mark.slow] * (name not in full)


@pytest.mark.quick("DiscreteZero")
@pytest.mark.parametrize("name", [pytest.param(name, marks=cost(name)) for name in CASES])
def test_a_broken_environment_is_found_by_its_rule_alone(name):
    case = CASES[name]
    findings = check(case.make(), **case.options)
    assert tuple(dict.fromkeys(finding.rule for finding in findings)) == case.rules, report(findings, name)
    said = " ".join(finding.message for finding in findings)
    for words in case.words:
        assert words in said


def test_every_rule_has_a_broken_environment():
    assert {rule for case in CASES.values() for rule in case.rules} == set(RULES)


# --- Good environments ----------------------------------------------------------------------------


@environment
class Everything:
    """Every space in observation and action, masks, info, a random key and a clock in the state."""

    size: float = 5.0

    observation_space = Dict(
        {"seen": Box(0, 255, (4, 4), np.uint8), "hand": Discrete(6), "lamps": MultiDiscrete((2, 3))}
    )
    action_space = Dict({"push": Box(-1, 1, (2,)), "pick": Discrete(4), "set": MultiDiscrete((2, 3))})
    info_summaries = MappingProxyType({"distance": "max", "hits": "sum"})

    def reset(self, key):
        key, own = jax.random.split(key)
        position = jax.random.uniform(own, (2,), minval=-1, maxval=1)
        state = {"position": position, "lamps": jnp.zeros(2, jnp.int32), "key": key, "steps": 0}
        return state, self.seen(state, restart({}))

    def seen(self, state, timestep):
        lamps = state["lamps"]
        image = jnp.broadcast_to((state["position"][0] * 20 + 120).astype(jnp.uint8), (4, 4))
        observation = {"seen": image, "hand": lamps.sum().astype(jnp.int32), "lamps": lamps}
        mask = {"pick": jnp.arange(4) != lamps[1], "set": jnp.asarray([True, True, True, False, False])}
        info = {"distance": jnp.abs(state["position"]).max(), "hits": lamps[0]}
        return timestep._replace(observation=observation, action_mask=mask, info=info)

    def step(self, state, action, key):
        key, own = jax.random.split(state["key"])
        position = state["position"] + action["push"] + 0.1 * jax.random.normal(own, (2,))
        state = {
            "position": jnp.clip(position, -self.size, self.size),
            "lamps": (action["pick"] + action["set"]) % jnp.asarray([2, 3]),
            "key": key,
            "steps": state["steps"] + 1,
        }
        terminated = jnp.abs(position).max() > self.size
        timestep = transition({}, state["position"].sum(), terminated=terminated)
        return state, self.seen(state, timestep._replace(last=timestep.last | (state["steps"] >= 30)))


class ClockState(NamedTuple):
    position: jax.Array
    steps: jax.Array


@environment
class FiniteHorizon(Walk):
    """The task itself is over after 10 steps, as its observation shows: that is a termination."""

    observation_space = Box(-100, 100, (2,))

    def reset(self, key):
        state = ClockState(jax.random.uniform(key), jnp.zeros((), jnp.int32))
        return state, restart(jnp.stack([state.position, 0.0]))

    def step(self, state, action, key):
        state = ClockState(state.position + action - 1, state.steps + 1)
        observation = jnp.stack([state.position, state.steps.astype(jnp.float32)])
        return state, transition(observation, state.position, terminated=state.steps >= 10)


@environment
class BlindHorizon(FiniteHorizon):
    """The horizon does not show, but the last step alone is rewarded: it too is part of the task."""

    def step(self, state, action, key):
        state, timestep = FiniteHorizon.step(self, state, action, key)
        observation = timestep.observation.at[1].set(0.0)
        reward = jnp.where(timestep.last, state.position, 0.0)
        return state, timestep._replace(observation=observation, reward=reward)


@environment
class Huge(Walk):
    """More data in a block than the checker keeps at once, at its usual sizes."""

    observation_space = Box(0, 255, (256, 256, 3), np.uint8)

    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return state, timestep._replace(observation=self.image(state))

    def image(self, state):
        return jnp.full((256, 256, 3), jnp.clip(state.position * 100 + 100, 0, 255).astype(jnp.uint8))

    def step(self, state, action, key):
        state, timestep = Walk.step(self, state, action, key)
        return state, timestep._replace(observation=self.image(state))


COUNTED = []


@environment
class CountsItsCalls(Walk):
    """A count of calls that nothing depends on is harmless, and so are NumPy constants."""

    def step(self, state, action, key):
        COUNTED.append(1)
        state, timestep = Walk.step(self, state, action, key)
        return state, timestep._replace(info={"constant": np.ones(2, np.float32)})

    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return state, timestep._replace(info={"constant": jnp.ones(2)})


@environment
class JittedMethods(Walk):
    """Inner jits, and loops on traced values, which no trace without jit can follow."""

    @jax.jit
    def step(self, state, action, key):
        velocity = jax.lax.while_loop(lambda v: v > 0.4, lambda v: v / 2, state.velocity)
        return Walk.step(self, state._replace(velocity=velocity), action, key)


def box_walk():
    """Walk in a frame stack, flattened, scaled and limited: wrappers on wrappers."""
    return Flatten(FrameStack(RewardScale(TimeLimit(Walk(), max_steps=20), scale=0.1), frames=3))


@environment
class RandomStep(Noisy):
    """Every episode starts at the same place, without a draw; the steps draw from their own key."""

    def reset(self, key):
        walk = WalkState(jnp.zeros(()), jnp.zeros(()))
        state = {"walk": walk, "key": jax.random.key(0), "steps": jnp.zeros((), jnp.int32)}
        return state, restart(jnp.stack(walk))


@environment
class KeyInState(Noisy):
    """The steps draw from a key in the state, which each splits, and leave their own alone."""

    def step(self, state, action, key):
        return Noisy.step(self, {**state, "key": jax.random.split(state["key"])}, action, key)

    def key_of_step(self, state, key):
        return state["key"][1]

    def next_key(self, state, key):
        return state["key"][0]


@environment
class KeyFoldedByStep(Noisy):
    """The steps draw from the episode's key and the number of the step."""

    def key_of_step(self, state, key):
        return jax.random.fold_in(state["key"], state["steps"])


@environment
class KeyOfTheStepBefore(Noisy):
    """Each step stores its key for the next."""

    def key_of_step(self, state, key):
        return state["key"]

    def next_key(self, state, key):
        return key


@environment
class RawKeyInState(Noisy):
    """As `KeyInState`, with a key of the old kind, which is an array of two words."""

    def reset(self, key):
        state, timestep = Noisy.reset(self, key)
        return {**state, "key": jax.random.key_data(key)}, timestep

    def key_of_step(self, state, key):
        return jax.random.split(jax.random.wrap_key_data(state["key"]))[1]

    def next_key(self, state, key):
        return jax.random.key_data(jax.random.split(jax.random.wrap_key_data(state["key"]))[0])


@environment
class FixedMap(Noisy):
    """A pattern from a constant key, the same in every episode, beside draws from the keys that are given."""

    def reset(self, key):
        state, timestep = Noisy.reset(self, key)
        return state, timestep._replace(observation=timestep.observation + self.map())

    def step(self, state, action, key):
        state, timestep = Noisy.step(self, state, action, key)
        return state, timestep._replace(observation=timestep.observation + self.map())

    def map(self):
        return jax.random.uniform(jax.random.key(5), (2,), maxval=0.1)


@environment
class KeysForSilentParts(Walk):
    """The key is split for two parts of the world, neither of which draws anything."""

    def step(self, state, action, key):
        first, second = jax.random.split(key)
        state, _ = Walk.step(self, state, action, first)
        return Walk.step(self, state, action, second)


@environment
class CopiesItsState(Dictionary):
    """A dictionary is changed, but not the one that was given."""

    def step(self, state, action, key):
        return Dictionary.step(self, dict(state), action, key)


@environment
class CounterThatShows(UnsignedClock):
    """What ends the episode counts alone, and the agent sees it: it is part of the task."""

    def reset(self, key):
        state, timestep = UnsignedClock.reset(self, key)
        return state, timestep._replace(observation=timestep.observation.at[1].set(state["clock"] / 10))

    def step(self, state, action, key):
        state, timestep = UnsignedClock.step(self, state, action, key)
        return state, timestep._replace(observation=timestep.observation.at[1].set(state["clock"] / 10))


@environment
class InfoOfTheDead(Pair):
    """What `info` says of an agent that is dead may be anything."""

    def seen(self, timestep, alive):
        timestep = Pair.seen(self, timestep, alive)
        return timestep._replace(info={"health": jnp.where(alive, 1.0, jnp.nan)})


@environment
class LateChoice(Walk):
    """The action counts once, after more steps than a block has."""

    length: int = 200

    def reset(self, key):
        state = ClockState(jax.random.uniform(key), jnp.zeros((), jnp.int32))
        return state, restart(jnp.stack([state.position, 0.0]))

    def step(self, state, action, key):
        is_last = state.steps == self.length
        state = ClockState(state.position, state.steps + 1)
        observation = jnp.stack([state.position, state.steps / self.length])
        return state, transition(observation, jnp.where(is_last, action - 1.0, 0.0), terminated=is_last)


@environment
class HiddenHunger(Walk):
    """Hunger falls at each step, is not shown, and ends the episode; random actions never run fast enough to eat."""

    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return {"walk": state, "hunger": jnp.asarray(40, jnp.int32)}, timestep

    def step(self, state, action, key):
        walk, _ = Walk.step(self, state["walk"], action, key)
        walk = WalkState(jnp.clip(walk.position, -2, 2), walk.velocity)
        hunger = jnp.where(walk.velocity > 0.95, 40, state["hunger"] - 1)
        timestep = transition(jnp.stack(walk), 0.0, terminated=hunger <= 0)
        return {"walk": walk, "hunger": hunger}, timestep


@environment
class BetPaidAtTheEnd(Walk):
    """The first action is a bet, which is paid after 100 steps; at the start there is none to pay."""

    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return {"walk": state, "steps": jnp.int32(0), "bet": jnp.float32(0)}, timestep

    def step(self, state, action, key):
        walk, _ = Walk.step(self, state["walk"], action, key)
        walk = jax.tree.map(lambda x: jnp.clip(x, -2, 2), walk)
        bet = jnp.where(state["steps"] == 0, action - 1.0, state["bet"])
        steps = state["steps"] + 1
        reward = jnp.where(steps >= 100, bet, 0.0)
        return {"walk": walk, "steps": steps, "bet": bet}, transition(
            jnp.stack(walk), reward, terminated=steps >= 100
        )


@environment
class LeavesTheField(Walk):
    """What lies outside is not simulated, so that an episode is cut there."""

    def step(self, state, action, key):
        state, timestep = Walk.step(self, state, action, key)
        return state, timestep._replace(discount=jnp.ones(()))


@environment
class EndsAtOnePlace(Walk):
    """Every end is the same state, whatever was before it; the start is drawn."""

    def step(self, state, action, key):
        state, timestep = Walk.step(self, state, action, key)
        state = jax.tree.map(lambda x: jnp.where(timestep.last, 0.0, x), state)
        return state, timestep._replace(observation=jnp.stack(state))


class Label:
    """A static part of a state that compares by value, and whose text has an address."""

    def __eq__(self, other):
        return isinstance(other, Label)

    def __hash__(self):
        return 0


@struct
class Labelled:
    """A state with such a part, made anew by each call."""

    walk: WalkState
    label: Label


@environment
class AddressInTheStructure(Walk):
    """The structure of its state is equal after each call, and prints otherwise."""

    def reset(self, key):
        state, timestep = Walk.reset(self, key)
        return Labelled(state, Label()), timestep

    def step(self, state, action, key):
        state, timestep = Walk.step(self, state.walk, action, key)
        return Labelled(state, Label()), timestep


GOOD = {
    env.__name__: env
    for env in (
        Walk, Pair, Everything, FiniteHorizon, BlindHorizon, Huge, CountsItsCalls, JittedMethods, box_walk,
        RandomStep, KeyInState, KeyFoldedByStep, KeyOfTheStepBefore, RawKeyInState, FixedMap, KeysForSilentParts,
        CopiesItsState, CounterThatShows, InfoOfTheDead, LateChoice,
        HiddenHunger, BetPaidAtTheEnd, LeavesTheField, EndsAtOnePlace, AddressInTheStructure,
    )
}  # fmt: skip


GOOD_OFTEN = """
    BetPaidAtTheEnd LateChoice BlindHorizon LeavesTheField EndsAtOnePlace box_walk KeyInState HiddenHunger
"""


@pytest.mark.full
@pytest.mark.parametrize("name", GOOD)
@pytest.mark.rare(*(set(GOOD) - set(GOOD_OFTEN.split())))
def test_nothing_is_found_in_a_good_environment(name):
    assert check(GOOD[name]()) == []


@pytest.mark.parametrize(
    "name", ["CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1", "Pendulum-v1"]
)
@pytest.mark.full
@pytest.mark.rare("CartPole-v1", "MountainCar-v0", "MountainCarContinuous-v0", "Acrobot-v1")
def test_nothing_is_found_in_a_classic_environment(name):
    assert check(make(name)) == []


@pytest.mark.parametrize("name", [name for name in one_of_each() if name.startswith(("MiniGrid", "XLand"))])
@pytest.mark.full
@pytest.mark.rare("MiniGrid-BlockedUnlockPickUp", "XLand-MiniGrid-R1-11x11")
def test_nothing_is_found_in_a_grid_world(name):
    assert check(make(name), keys=4, steps=32) == []


@pytest.mark.parametrize("name", environments())
@pytest.mark.quick(
    "CartPole-v1", "Pendulum-NoVelocity-v1", "MemoryChain-v0", "MiniGrid-DoorKey-5x5", "XLand-MiniGrid-R1-9x9"
)
@pytest.mark.rare(*(set(environments()) - {*one_of_each(), "MiniGrid-DoorKey-5x5", "XLand-MiniGrid-R1-9x9"}))
def test_the_keys_of_every_environment_reach_what_is_drawn(name):
    key, env = jax.random.key(0), make(name)
    assert list(check_key_flow(env, trace(env, key, lambda doing: None), key)) == []


@pytest.mark.parametrize(
    "name", [x for x, value in vars(probes).items() if hasattr(value, "best_action") and x != "Probe"]
)
@pytest.mark.slow
def test_a_probe_is_found_only_to_be_as_simple_as_it_is_meant(name):
    env = getattr(probes, name)()
    simple = {finding.rule for finding in check(env)}
    assert simple <= {"key-ignored", "action-ignored"}
    assert check(env, ignore=simple) == []


# --- The checker itself ---------------------------------------------------------------------------

ODD = [None, "text", (), [], {}, 3, 1.5, object(), np.float64(1), np.array("x"), {"a": 1}, 10**30, print]


@pytest.mark.parametrize("field", ["observation", "reward", "discount", "first", "last", "alive", "info"])
@pytest.mark.parametrize("method", [pytest.param("reset", marks=pytest.mark.slow), "step"])
@pytest.mark.full
@pytest.mark.rare(*(f"step-{field}" for field in ("reward", "discount", "last", "alive", "info")))
def test_odd_values_in_a_timestep_are_findings_and_no_errors(method, field):
    number = [np.float64(1)]
    harmless = {"alive": [None], "info": [{}, {"a": 1}], "discount": number, "reward": number}
    for odd in ODD:

        def changed(self, *args, odd=odd):
            state, timestep = getattr(Walk, method)(self, *args)
            return state, timestep._replace(**{field: odd})

        env = environment(type("Odd", (Walk,), {method: changed}))()
        findings = check(env, keys=2, steps=2, max_steps=2, ignore=["never-ends"])
        assert all(isinstance(finding, Finding) for finding in findings)
        if not any(odd is value or repr(odd) == repr(value) for value in harmless.get(field, [])):
            assert findings, (method, field, odd)


@pytest.mark.full
@pytest.mark.parametrize("method", ["reset", "step"])
def test_odd_results_are_findings_and_no_errors(method):
    for odd in ODD:
        env = environment(type("Odd", (Walk,), {method: lambda self, *args, odd=odd: odd}))()
        assert [finding.rule for finding in check(env)] == ["return-value", "not-checked"]


@pytest.mark.parametrize("attribute", ["observation_space", "action_space", "num_agents", "info_summaries"])
@pytest.mark.rare("info_summaries")
def test_odd_attributes_are_findings_and_no_errors(attribute):
    harmless = {"num_agents": [], "info_summaries": [{}]}.get(attribute, [])
    for odd in ODD[:7] if attribute == "info_summaries" else ODD:
        if odd in (3, 10**30) and attribute == "num_agents":
            continue
        findings = check(environment(type("Odd", (Walk,), {attribute: odd}))())
        assert bool(findings) == (odd not in harmless), (attribute, odd)


def test_odd_objects_are_findings_and_no_errors():
    for odd in ODD:
        assert check(odd)


@pytest.mark.full
def test_endless_recursion_is_a_finding():
    env = environment(type("Deep", (Walk,), {"step": lambda self, *args: self.step(*args)}))()
    rules = [finding.rule for finding in check(env)]
    assert rules == ["raises", "not-checked"]


@pytest.mark.full
def test_more_agents_than_there_are_is_a_finding():
    env = environment(type("Three", (Pair,), {"num_agents": 3}))()
    assert {finding.rule for finding in check(env)} == {"agents", "not-checked"}


def test_a_rule_is_named_at_most_three_times():
    def step(self, state, action, key):
        return {str(i): jnp.zeros(2) for i in range(50)}, Walk.step(
            self, Walk.reset(self, key)[0], action, key
        )[1]

    def reset(self, key):
        return {str(i): jnp.zeros(3) for i in range(50)}, Walk.reset(self, key)[1]

    env = environment(type("Wide", (Walk,), {"step": step, "reset": reset}))()
    assert [finding.rule for finding in check(env)] == ["state-changes"] * 3 + ["not-checked"]


@pytest.mark.full
def test_equal_checks_find_the_same():
    env = CASES["ObservationOutside"].make()
    assert check(env, seed=4) == check(env, seed=4)


@pytest.mark.full
def test_ignored_rules_are_left_out():
    env = environment(type("Three", (Pair,), {"num_agents": 3}))()
    assert [finding.rule for finding in check(env, ignore="agents")] == ["not-checked"]
    assert check(env, ignore=("agents", "not-checked")) == []
    with pytest.raises(ShoalError, match=r"'key_ignored' is not a rule .* did you mean 'key-ignored'"):
        check(env, ignore=("key_ignored",))


@pytest.mark.parametrize("argument", ["keys", "steps", "max_steps"])
def test_too_small_sizes_are_refused(argument):
    with pytest.raises(ShoalError, match=f"{argument}=1 is too small: it must be at least 2"):
        shoal.check(Walk(), **{argument: 1})


def test_report_names_the_environment_and_every_finding():
    assert report([], "Walk") == "Walk: nothing found"
    findings = [Finding("discount", "word " * 40), Finding("not-checked", "the rest was left out")]
    lines = report(findings, "Walk").splitlines()
    assert lines[0] == "Walk: 1 finding"
    assert (
        lines[1].startswith("  discount     word word")
        and lines[-1] == "  not-checked  the rest was left out"
    )
    assert max(map(len, lines)) <= 100


# --- Time ------------------------------------------------------------------------------------------


@environment
class Forever:
    """No step ends an episode."""

    observation_space = Box(-1, 1, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        return jnp.int32(0), restart(jnp.zeros(1))

    def step(self, state, action, key):
        return state + 1, transition(jnp.zeros(1), 1.0)


@environment
class Rarely(Forever):
    """An end depends on the step, far away."""

    def step(self, state, action, key):
        return state + 1, transition(jnp.zeros(1), 1.0, terminated=state > 2**30)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        (Forever(), True),
        (FrameStack(Forever(), 2), True),
        (TimeLimit(Forever(), 3), False),
        (Rarely(), False),
        (make("CartPole-v1", max_episode_steps=None), False),
        (make("probe/constant"), False),  # each step ends an episode
    ],
    ids=repr,
)
def test_an_environment_that_no_step_ends_is_known_for_certain(env, expected):
    assert never_ends(env) == expected


@pytest.mark.full
def test_a_run_says_before_training_that_no_episode_will_end(capsys):
    for env, words in (
        (Forever(), "Forever ends an episode, so that .* max_episode_steps=1000"),
        (Rarely(), "^$"),
    ):
        plan_run(decide(env, overrides={"eval_max_steps": 50}), Caller())
        assert re.search(words, capsys.readouterr().err)


def test_what_is_tried_is_said_after_some_seconds_and_again_after_twice_as_many(capsys):
    with reported_activity(progress=True, patience=0.5) as activity:
        activity("walking")
        time.sleep(0.2)
        activity("running")
        time.sleep(1.5)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2 and all(line.startswith("shoal check: still running, for") for line in lines)


# --- The page about it ----------------------------------------------------------------------------

PAGE = Path(__file__).parents[3] / "docs" / "checker.md"


def test_the_page_lists_every_rule():
    assert dict(re.findall(r"^\| `([a-z-]+)` \| (.*) \|$", PAGE.read_text(), re.MULTILINE)) == RULES
