"""Each core, head, encoder and algorithm acts in onnxruntime as it does here, with random weights."""

import re
from pathlib import Path

import pytest
from exported_policies import GRID, PARTS, PICTURE, Drawn, checked, random_policy

from shoal.types.spaces import Box, Discrete, MultiDiscrete

pytest.importorskip("jax2onnx")

SMALL = {"hidden_sizes": (8,), "core_size": 8}
PARTED, BOX = Drawn(action_space=MultiDiscrete((2, 3))), Drawn(action_space=Box(-2.0, 3.0, (2,)))
VIEW, MANY = Drawn(observation_space=PICTURE), {"num_agents": 3}
VECTORS = Drawn(observation_space=Box(-1.0, 1.0, (5, 3)))
ROLES = Drawn(action_space=Box(-1.0, 1.0, (2,)), num_agents=3, roles=(0, 1, 1), has_masks=True)
CORES = {name: {"core": name} for name in ("gru", "lstm", "rnn", "mgu", "mingru")}
CORES |= {"two": {"core": "gru", "core_layers": 2}}
HEADS = {
    "categorical": (Drawn(), {}),
    "multi": (PARTED, {}),
    **{name: (BOX, {"distribution": name}) for name in ("normal", "tanh_normal", "beta", "gsde")},
}
VALUES = {
    "dqn": ("dqn", {}),
    "c51": ("dqn", {"values": "categorical", "dueling": True, "noisy": True}),
    "quantile": ("dqn", {"values": "quantile"}),
    "pqn": ("pqn", {}),
}
ENCODERS = {
    "flatten": (VECTORS, {}),
    "one_hot": (Drawn(observation_space=GRID), {"encoder": "one_hot"}),
    "mlp": (VECTORS, {"encoder": "mlp"}),
    "mlp_each": (Drawn(observation_space=PARTS), {"encoder": "mlp_each"}),
    "cnn": (VIEW, {"encoder": "cnn"}),
    "resnet": (VIEW, {"encoder": "resnet"}),
    "set": (VECTORS, {"encoder": "set"}),
}
CASES = {
    **{
        f"{core}-{head}": (env, "ppo", of_core | s)
        for core, of_core in CORES.items()
        for head, (env, s) in HEADS.items()
    },
    **{f"none-{head}": (env, "ppo", s) for head, (env, s) in HEADS.items()},
    **{name: (Drawn(), algorithm, s) for name, (algorithm, s) in VALUES.items()},
    **{f"{name}-gru": (env, "ppo", s | {"core": "gru"}) for name, (env, s) in ENCODERS.items()},
    **{f"{name}-none": (env, "ppo", s) for name, (env, s) in ENCODERS.items()},
    "pqn-gru": (Drawn(), "pqn", {"core": "gru"}),
    "shown": (
        Drawn(),
        "ppo",
        {"core": "lstm", "previous_action": True, "previous_reward": True, "first_flag": True},
    ),
    "previous": (Drawn(), "ppo", {"core": "gru", "previous_observation": True}),
    "queries": (Drawn(observation_space=GRID), "ppo", {"encoder": "one_hot", "core": "gru", "queries": 2}),
    "latches": (Drawn(), "ppo", {"core": "gru", "latches": 2, "previous_reward": True}),
    "norm": (BOX, "ppo", {"norm_obs": True, "layer_norm": True, "distribution": "tanh_normal"}),
    "correlated": (BOX, "ppo", {"correlated_noise": True, "core": "gru"}),
    "sac": (BOX, "sac", {}),
    "sac-discrete": (Drawn(has_masks=True), "sac", {}),
    "td3": (BOX, "td3", {}),
    "ddpg": (BOX, "ddpg", {}),
    "mask": (Drawn(has_masks=True), "ppo", {}),
    "mask-parts": (Drawn(action_space=MultiDiscrete((2, 3)), has_masks=True), "ppo", {"core": "gru"}),
    "mask-dqn": (Drawn(has_masks=True), "dqn", {}),
    "dict-mask": (Drawn(observation_space=PARTS, has_masks=True), "ppo", {"encoder": "mlp_each"}),
    "agents": (Drawn(**MANY, has_absent=True), "ppo", {"core": "gru"}),
    "agents-mappo": (Drawn(**MANY), "mappo", {}),
    "agents-own": (Drawn(**MANY), "ppo", {"core": "lstm", "parameters": "agent"}),
    "agents-dqn": (Drawn(**MANY), "dqn", {}),
    "agents-32": (Drawn(num_agents=32), "ppo", {"core": "gru"}),
    "joint": (Drawn(**MANY, has_absent=True), "ppo", {"network": "shoal.nets.joint:JointActorCritic"}),
    "roles": (ROLES, "ppo", {"parameters": "role", "core": "gru"}),
    "trials": ("MemoryChain-v0", "ppo", {"core": "gru", "memory_lasts": "episode"}),
    "integer": (Drawn(observation_space=Discrete(5)), "ppo", {}),
}


QUICK = ("none-normal", "lstm-categorical", "agents")


@pytest.mark.slow
def test_a_sequence_module_of_the_users_own_keeps_its_names(tmp_path, monkeypatch):
    """The one of docs/memory.md, whose memory is keys, values and whether they are of this episode."""
    page = (Path(__file__).parents[2] / "docs" / "memory.md").read_text()
    (tmp_path / "attention.py").write_text(
        re.search(r"`attention.py`:\n\n```python\n(.*?)```", page, re.DOTALL)[1]
    )
    monkeypatch.syspath_prepend(tmp_path)
    policy = random_policy(Drawn(), network="attention:AttentionConfig", width=8, window=4)
    check, program = checked(policy)
    assert check.is_same, check
    assert list(program.inputs) == ["obs", "carry_0_in", "carry_1_in"]


@pytest.mark.quick(*QUICK)
@pytest.mark.rare(*sorted(CASES.keys() - set(QUICK))[::2])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.rare(
    "two-beta", "gru-beta", "rnn-gsde", "gru-gsde", "mgu-categorical", "lstm-gsde", "two-normal", "gru-normal"
)
def test_the_file_is_the_same_policy(name):
    env, algorithm, settings = CASES[name]
    known = {"core_size": SMALL["core_size"]} if settings.get("core") else {}
    check, _ = checked(random_policy(env, algorithm, **known, **settings))
    assert check.is_same, check
    assert check.ties <= 2
