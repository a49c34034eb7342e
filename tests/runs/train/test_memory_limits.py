"""The least memory of a run: from shapes, against the bytes that arrays really take, and what is refused for it."""

import resource
import subprocess
import sys

import jax
import numpy as np
import pytest

from shoal.algos.ppo_config import PPOConfig
from shoal.base.errors import ShoalError
from shoal.config import struct
from shoal.engine.population import member_layout
from shoal.engine.rollout import RolloutState, no_ended_episodes, rollout
from shoal.engine.run import batch_of, start
from shoal.runs.plan.decide import decide
from shoal.runs.train import compiled_trainer, memory_limits
from shoal.runs.train.memory_limits import MemoryShare, MemorySizes, UnitBytes
from shoal.runs.train.placement import check_memory, place
from shoal.types import Clock, spec_of
from shoal.xla import machine

ONE = MemoryShare(devices=1, groups=1, is_concurrent=False)


@struct.struct
class KeepsRows(PPOConfig):
    """PPO that keeps rows of its environments."""

    buffer_size: int = 1000
    """The rows of all environments."""
    keeps_more: bool = False
    """Whether there are ten million rows of each environment besides."""

    def algorithm(self, spec, axis=()):
        own = PPOConfig.algorithm(self, spec, axis)

        def init(key, num_envs):
            learner = own.init(key, num_envs)
            rows = jax.numpy.zeros((num_envs, self.buffer_size // num_envs + 10**7 * self.keeps_more, 8))
            return learner._replace(local=(learner.local, rows))

        return own._replace(init=init)


def placed(algorithm=KeepsRows, **overrides):
    sizes = {"seeds": 2, "num_envs": 4, "num_steps": 16, "total_steps": 64, "devices": 1}
    sizes |= {"num_minibatches": 1} if algorithm is KeepsRows else {}
    devices, decided = place(
        decide("CartPole-v1", algorithm=algorithm, overrides=sizes | {"eval_episodes": 3} | overrides)
    )
    settings = compiled_trainer.program_settings(decided.run, 1, "return_mean", None)
    return decided, settings, member_layout.lay_out(devices[:1], decided.run.seeds, 1)


def sizes_of(run, settings):
    return MemorySizes.of(run, run.seeds, settings)


def real_bytes(tree):
    return sum(
        np.asarray(x).nbytes
        for x in jax.tree.leaves(tree)
        if not jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "overrides", [{}, {"reset": "pool", "reset_pool": 6}, {"core": "gru", "core_size": 8}]
)
def test_the_bound_is_the_bytes_of_a_real_run_and_at_most_those_of_a_real_rollout(overrides):
    decided, settings, _ = placed(**overrides)
    arguments = jax.tree.map(jax.numpy.asarray, (decided.environment, decided.config))
    arguments = jax.random.key(0), *map(struct.as_arrays, arguments)
    run = jax.jit(lambda *arguments: start(*arguments, 1, settings))(*arguments)
    shapes = compiled_trainer.member_shapes(decided.environment, decided.config, settings)
    sizes = sizes_of(decided.run, settings)
    parts = memory_limits.needed_bytes(sizes, memory_limits.unit_bytes(shapes, sizes), ONE)
    assert parts["parameters and optimiser"] == 2 * real_bytes((run.learner.shared, run.best))
    own = (run.state.env, run.state.last, run.timestep, run.memory, run.episodes, run.learner.local)
    assert parts["environments"] == 2 * real_bytes(own)
    assert parts["pool of starts"] == 2 * real_bytes(run.state.pool)

    @jax.jit
    def rolled_out(run):
        algorithm = run.config.algorithm(spec_of(run.environment))
        state = RolloutState(run.state, run.timestep, run.memory, run.episodes, no_ended_episodes())
        policy = algorithm.policy(run.learner, Clock.zero())
        return rollout(batch_of(run.environment, settings), algorithm, policy, state, run.key, 16)[1]

    trajectory = rolled_out(run)
    # Of one seed, since the other's rollout comes later; observation, reward, discount and `last` of each step.
    assert parts["rollout"] == 16 * 4 * (4 * 4 + 4 + 4 + 1)
    assert parts["rollout"] < real_bytes(trajectory)
    assert parts["evaluation"] >= 30 * real_bytes(run.timestep.observation) / 4


def test_a_rollout_and_an_evaluation_are_not_there_at_once():
    parts = {"parameters and optimiser": 1, "environments": 20, "pool of starts": 300, "rollout": 4000}
    assert memory_limits.peak_bytes(parts | {"evaluation": 5000}) == 5321
    assert memory_limits.peak_bytes(parts | {"evaluation": 3000}) == 4321


def test_devices_of_their_own_memory_share_the_seeds_and_the_environments():
    sizes, units = MemorySizes(4, 8, 10, 3, 1), UnitBytes(100, 10, 0, 1, 1)
    assert memory_limits.needed_bytes(sizes, units, ONE)["parameters and optimiser"] == 400
    spread = memory_limits.needed_bytes(sizes, units, MemoryShare(devices=2, groups=4, is_concurrent=True))
    assert spread == {
        "parameters and optimiser": 200,
        "environments": 2 * 2 * 10,
        "pool of starts": 0,
        "rollout": 2 * 2 * 10,
        "evaluation": 2 * 30,
    }


@pytest.mark.quick("overrides2-1-num_steps-None")
@pytest.mark.parametrize(
    "overrides,gigabytes,name,smaller",
    [
        ({"seeds": 10**6}, 1, "seeds", None),
        ({"num_envs": 2**20, "num_steps": 64, "total_steps": 2**26}, 1, "num_envs", None),
        ({"num_envs": 64, "num_steps": 2**20, "total_steps": 2**26}, 1, "num_steps", None),
        ({"eval_episodes": 10**7}, 1, "eval_episodes", None),
        ({"hidden_sizes": (2**26,)}, 1, "hidden_sizes", (2**20,)),
        ({"buffer_size": 10**9}, 1, "buffer_size", None),
        # The trees of priorities grow by powers of two.
        ({"algorithm": "dqn", "buffer_size": 16_000_000, "prioritized_replay": True}, 1, "buffer_size", None),
    ],
)
def test_what_is_refused_names_a_size_that_is_not_refused(monkeypatch, overrides, gigabytes, name, smaller):
    monkeypatch.setattr(machine, "available_memory", lambda device=None: gigabytes * 10**9)
    with pytest.raises(
        ShoalError, match=rf"^{name}=.* needs at least .*, and this process may have 1 GB; {name}="
    ) as error:
        check_memory(*placed(**overrides))
    hint = str(error.value).split(f"; {name}=")[1].split(" is about")[0].split(" could fit")[0]
    works = tuple(int(x) for x in hint.strip("(),").split(",")) if smaller else int(hint)
    check_memory(*placed(**overrides | {name: works}))
    more = tuple(2 * x for x in works) if smaller else round(1.2 * works)
    with pytest.raises(ShoalError, match=f"^({name}|seeds)="):  # the nearest: hardly more is refused again
        check_memory(*placed(**overrides | {name: more}))


def test_no_size_is_named_where_none_would_fit(monkeypatch):
    monkeypatch.setattr(machine, "available_memory", lambda device=None: 10**8)
    with pytest.raises(ShoalError, match=r"^buffer_size=.* may have 100 MB\.$"):
        check_memory(*placed(buffer_size=10**8, keeps_more=True))


def test_what_fits_is_not_refused(monkeypatch):
    decided, settings, layout = placed()
    shapes = compiled_trainer.member_shapes(decided.environment, decided.config, settings)
    sizes = sizes_of(decided.run, settings)
    bound = memory_limits.peak_bytes(
        memory_limits.needed_bytes(
            sizes, memory_limits.unit_bytes(shapes, sizes), memory_limits.memory_share(layout)
        )
    )
    monkeypatch.setattr(machine, "available_memory", lambda device=None: bound)
    check_memory(decided, settings, layout)
    monkeypatch.setattr(machine, "available_memory", lambda device=None: bound - 1)
    with pytest.raises(ShoalError):
        check_memory(decided, settings, layout)
    # Nothing is known of the machine.
    monkeypatch.setattr(machine, "available_memory", lambda device=None: None)
    check_memory(*placed(seeds=10**6))


def test_memory_that_runs_out_is_one_sentence():
    with pytest.raises(ShoalError, match="asked for 80 TB at once"), memory_limits.report_out_of_memory():
        jax.block_until_ready(
            jax.jit(lambda: jax.numpy.zeros((20, 10**12)) + jax.numpy.arange(20)[:, None])()
        )
    with pytest.raises(ShoalError, match="memory ran out"), memory_limits.report_out_of_memory():
        raise MemoryError
    with pytest.raises(KeyError), memory_limits.report_out_of_memory():
        raise KeyError


@pytest.mark.parametrize("size,text", [(12, "12 bytes"), (3_200_000, "3.2 MB"), (24_000_000_000, "24 GB")])
def test_sizes_are_readable(size, text):
    assert memory_limits.format_bytes(size) == text


# ---- what the process may have


def test_the_least_of_the_groups_limits_counts(tmp_path):
    groups, root = tmp_path / "cgroup", tmp_path / "fs"
    for folder, value in (("memory", 2**62), ("memory/a", 5000), ("memory/a/b", 7000)):
        (root / folder).mkdir(parents=True, exist_ok=True)
        (root / folder / "memory.limit_in_bytes").write_text(f"{value}\n")
    groups.write_text("9:name=systemd:/\n4:memory:/a/b\n0::/\n")
    assert min(machine._control_group_limits(groups, root)) == 5000
    (root / "c").mkdir()
    (root / "c" / "memory.max").write_text("max\n")
    (root / "memory.max").write_text("4000\n")
    groups.write_text("0::/c\n")
    assert machine._control_group_limits(groups, root) == [4000]
    assert machine._control_group_limits(tmp_path / "nowhere", root) == []


def test_the_memory_is_at_most_the_machines_and_the_limit_of_the_address_space():
    assert 0 < machine.available_memory() <= resource.getpagesize() * 2**40
    code = (
        "import resource; from shoal.xla import machine; resource.setrlimit(resource.RLIMIT_AS, ({0}, {0}))"
    )
    code += "; print(machine.available_memory())"
    limit = 3_000_000_000
    command = [sys.executable, "-c", code.format(limit)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert int(done.stdout) <= limit
