"""Code of the user's that fails: one sentence with its file and line, its own frames, and nothing left behind."""

import re
import sys
import textwrap
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest

import shoal
from shoal.base.errors import ShoalError, UserCodeError
from shoal.base.user_errors import reports_user_code, user_code_error
from shoal.cli import main
from shoal.config.struct import with_saved_parts
from shoal.envs import registry
from shoal.envs.checking.check_contract import require_contract
from shoal.monitor.progress import Activity

pytestmark = pytest.mark.usefixtures("undrawn")

ENVIRONMENT = """
import sys
import jax
import jax.numpy as jnp
import numpy as np
import shoal
from shoal.types.spaces import Box, Discrete


@shoal.environment
class Plain:
    length: float = 8.0
    observation_space = Box(0.0, 100.0, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        return jnp.zeros(1), shoal.restart(jnp.zeros(1))

    def step(self, state, action, key):
        state = state + action
        return state, shoal.transition(state, reward=-1.0, terminated=state[0] >= self.length)


def fail(x):
    raise ValueError("too much")
"""

# What is wrong with an environment, in place of a part of it; the line that fails ends in `# here`.
ENVIRONMENTS = {
    "step raises": (
        "def step(self, state, action, key):\n    raise RuntimeError('out of cheese')  # here",
        "Mine.step failed in {here}: RuntimeError: out of cheese.",
    ),
    "reset raises": (
        "def reset(self, key):\n    return {}['start']  # here",
        "Mine.reset failed in {here}: KeyError: 'start'.",
    ),
    "an if": (
        "def step(self, state, action, key):\n    if state[0] > 3:  # here\n        state *= 0\n    return state",
        "Mine.step failed in {here}: TracerBoolConversionError: a Python condition",
    ),
    "an if on a parameter": (
        "def reset(self, key):\n    return jnp.zeros(1) if self.length > 3 else 2  # here",
        "Mine.reset failed in {here}: TracerBoolConversionError",
    ),
    "a float": (
        "def step(self, state, action, key):\n    return float(state[0])  # here",
        "Mine.step failed in {here}: ConcretizationTypeError: a traced value where Python needs a number",
    ),
    "an index": (
        "def step(self, state, action, key):\n    return (1, 2)[action]  # here",
        "Mine.step failed in {here}: TracerIntegerConversionError",
    ),
    "NumPy": (
        "def step(self, state, action, key):\n    return np.sin(state)  # here",
        "Mine.step failed in {here}: TracerArrayConversionError: a NumPy function of a traced value",
    ),
    "a mask as index": (
        "def step(self, state, action, key):\n    return state[state > 0]  # here",
        "Mine.step failed in {here}: NonConcreteBooleanIndexError",
    ),
    "within vmap": (
        "def step(self, state, action, key):\n    return jax.vmap(lambda x: fail(x))(state)  # here",
        "Mine.step failed in {fail}: ValueError: too much.",
    ),
    "within scan": (
        "def step(self, state, action, key):\n    def body(x, _):\n        return x @ jnp.ones(3), None  # here\n"
        "    return jax.lax.scan(body, state, None, length=2)",
        "Mine.step.body failed in {here}: TypeError: dot_general",
    ),
    "exit": (
        "def step(self, state, action, key):\n    sys.exit(0)  # here",
        "Mine.step failed in {here}: SystemExit: 0, which ends the process.",
    ),
    "recursion": (
        "def step(self, state, action, key):\n    return self.step(state, action, key)  # here",
        "Mine.step failed in {here}: RecursionError: maximum recursion depth exceeded",
    ),
    "an error without words": (
        "def step(self, state, action, key):\n    assert 1 == 2  # here",
        "Mine.step failed in {here}: AssertionError.",
    ),
    "other parameters": (
        "def step(self, state, action):  # here\n    return state",
        "Mine.step failed in {here}: TypeError: Mine.step() takes 3 positional arguments but 4 were given.",
    ),
    "a property": (
        "@property  # here\ndef observation_space(self):\n    return fail(self)",
        "failed in {fail}: ValueError: too much.",
    ),
}

# Nothing in these raises: what is returned does not fit.
MISFITS = {
    "one value": (
        "def step(self, state, action, key):  # here\n    return state",
        "Mine.step ({here}) returns float32[1]; it must return (state, TimeStep), by",
    ),
    "another pair": (
        "def step(self, state, action, key):\n    return state, 1.0",
        "returns a float as its second value; it must return (state, TimeStep), by shoal.restart",
    ),
    "None": (
        "def reset(self, key):  # here\n    pass",
        "Mine.reset ({here}) returns None; it must return (state, TimeStep), by shoal.restart",
    ),
    "another state": (
        "def step(self, state, action, key):\n    state, timestep = Plain.step(self, state, action, key)\n"
        "    return state[0], timestep",
        "the state is float32[1] after reset and float32 after step",
    ),
    "another structure": (
        "def step(self, state, action, key):\n    state, timestep = Plain.step(self, state, action, key)\n"
        "    return {'x': state}, timestep",
        "the state is float32[1] after reset and missing after step",
    ),
    "another dtype": (
        "def step(self, state, action, key):\n    state, timestep = Plain.step(self, state, action, key)\n"
        "    return state.astype(int), timestep",
        "the state is float32[1] after reset and int32[1] after step",
    ),
    "a reward with an axis": (
        "def step(self, state, action, key):\n    return state, shoal.transition(state, reward=-state)",
        "`reward` of step has shape [1]; a scalar would be right",
    ),
    "another observation": (
        "def step(self, state, action, key):\n    return state, shoal.transition(jnp.zeros(2), reward=0.0)",
        "observation of step has shape [2]; [1] would be right",
    ),
    "an observation of both": (
        "observation_space = Box(0.0, 1.0, (3,))",
        "observation of reset has shape [1]; [3] would be right",
    ),
    "info": (
        "def step(self, state, action, key):\n    return state, shoal.transition(state, 0.0, info={'x': state})",
        "info",
    ),
    "no time-step's reward": (
        "def reset(self, key):\n    return jnp.zeros(1), shoal.restart(jnp.zeros(1))._replace(reward=None)",
        "returns None as `reward`",
    ),
    "a traced value kept": (
        "def reset(self, key):\n    KEPT.append(jax.random.uniform(key))\n    return Plain.reset(self, key)\n"
        "def step(self, state, action, key):  # here\n    return Plain.step(self, state + KEPT[0], action, key)",
        "an_env:Mine ({here}) cannot be run: reset or step keeps a traced value in another place than the state",
    ),
    "a space of another library": ("action_space = 3", "action_space is a builtins.int"),
    "a summary of nothing": ("info_summaries = {'x': 'sum'}", "info_summaries names 'x'"),
}

NETWORK = """
import jax
import jax.numpy as jnp
from flax import nnx
from shoal.nets.mlp import MLP
from shoal.ops.distributions import Categorical


class Plain(nnx.Module):
    def __init__(self, spec, *, key):
        self.actor_mlp = MLP(4, (4,), 2, key=key)
        self.critic_mlp = MLP(4, (4,), 1, key=key)

    def policy(self, observation, action_mask=None):
        return Categorical(self.actor_mlp(observation))

    def value(self, observation):
        return self.critic_mlp(observation)[..., 0]
"""

NETWORKS = {
    "value raises": (
        "def value(self, observation):\n    raise RuntimeError('no value')  # here",
        "Mine.value failed in {here}: RuntimeError: no value.",
    ),
    "an if": (
        "def value(self, observation):\n    return observation if observation.sum() > 0 else 1  # here",
        "Mine.value failed in {here}: TracerBoolConversionError",
    ),
    "policy raises": (
        "def policy(self, observation, action_mask=None):\n    return observation @ jnp.ones((3, 2))  # here",
        "Mine.policy failed in {here}: TypeError: dot_general",
    ),
    "the constructor raises": (
        "def __init__(self, spec, *, key):\n    self.size = spec.size  # here",
        "Mine.__init__ failed in {here}: AttributeError",
    ),
    "the constructor has a type error of its own": (
        "def __init__(self, spec, *, key):\n    len(3)  # here",
        "Mine.__init__ failed in {here}: TypeError: object of type 'int' has no len().",
    ),
    "an if in the constructor": (
        "def __init__(self, spec, *, key):\n    super().__init__(spec, key=key)\n"
        "    if jax.random.uniform(key) < 2:  # here\n        pass",
        "Mine.__init__ failed in {here}: TracerBoolConversionError",
    ),
    "no mask": (
        "def policy(self, observation):  # here\n    return Plain.policy(self, observation)",
        "Mine.policy failed in {here}: TypeError: Mine.policy() takes 2 positional arguments but 3 were given.",
    ),
    "no distribution": (
        "def policy(self, observation, action_mask=None):\n    pass",
        "Mine.policy (a_net.py, line 22) returns None without the method 'sample'",
    ),
    "values of another shape": (
        "def value(self, observation):\n    return self.critic_mlp(observation)",
        "Mine.value (a_net.py, line 22) returns values of float32[3, 2, 1]; it must return float32[3, 2], one for each",
    ),
    "whole values": (
        "def value(self, observation):\n    return self.critic_mlp(observation)[..., 0].astype(int)",
        "Mine.value (a_net.py, line 22) returns values of int32[3, 2]; it must return float32",
    ),
}

ALGORITHM = """
import jax
import jax.numpy as jnp
from shoal.config.struct import struct
from shoal.types import Algorithm, Learner, Mean


@struct
class Plain:
    rate: float = 0.5

    def init(self, key, num_envs):
        return Learner({"weights": jnp.zeros(2)}, ())

    def act(self, policy, memory, timestep, key, greedy):
        return memory, jnp.zeros(timestep.last.shape, jnp.int32), ()

    def update(self, learner, trajectory, keys, clock):
        return learner, {"loss": Mean(jnp.zeros(()), jnp.ones(()))}

    def algorithm(self, spec, axis=()):
        def act(policy, memory, timestep, key, *, greedy=False):
            return self.act(policy, memory, timestep, key, greedy)

        def update(learner, trajectory, keys, clock):
            return self.update(learner, trajectory, keys, clock)

        return Algorithm(self.init, lambda shape: (), lambda learner, clock: learner.shared, act, update)
"""

ALGORITHMS = {
    "act raises": (
        "def act(self, policy, memory, timestep, key, greedy):\n    raise RuntimeError('no act')  # here",
        "Mine.act failed in {here}: RuntimeError: no act.",
    ),
    "update raises": (
        "def update(self, learner, trajectory, keys, clock):\n    return learner.weights  # here",
        "Mine.update failed in {here}: AttributeError",
    ),
    "an if on the progress": (
        "def update(self, learner, trajectory, keys, clock):\n    return 1 if clock.progress > 0.5 else 2  # here",
        "Mine.update failed in {here}: TracerBoolConversionError",
    ),
    "an if on a float of the config": (
        "def init(self, key, num_envs):\n    return 1 if self.rate > 0.1 else 2  # here",
        "Mine.init failed in {here}: TracerBoolConversionError",
    ),
    "other parameters": (
        "def init(self, key):  # here\n    pass",
        "Mine.init failed in {here}: TypeError: Mine.init() takes 2 positional arguments but 3 were given.",
    ),
    "no axis": (
        "def algorithm(self, spec):  # here\n    pass",
        "Mine.algorithm failed in {here}: TypeError: Mine.algorithm() takes 2 positional arguments but 3 were given.",
    ),
    "validate raises": (
        "def validate(self, spec, num_envs, num_steps):\n    raise RuntimeError('never')  # here",
        "Mine.validate failed in {here}: RuntimeError: never.",
    ),
    "resolved raises": (
        "def resolved(self):\n    return self.cores  # here",
        "Mine.resolved failed in {here}: AttributeError",
    ),
    "resolved into nothing": ("def resolved(self):\n    pass", "Mine.resolved returns a NoneType"),
    "no algorithm": (
        "def algorithm(self, spec, axis=()):\n    return 1, 2, 3",
        "Mine.algorithm (an_algorithm.py, line 32) returns 3 values; it must return a shoal.types.Algorithm.",
    ),
    "no learner": (
        "def init(self, key, num_envs):\n    return {}",
        "Mine.init (an_algorithm.py, line 32) returns a dict; it must return a shoal.types.Learner.",
    ),
    "an action alone": (
        "def act(self, policy, memory, timestep, key, greedy):\n    return jnp.zeros(timestep.last.shape, int)",
        "Plain.algorithm.act (an_algorithm.py, line 22) returns int32[4]; it must return (memory, action, extras).",
    ),
    "one action for all": (
        "def act(self, policy, memory, timestep, key, greedy):\n    return memory, jnp.int32(0), ()",
        "returns actions of int32[] for 4 environments with action_space=Discrete(n=2); it must return an array [4].",
    ),
    "another memory": (
        "def act(self, policy, memory, timestep, key, greedy):\n"
        "    return jnp.ones(3), jnp.zeros(timestep.last.shape, int), ()",
        "returns a memory whose 'value' is float32[3], and was given none",
    ),
    "a learner of another shape": (
        "def update(self, learner, trajectory, keys, clock):\n    return Learner({'weights': jnp.ones(3)}, ()), {}",
        "returns a learner whose 'shared/weights' is float32[3], and was given float32[2]",
    ),
    "a learner without a part": (
        "def update(self, learner, trajectory, keys, clock):\n    return Learner({}, ()), {}",
        "returns a learner whose 'shared/weights' is missing, and was given float32[2]",
    ),
    "no metrics": (
        "def update(self, learner, trajectory, keys, clock):\n    return learner",
        "returns a Learner; it must return (learner, metrics) or (learner, metrics, checks).",
    ),
    "a metric that is no mean": (
        "def update(self, learner, trajectory, keys, clock):\n    return learner, {'loss': jnp.zeros(())}",
        "Plain.algorithm.update (an_algorithm.py, line 25) returns the metric 'loss' as float32[]; it must return a",
    ),
}

FUNCTIONS = {
    "score raises": (
        "score",
        "return metrics['nothing']  # here",
        "mine failed in {here}: KeyError: 'nothing'.",
    ),
    "an if in the score": (
        "score",
        "return 1 if metrics['return_mean'] > 0 else 0  # here",
        "mine failed in {here}: TracerBoolConversionError",
    ),
    "no score": ("score", "pass", "mine (a_function.py, line 2) returns None; it must return one number."),
    "several scores": (
        "score",
        "return jnp.ones(3)",
        "returns float32[3]; it must return one number.",
    ),
    "eval_metrics raises": (
        "eval-metrics",
        "return metrics.nothing  # here",
        "mine failed in {here}: AttributeError",
    ),
    "no metrics": (
        "eval-metrics",
        "pass",
        "mine (a_function.py, line 2) returns None; it must return a mapping from names to metrics.",
    ),
    "a metric of several": (
        "eval-metrics",
        "return {'x': metrics.length}",
        "mine (a_function.py, line 2) returns 'x' as float32[2]; it must return one number.",
    ),
}

TINY = "--seeds=1 --num-envs=4 --num-steps=8 --total-steps=64 --num-evals=1 --eval-episodes=2 --quiet"


@pytest.fixture
def shell(tmp_path, monkeypatch, capsys):
    """Runs the command in this process, from an empty directory, and checks what holds of every failure."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(
        Activity, "_write", lambda self: None
    )  # what takes long on a slow machine is told there
    before = set(sys.modules)

    def write(name: str, source: str, *parts: str) -> SimpleNamespace:
        text = "\n".join([source, *parts]) + "\n"
        (tmp_path / f"{name}.py").write_text(text)
        lines = [i for i, line in enumerate(text.splitlines(), 1) if line.endswith("# here")]
        fail = f"{name}.py, line {text[: text.find('raise ValueError')].count(chr(10)) + 1}"
        here = f"{name}.py, line {lines[0]}" if lines else ""
        return SimpleNamespace(file=f"{name}.py", here=here, fail=fail, name=name)

    def refused(*words: str) -> str:
        """What the command says when it fails because of the user's code; it leaves nothing behind."""
        files = {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts}
        assert main([str(word) for word in words]) == 2
        told = capsys.readouterr()
        assert told.out == ""
        check_told(told.err)
        assert {path for path in tmp_path.rglob("*") if "__pycache__" not in path.parts} == files
        return told.err

    yield SimpleNamespace(write=write, refused=refused, path=tmp_path, capsys=capsys)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def check_told(text: str) -> None:
    """One sentence, then at most frames of the user's own."""
    sentence, *frames = text.rstrip("\n").split("\n")
    assert sentence.startswith("shoal: ")
    assert sentence.endswith(".")
    assert all(line.startswith(("  File ", "    ", "  [Previous line")) for line in frames)
    assert "Traceback" not in text
    assert not re.search(r"site-packages|src/shoal|lib/python", text)


def with_class(decorator: str, part: str) -> str:
    """A class `Mine` with a part that is another than that of `Plain`."""
    return f"{decorator}\nclass Mine(Plain):\n{textwrap.indent(part, '    ')}\n"


def expected(sentence: str, written: SimpleNamespace) -> str:
    return sentence.format(here=written.here, fail=written.fail)


ROLLOUT = "rollout {name}:Mine --envs 4 --steps 4"
TRAINED = ("step raises", "an if on a parameter", "exit", "another state", "a reward with an axis")


@pytest.mark.quick("another state-rollout {name}:Mine --envs 4 --steps 4")
@pytest.mark.parametrize(
    ("case", "words"),
    [(case, ROLLOUT) for case in ENVIRONMENTS | MISFITS]
    + [(case, "train {name}:Mine " + TINY) for case in TRAINED],
)
def test_an_environment_that_fails(shell, case, words):
    part, sentence = (ENVIRONMENTS | MISFITS)[case]
    mine = shell.write("an_env", ENVIRONMENT, "KEPT = []", with_class("@shoal.environment", part))
    told = shell.refused(*words.format(name=mine.name).split())
    assert expected(sentence, mine) in told
    if case in ENVIRONMENTS:
        assert f'File "{shell.path / mine.file}", line ' in told
    else:
        assert told.endswith("`shoal check an_env:Mine` tells more.\n") or "it must return" in told
        assert told.count("\n") == 1


@pytest.mark.quick("no mask")
@pytest.mark.parametrize("case", NETWORKS)
def test_a_network_that_fails(shell, case):
    part, sentence = NETWORKS[case]
    mine = shell.write("a_net", NETWORK, with_class("", part))
    told = shell.refused("train", "CartPole-v1", "--no-preset", "--network", "a_net:Mine", *TINY.split())
    assert expected(sentence, mine) in told
    assert ("  File " in told) == ("here" in sentence)


@pytest.mark.quick("no algorithm")
@pytest.mark.parametrize("case", ALGORITHMS)
def test_an_algorithm_that_fails(shell, case):
    part, sentence = ALGORITHMS[case]
    mine = shell.write("an_algorithm", ALGORITHM, with_class("@struct", part))
    told = shell.refused("train", "CartPole-v1", "--algorithm", "an_algorithm:Mine", *TINY.split())
    assert expected(sentence, mine) in told
    assert ("  File " in told) == ("here" in sentence)


@pytest.mark.quick("an if in the score")
@pytest.mark.parametrize("case", FUNCTIONS)
def test_a_function_of_an_evaluation_that_fails(shell, case):
    flag, body, sentence = FUNCTIONS[case]
    shell.write("an_algorithm", ALGORITHM)
    mine = shell.write("a_function", "import jax.numpy as jnp", f"def mine(metrics):\n    {body}")
    words = ["train", "CartPole-v1", "--algorithm", "an_algorithm:Plain", *TINY.split()]
    told = shell.refused(*words, f"--{flag}", "a_function:mine")
    assert expected(sentence, mine) in told


@pytest.mark.full
def test_what_is_sound_runs(shell):
    """The parts of the tables work by themselves, so that each failure is of the part that is named."""
    shell.write("an_env", ENVIRONMENT, "Sound = Plain")
    shell.write("an_algorithm", ALGORITHM)
    words = f"train an_env:Sound max_episode_steps=5 --algorithm an_algorithm:Plain --run-dir run {TINY}"
    assert main(words.split()) == 0
    assert main(["eval", "run", "--episodes", "2"]) == 0
    shell.capsys.readouterr()
    # The same run, after its environment was changed.
    shell.write(
        "an_env",
        ENVIRONMENT,
        with_class("@shoal.environment", ENVIRONMENTS["step raises"][0]),
        "Sound = Mine",
    )
    del sys.modules["an_env"]
    assert "Mine.step failed in an_env.py, line 30: RuntimeError: out of cheese." in shell.refused(
        "eval", "run"
    )
    shell.write("an_env", "Sound = 3 +")
    del sys.modules["an_env"]
    assert "failed in an_env.py, line 1: SyntaxError: invalid syntax." in shell.refused("eval", "run")
    (shell.path / "an_env.py").unlink()
    assert "there is no module 'an_env'" in shell.refused("eval", "run")


@pytest.mark.full
def test_a_picture_that_fails(shell):
    mine = shell.write(
        "an_env",
        ENVIRONMENT,
        with_class("@shoal.environment", "def render(self, state):\n    fail(state)  # here"),
    )
    shell.write("an_algorithm", ALGORITHM)
    words = f"train an_env:Mine max_episode_steps=5 --algorithm an_algorithm:Plain --run-dir run {TINY}"
    assert main(words.split()) == 0
    shell.capsys.readouterr()
    told = shell.refused("eval", "run", "--episodes", "2", "--render", "film.gif")
    assert f"Mine.render failed in {mine.fail}: ValueError: too much." in told
    assert f"line {mine.here.rpartition(' ')[2]}, in render" in told


def test_a_callback_that_fails_when_it_runs():
    def fail(x):
        raise ValueError("too much")

    def compute(x):
        return jax.pure_callback(fail, x, x)

    with pytest.raises(
        UserCodeError, match=r"fail failed in .*base/test_user_errors.py, line \d+: ValueError: too much\.$"
    ) as raised:
        reports_user_code(lambda: jax.block_until_ready(jax.jit(compute)(jnp.float32(1.0))))()
    assert raised.value.frames.count("File ") == 1
    assert raised.value.frames.endswith('raise ValueError("too much")')


def test_the_checker_finds_what_fails_in_an_environment(shell):
    shell.write("an_env", ENVIRONMENT, with_class("@shoal.environment", ENVIRONMENTS["step raises"][0]))
    assert main(["check", "an_env:Mine"]) == 1
    assert "out of cheese" in shell.capsys.readouterr().out
    shell.write("a_module", "raise RuntimeError('not today')")
    assert "failed in a_module.py, line 1: RuntimeError: not today." in shell.refused(
        "check", "a_module:Mine"
    )


# ---- in Python


@shoal.environment
class Walk:
    """A sound environment, whose subclasses here are not."""

    observation_space = shoal.make("probe/action").observation_space
    action_space = shoal.make("probe/action").action_space

    def reset(self, key):
        return jnp.zeros(1), shoal.restart(jnp.zeros(1))

    def step(self, state, action, key):
        return state, shoal.transition(state, reward=0.0)


@shoal.environment
class Broken(Walk):
    def step(self, state, action, key):
        raise LookupError("no way")


@pytest.mark.parametrize(
    "call",
    [
        lambda: shoal.rollout(Broken(), num_envs=2, num_steps=2),
        lambda: shoal.train(Broken(), progress=False),
    ],
)
def test_in_python_the_error_is_chained_to_its_cause(call, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ShoalError) as raised:
        call()
    assert isinstance(raised.value, UserCodeError)
    assert isinstance(raised.value.__cause__, LookupError)
    assert str(raised.value).startswith("Broken.step failed in ")
    assert raised.value.frames.endswith('raise LookupError("no way")')
    assert raised.value.frames.count("File ") == 1  # neither this test's frame nor one of Shoal's
    assert list(tmp_path.iterdir()) == []


def test_a_constructor_that_fails(monkeypatch):
    def made(size: int = 3):
        raise OSError("no such map")

    monkeypatch.setattr(registry, "_entries", dict(registry._entries))
    shoal.register("user-code/made", made)
    with pytest.raises(
        UserCodeError, match=r"failed in .*base/test_user_errors.py, line \d+: OSError: no such map\.$"
    ):
        shoal.make("user-code/made")


def test_a_wrapper_names_the_environment_that_it_holds():
    from shoal.envs import Wrapper

    @shoal.environment
    class Outer(Wrapper):
        def step(self, state, action, key):
            return self.env.step(state, action, key)

    with pytest.raises(UserCodeError, match=r"^Broken\.step failed in") as raised:
        shoal.rollout(Outer(Broken()), num_envs=2, num_steps=2)
    assert raised.value.frames.count("File ") == 2


def test_a_defect_of_shoals_own_passes_unchanged():
    """No frame of the user's lies below the public function; those of whoever calls it do not count."""
    with pytest.raises(AttributeError, match="'int' object has no attribute") as raised:
        reports_user_code(with_saved_parts)({"a": 1}, {"a": 2}, ("a",))
    assert not isinstance(raised.value, ShoalError)


def test_keyboard_interrupts_and_sentences_pass():
    def raising(error):
        raise error

    for error in (KeyboardInterrupt(), ShoalError("seeds=0 is too few.")):
        with pytest.raises(type(error)) as raised:
            reports_user_code(raising)(error)
        assert raised.value is error


def test_an_error_whose_message_cannot_be_read():
    class OddError(Exception):
        def __str__(self):
            raise RuntimeError

    def raising():
        raise OddError

    with pytest.raises(UserCodeError, match=r"OddError\.$"):
        reports_user_code(raising)()


def test_long_messages_are_one_short_line():
    def raising():
        raise ValueError("word " * 1000 + "\nsecond line")

    with pytest.raises(UserCodeError) as raised:
        reports_user_code(raising)()
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 600


def test_no_code_of_the_users():
    try:
        jnp.ones(3) @ jnp.ones(4)
    except TypeError as error:
        error.__traceback__ = error.__traceback__.tb_next
        assert user_code_error(error) is None


def test_the_contract_is_traced_once():
    traced = []

    @shoal.environment
    class Counting(Walk):
        def reset(self, key):
            traced.append(1)
            return Walk.reset(self, key)

    for _ in range(3):
        require_contract(Counting())
    assert len(traced) == 1


def test_weak_types_are_no_reason_to_refuse():
    @shoal.environment
    class Weak(Walk):
        def reset(self, key):
            return jnp.asarray(0.0), shoal.restart(jnp.zeros(1))

        def step(self, state, action, key):
            return jax.lax.full_like(state, 1.0, jnp.float32), shoal.transition(jnp.zeros(1), reward=0.0)

    require_contract(Weak())
    assert shoal.rollout(Weak(), num_envs=2, num_steps=3).steps == 6


@pytest.mark.full
def test_every_environment_of_shoals_own_satisfies_the_contract():
    grids = ["XLand-MiniGrid-R1-9x9", "MiniGrid-Unlock"]
    for name in [name for name in shoal.environments() if "MiniGrid" not in name] + grids:
        require_contract(shoal.make(name), name)
