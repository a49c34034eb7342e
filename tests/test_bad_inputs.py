"""A table of bad inputs: each is answered by one sentence, without a traceback, and leaves no file behind.

A row has the words of the input and what the sentence must say of it: the name, and the value or the remedy. Most are
refused before anything is traced; none may train. The memory is said to be 16 GB, so that the table means the same on
every machine.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

import shoal
from shoal.base.errors import ShoalError
from shoal.cli import main
from shoal.runs.train import pieces
from shoal.xla import machine

LONG = "x" * 300


@pytest.fixture(scope="module")
def run(trained):
    """The directory of a run; not to be changed."""
    return trained[1]


@pytest.fixture(scope="module")
def policy(run):
    return shoal.load(run)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty working directory, from which modules may be imported, on a machine of 16 GB."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(machine, "available_memory", lambda device=None: 16 * 10**9)
    return tmp_path


@pytest.fixture
def untrained(monkeypatch):
    """What is not refused fails at once, and does not train."""

    def train_population(*_, **__):
        raise AssertionError("it was accepted, and would have trained")

    monkeypatch.setattr(pieces, "train_population", train_population)


def files(directory):
    return sorted(str(path) for path in Path(directory).rglob("*"))


def refused(words, expected, capsys):
    """The command ends with 2, and says what it should in at most three lines before the user's own frames."""
    before = files(".")
    try:
        status = main([str(word) for word in words])
    except SystemExit as end:
        status = end.code
    told = capsys.readouterr()
    assert_one_sentence(status, told.err, expected)
    assert told.out == ""
    assert files(".") == before


def assert_one_sentence(status, error, expected):
    assert status == 2, error
    lines = error.splitlines()
    own = [i for i, line in enumerate(lines) if line.lstrip().startswith("File ")]
    assert 1 <= len(lines[: own[0]] if own else lines) <= 3, error
    assert lines[0].startswith("shoal: ")
    assert "Traceback" not in error
    assert str(Path(shoal.__file__).parent) not in error  # no frame of Shoal's
    for word in [expected] if isinstance(expected, str) else expected:
        assert word in error, error


# ---- flags of `shoal train CartPole-v1`

SIZES = {
    "--seeds 1e12": "seeds=1000000000000",
    "--seeds 1e9": "seeds=1000000000 needs at least",
    "--seeds -3": "seeds=-3 is out of bounds",
    "--seeds ten": "'ten' is not a whole number",
    "--eval-every nevr": "'nevr' is not a whole number or 'never'",
    "--seeds": "--seeds",
    "--seed 4294967296": "seed=4294967296 is out of bounds",
    "--seed 4294967295 --seeds 2": "seeds=2 is too large: it must be at most 1",
    "--total-steps 1e30": "total_steps=1e+30 is out of bounds",
    "--total-steps 1e13 --num-envs 1 --num-steps 1 --num-minibatches 1": "updates are counted in 32 bits",
    "--total-steps 10": "total_steps=10 is less than one rollout",
    "--num-envs 2e9 --num-steps 1 --total-steps 1e10": "num_envs=2000000000 needs at least",
    "--num-envs 1e7 --total-steps 1e10": ("num_envs=10000000 needs at least", "(rollout)", "could fit"),
    "--num-envs 1e9 --num-steps 1e9 --total-steps 1e18": "total_steps=1e+18 is out of bounds",
    "--num-envs 1e6 --num-steps 1e6 --total-steps 1e13": "num_envs*num_steps=1000000*1000000 is too large",
    "--num-steps 1e400": "'1e400' is not a whole number",
    "--eval-episodes 1e12": "eval_episodes=1000000000000 is out of bounds",
    "--eval-episodes 2e8": ("eval_episodes=200000000 needs at least", "(evaluation)"),
    "--num-evals 1e9": "num_evals=1000000000 is out of bounds",
    "--eval-every 1 --total-steps 1e12": ("eval_every=1 is too small for total_steps=1000000000000", "gives"),
    "--log-every 1 --total-steps 1e12": "log_every=1 is too small for total_steps=1000000000000",
    "--reset pool --reset-pool 1e9": ("reset_pool=1000000000 needs at least", "(pool of starts)"),
    "--reset pool --reset-pool 0": "reset_pool=0 is out of bounds",
    "--devices 5000": "devices=5000 is more than there are",
    "--env-groups 3": "env_groups=3 does not divide num_envs=4",
    "--update-epochs 1e9": "update_epochs=1000000000 is out of bounds: it must be at least 1 and at most 10000",
    "--num-minibatches 7": "num_minibatches=7 does not divide num_envs*num_steps=512",
    "--hidden-sizes 1e9": (
        "hidden_sizes=(1000000000,) needs at least",
        "(parameters and optimiser)",
        "could fit",
    ),
    "--hidden-sizes 1e12": "hidden_sizes=(1000000000000,) is out of bounds: each number of it must be",
    "--hidden-sizes 0": "hidden_sizes=(0,) is out of bounds",
    f"--hidden-sizes {'8 ' * 5000}": "hidden_sizes has 5000 numbers, which are too many",
    f"--critic-hidden-sizes {'8 ' * 65}": "critic_hidden_sizes has 65 numbers, which are too many",
    "--core gru --core-layers 5000": "core_layers=5000 is out of bounds: it must be at least 1 and at most 64",
    f"--encoder mlp_each --encoder-features {'8 ' * 65}": "encoder_features has 65 numbers, which are too many",
}

NUMBERS = {
    "--learning-rate 0": "learning_rate=0",
    "--learning-rate nan": "learning_rate=nan",
    "--learning-rate inf": "learning_rate=inf",
    "--learning-rate fast": "'fast' is not a number",
    "--gamma 2": "gamma=2 is out of bounds",
    "--gae-lambda 1.1": "gae_lambda=1.1 is out of bounds",
    "--clip-coef 0": "clip_coef=0",
    "--clip-vloss --vf-clip-coef -1": "vf_clip_coef=-1",
    "--max-grad-norm 0": "max_grad_norm=0",
    "--ent-coef -0.1": "ent_coef=-0.1 is out of bounds",
    "--target-kl -1": "target_kl=-1",
    "--surrogate penalty --kl-coef -1": "kl_coef=-1 is out of bounds",
    "--surrogate dpo --dpo-alpha 0": "dpo_alpha=0",
    "--lr-schedule adaptive --desired-kl 0": "desired_kl=0",
    "--initial-std 0": "initial_std=0",
    "--core gru --core-initialiser orthogonel": "core_initialiser='orthogonel' is none of orthogonal, lecun_normal",
    "--core gru --core-recurrent-initialiser whole": "core_recurrent_initialiser='whole' is none of orthogonal",
    "--gradient-chunk -2": "gradient_chunk=-2",
}

WORDS = {
    "--learing-rate 1": "no flag '--learing-rate'; did you mean '--learning-rate'?",
    "--no-such-flag": "'--no-such-flag'",
    "--gamma=": "--gamma",
    "--seeds 2 --seeds 3": "--seeds",
    "--norm-obs --no-norm-obs": "norm-obs",
    "--algorithm pop": "there is no algorithm 'pop'; there are a2c, c51, ddpg, dqn, mappo, ppo, pqn, qr_dqn, rainbow, "
    "reinforce, sac, td3; did you mean 'ppo'?",
    "--algorithm dqn --buffer-size 50": "fewer than the num_steps=10 of a rollout; it must be at least 80",
    "--algorithm dqn --buffer-size 80 --n-step 20": "fewer than n_step=20; choose buffer_size=160, or n_step=10",
    "--algorithm dqn --batch-size 20000": "batch_size=20000 is greater than buffer_size=10000",
    "--algorithm dqn --learning-starts 20000": "learning_starts=20000 is greater than buffer_size=10000",
    "--algorithm dqn --total-steps 9000": "learning_starts=10000 leaves no gradient step in the 8,960",
    "--algorithm dqn --train-frequency 600000": "train_frequency=600000 leaves no gradient step",
    "--algorithm dqn --buffer-size 1e9": "buffer_size=1000000000 needs at least",
    "--algorithm sac --correlated-noise": "correlated_noise=True has no effect with action_space=Discrete(n=2)",
    "--algorithm td3": "action_space=Discrete(n=2) is not supported by td3; it must be a Box of floats with finite",
    "--algorithm sac --target-critics 3": "target_critics=3 is more than num_critics=2",
    "--algorithm sac --values quantile --num-quantiles 5 --drop-quantiles 5": "it must be at most 4",
    "--algorithm sac --multistep retrace": "n_step=1 has none; choose n_step=5",
    "--algorithm sac --multistep retrace --n-step 3 --values quantile": "is defined for values='expected'",
    "--algorithm sac --lr-schedule adaptive": "'adaptive' is none of constant, linear, cosine",
    "--algorithm sac --core gru": "no flag '--core'; a memory needs sequences of steps",
    "--algorithm sac --network shoal.nets.actor_critic:ActorCritic": "lacks the method 'critic.values'",
    "--distribution deterministic": "'deterministic' is none of auto",
    "--algorithm sac --ent-coef 0.1": "the weight of the entropy is --alpha (alpha) of sac",
    "--algorithm dqn --core gru": "dqn learns from single ones; choose core='none', or algorithm pqn",
    "--algorithm dqn --munchausen --double": "so that double=True has no effect",
    "--algorithm dqn --multistep retrace": "n_step=1 has none; choose n_step=5",
    "--algorithm c51 --munchausen": "is defined for values='expected', and values='categorical'",
    "--algorithm c51 --values expected": "does not predict what c51 learns",
    "--algorithm rainbow --values expected": "does not predict what rainbow learns, values='categorical'",
    "--algorithm dqn --buffer-size 1e9 --prioritized-replay": "it must be at most 536870904",
    "--algorithm dqn --prioritized-replay-alpha 0.7": "prioritized_replay_alpha=0.7 has no effect with "
    "prioritized_replay=False; it needs prioritized_replay=True.",
    "--algorithm rainbow --prioritized-replay-beta 1.5": "prioritized_replay_beta=1.5 is out of bounds",
    "--algorithm c51 --v-min 3 --v-max 1": "v_min=3 is not below v_max=1",
    "--algorithm pqn --values quantile": "predicts more than pqn's targets",
    "--algorithm dqn --num-minibatches 4": "`shoal train --algorithm dqn --help` lists them",
    "--algorithm dqn --epsilon 0.1": "did you mean '--end-e'?",
    "--algorithm nowhere:Config": "there is no module 'nowhere'",
    "--algorithm json:JSONDecoder": "'json:JSONDecoder' is not an algorithm's config",
    "--surrogate clipp": "'clipp'",
    "--core grru": "'grru'",
    "--encoder cnn": "encoder='cnn'",
    "--encoder cnn --encoder-kernels 3": "encoder='cnn' needs an observation [height, width, channels]",
    "--encoder-strides 2": (
        "encoder_strides=(2,) has no effect with encoder='flatten' and critic_encoder=None; it needs encoder='cnn'"
    ),
    "--encoder cnn --encoder-kernels three": "three",
    "--encoder one_hot --norm-obs": "norm_obs=True",
    "--distribution beta": "distribution='beta' does not fit",
    "--distribution normal": "distribution='normal' does not fit",
    "--activation rleu": "activation='rleu'",
    "--optimizer adma": "optimizer='adma' is not an optimiser of optax",
    "--optimizer chain": "optimizer='chain'",
    "--optimizer-args eps=1e-5 eps=1e-6": "optimizer_args names 'eps' twice; give it once",
    "--optimizer-args eps": "optimizer_args='eps' is not name=value",
    "--optimizer-args foo=1": "foo",
    "--critic-optimizer-args eps=1": "critic_optimizer_args",
    "--network nowhere:Net": "there is no module 'nowhere'",
    "--network justname": "'justname' is not module:Name",
    "--network json:JSONDecoder": "JSONDecoder",
    "--score return_men": "did you mean 'return_mean'?",
    "--eval-metrics shoal.types:nothing": "has no 'nothing'",
    "--eval-metrics words": "'words' is not module:Name",
    "--latches 3": "latches=3 has no effect with core='none'",
    "--core gru --chunk-length 5": "chunk_length=5 does not divide num_steps=128",
    "--core gru --burn-in 500 --chunk-length 8": "burn_in=500 is longer than a chunk",
    "--core gru --action-embedding 4": "action_embedding=4 needs previous_action=True",
    "--core gru --latches 2": "previous_reward",
    "--shared-torso --separate-updates": "shared_torso=True",
    "--vf-clip-coef 0.3": "vf_clip_coef=0.3",
    "--reset-pool 5": "reset_pool=5",
    "--reset-refresh 5": "reset_refresh=5 has no effect with reset='fresh'",
    "--reset-ratio 4 --reset pool": "reset_ratio=4 has no effect with reset='pool'",
    "--reset optimistic --reset-ratio 0": "reset_ratio=0 is out of bounds",
    "--reset optimisitc": "optimistic",
    "--network shoal.nets.joint:JointActorCritic --core gru": (
        "no flag '--core'; it is a setting of the default network, which --network replaces"
    ),
    "--clip-coef 0.1 --surrogate penalty": "clip_coef=0.1 has no effect with surr",
    "gravity=1 gravity=2": "the parameter gravity is given twice",
    "--correlated-noise": "correlated_noise=True has no effect with action_space=Discrete(n=2)",
    "--from nowhere": "there is no run directory 'nowhere'",
    f"--from {LONG}": "File name too long",
    f"--run-dir {LONG}": "File name too long",
    f"--config {LONG}": "File name too long",
    "--config nowhere": "there is no recipe 'nowhere', and no run or file of that name",
    "Acrobot-v1": "'Acrobot-v1' is one word too many after 'CartPole-v1'",
    "gravty=1": "no parameter 'gravty'",
    "gravity=abc": "gravity='abc'",
    "cart_mass=0": "cart_mass=0",
    "max_episode_steps=1.5": "max_episode_steps=1.5",
    "trial_episodes=0": "trial_episodes=0",
}

# ---- other commands; {run} is a run's directory

GRID = "train MiniGrid-Empty-5x5 --encoder cnn"

COMMANDS = {
    "trian": "there is no command 'trian'; there are train, resume, checkpoints, eval, export, sweep, tune, pbt, "
    "rollout, check, grid, envs, runs, compare, report, log; did you mean 'train'?",
    "''": "there is no command ''",
    "train": "no environment was named",
    "train CartPol-v1": "there is no environment 'CartPol-v1'; did you mean 'CartPole-v1'?",
    "train nowhere:Env": "there is no module 'nowhere'",
    "train json:JSONDecoder": "JSONDecoder",
    "train :Env": "':Env' is not module:Name",
    "train Pendulum-v1 mass=0": "mass=0",
    "train Pendulum-v1 --algorithm td3 --distribution tanh_normal": "it must be 'deterministic'",
    "train Pendulum-v1 --algorithm td3 --distribution auto": "it must be 'deterministic'",
    "train Pendulum-v1 --algorithm sac --distribution deterministic": "it must be 'tanh_normal'",
    "train quadratic:Unbounded --algorithm sac": ("is not supported by sac", "and entry 1 is unbounded"),
    "train quadratic:Choices --algorithm sac": ("action_space=MultiDiscrete", "is not supported by sac"),
    "train Pendulum-v1 --distribution categorical": "distribution='categorical' does not fit",
    "train MemoryChain-v0 length=0": "length=0",
    "train MemoryChain-v0 num_bits=1000000000000": "num_bits=1000000000000",
    "train MiniGrid-Empty-5x5 view_size=1000000000": "view_size=1000000000",
    "train MiniGrid-Empty-5x5 view_size=4": "view_size=4",
    "train MiniGrid-Empty-5x5 height=1000000 width=1000000": "height=1000000",
    f"{GRID} --encoder-channels 0": "encoder_channels=(0,) is out of bounds: each number of it must be at least 1",
    f"{GRID} --encoder-strides -1 1 1": "encoder_strides",
    f"{GRID} --encoder-channels 8 --encoder-kernels 3 3": (
        "encoder_channels=(8,), encoder_kernels=(3, 3) and encoder_strides=(1,) of observation [7, 7, 2] must have "
        "equally many numbers",
        "what is not given (encoder_strides) is the default for it",
    ),
    f"{GRID} --encoder-kernels 3 4 3": (
        "encoder_kernels=(3, 4, 3) with encoder_strides=(1, 1, 1) has a window of 3 x 3",
        "larger than the 2 x 2 image that reaches convolution 3 of observation [7, 7, 2]",
    ),
    f"{GRID} --encoder-kernels 1e9 2 2": "has a window of 1000000000 x 1000000000, which is larger than the 7 x 7",
    f"{GRID} --encoder-channels 1e9": "encoder_channels=(1000000000,) is out of bounds",
    f"{GRID} --encoder-channels 1e7": "encoder_channels=(10000000,) needs at least",
    f"{GRID} --encoder-channels {'8 ' * 65}": "encoder_channels has 65 numbers, which are too many",
    "train XLand-MiniGrid-R1-9x9 ruleset=nowhere.npz:train": "nowhere.npz",
    "train XLand-MiniGrid-R1-9x9 rooms=R7": "rooms='R7'",
    "train CartPole-v1 --run-dir {run}": "holds another run",
    "train CartPole-v1 --run-dir {run}/config.json": "cannot be written to",
    "train CartPole-v1 --run-dir full": "run directory 'full'",
    "train Acrobot-v1 --from {run}": "from=",
    "train --config {run} --seeds 0": "seeds=0 is out of bounds",
    "train --config {run}/metrics.jsonl": "config file",
    "eval": "no run was named",
    "eval nowhere": "there is no run directory 'nowhere'",
    f"eval {LONG}": "File name too long",
    "eval full": "'full' is not a run directory",
    "eval {run} --episodes 0": "episodes=0 is too small",
    "eval {run} --episodes 1e12": "episodes=1000000000000 is too large",
    "eval {run} --episodes 2e9": "episodes=2000000000 needs at least",
    "eval {run} --seed 5": "seed=5 is not one of the run's: 0, 1",
    "eval {run} --episode-seed 1e30": "seed=1000000000000000019884624838656 is too large",
    "eval {run} --which first": "'first'",
    "eval {run} --mode greddy": "'greddy'",
    "eval {run} --memory trial": "this one has none",
    "eval {run} --env Acrobot-v1": "and the policy was trained in",
    "eval {run} --env gravity=nan": "gravity",
    "eval {run} --render out.jpg": "render='out.jpg' must end in",
    "eval {run} --render no/out.gif": "there is no directory 'no'",
    "eval {run} --render out.gif --render-episodes 0": "render_episodes=0 is too small",
    "eval {run} --render out.gif --render-episodes 1e9": "render_episodes=1000000000 needs at least",
    "eval {run} --render out.gif --env MemoryChain-v0": "MemoryChain cannot be drawn: it has no `render",
    "eval {run} --render-episodes 3": "render_episodes=3 has no effect with render=''; it needs one, such as",
    "eval {run} --sampled --mode greedy": "sampled=True has no effect with mode='greedy'",
    "eval {run} --sampled --eval-epsilon 0.1": "eval_epsilon=0.1 is of policies of action values",
    "rollout CartPole-v1 --greedy": "greedy=True has no effect with policy=''; it needs one, such as policy=",
    "eval {run} --plot out.png": "trial_episodes=5 makes some",
    "rollout": "no environment was named",
    "rollout CartPole-v1 --envs 0": "num_envs=0 is too small",
    "rollout CartPole-v1 --envs 2e9": "num_envs=2000000000 needs at least",
    "rollout CartPole-v1 --steps 0": "num_steps=0 is too small",
    "rollout CartPole-v1 --steps 1e30": "num_steps=1000000000000000019884624838656 is too large",
    "rollout CartPole-v1 --steps 1e9 --save data.npz": (
        "num_steps=1000000000 needs at least",
        "(the saved data)",
    ),
    "rollout CartPole-v1 --devices 99": "devices=99 is more than there are",
    "rollout CartPole-v1 --save full": "it is a directory",
    f"rollout CartPole-v1 --save {LONG}": "File name too long",
    "rollout CartPole-v1 --parts full": "parts='full' holds other files; name a new directory",
    "rollout CartPole-v1 --force": "force=True has no effect with parts=''; it needs one, such as parts=",
    "rollout CartPole-v1 --policy nowhere": "there is no run directory 'nowhere'",
    "rollout Acrobot-v1 --policy {run}": "and the policy was trained in",
    "check": "no environment was named",
    "check CartPole-v1 --keys 1": "keys=1",
    "check CartPole-v1 --keys 1e12": "keys=1000000000000 is too large",
    "check CartPole-v1 --max-steps 1e30": "max_steps=1000000000000000019884624838656 is too large",
    "check CartPole-v1 --ignore nothing": "ignore='nothing' is not a rule",
    "envs CartPol": "there is no environment 'CartPol'",
    "envs CartPole-v1 gravity=abc": "gravity='abc'",
    "envs --all": "'--all'",
    "grid made": "there is no command 'grid made'",
    "grid make-benchmark": "no setting was named",
    "grid make-benchmark smal": "there is no setting 'smal'; there are trivial, small, medium, high; did you mean",
    "grid make-benchmark small --rulesets 0": "rulesets=0",
    "grid make-benchmark small --rulesets 1e12": "rulesets=1,000,000,000,000: they take 53,000,000,000,000 bytes",
    "grid make-benchmark small --held-out 2": "held_out=2",
    "grid make-benchmark small --seed -1": "seed=-1",
    "grid make-benchmark small --chain-depth 9": "chain_depth=9",
    "grid make-benchmark small --goals nothing": "'nothing'",
    "grid make-benchmark small --rulesets 10 --save full": "full cannot be written: it is a directory",
    "grid show": "no file was named",
    "grid show nowhere.npz": "nowhere.npz",
    "grid show {run}/config.json": "config.json",
}

ROWS = {
    f"train CartPole-v1 {words}": expected for words, expected in (SIZES | NUMBERS | WORDS).items()
} | COMMANDS


@pytest.mark.full
@pytest.mark.parametrize("words", ROWS, ids=lambda words: words[:60].strip())
def test_a_bad_command_is_one_sentence(here, untrained, run, capsys, words):
    (here / "full").mkdir()
    (here / "full" / "letter.txt").write_text("not a run")
    refused(shlex.split(words.replace("{run}", str(run))), ROWS[words], capsys)


# ---- files: (how a copy of the run, or a new file, is damaged; the words; what is said)


def cut(path, share=0.5):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def setting(group, **values):
    def change(path):
        config = json.loads((path / "config.json").read_text())
        config[group] |= values
        (path / "config.json").write_text(json.dumps(config))

    return change


DAMAGES = {
    "half a policy": (lambda run: cut(run / "best.safetensors"), "eval {run}", "best.safetensors is damaged"),
    "no policy": (lambda run: (run / "best.safetensors").unlink(), "eval {run}", "holds no policy 'best'"),
    "half a config": (lambda run: cut(run / "config.json"), "eval {run}", "config.json"),
    "a config of nothing": (
        lambda run: (run / "config.json").write_text("{}"),
        "eval {run}",
        "lacks algorithm, environment",
    ),
    "an unknown setting": (setting("run", sedes=3), "train --config {run}", "there is no setting 'sedes'"),
    "a setting of text": (setting("run", seeds="two"), "train --config {run}", "seeds='two'"),
    "a setting of null": (setting("algorithm", gamma=None), "train --config {run}", "gamma=None"),
    "other layers": (setting("algorithm", hidden_sizes=[8]), "eval {run}", "is expected"),
    "a run to start from": (
        lambda run: (run / "last.safetensors").unlink(),
        "train CartPole-v1 --from {run}",
        "'last'",
    ),
    "rulesets of text": (lambda run: (run / "r.npz").write_text("rules"), "grid show {run}/r.npz", "r.npz"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_bad_file_is_one_sentence(here, untrained, run, capsys, name):
    damage, words, expected = DAMAGES[name]
    shutil.copytree(run, here / "copy")
    damage(here / "copy")
    refused(words.replace("{run}", "copy").split(), expected, capsys)


# ---- Python: each call is given (run, policy)


def train(**settings):
    return shoal.train(**{"environment": "CartPole-v1", "progress": False} | settings)


def act(policy, memory=(), observation=(0.0,) * 4, **more):
    return policy(memory, np.asarray(observation) if isinstance(observation, tuple) else observation, **more)


CALLS = {
    "train(environment=3)": (lambda r, p: train(environment=3), "environment=3"),
    "train(environment=None)": (lambda r, p: train(environment=None), "no environment was named"),
    "train(algorithm=3)": (lambda r, p: train(algorithm=3), "algorithm=3"),
    "train(environment_parameters=3)": (
        lambda r, p: train(environment_parameters=3),
        "environment_parameters=3",
    ),
    "train(environment_parameters=nan)": (
        lambda r, p: train(environment_parameters={"gravity": float("nan")}),
        "gravity",
    ),
    "train(config=3)": (lambda r, p: train(config=3), "config=3"),
    "train(preset='no')": (lambda r, p: train(preset="no"), "preset='no'"),
    "train(progress=None)": (lambda r, p: train(progress=None), "progress=None"),
    "train(start_from=3)": (lambda r, p: train(start_from=3), "start_from=3"),
    "train(seeds=[1, 2, 3])": (
        lambda r, p: train(seeds=[1, 2, 3]),
        ("seeds=", "whole number", "number of seeds"),
    ),
    "train(seeds='ten')": (lambda r, p: train(seeds="ten"), "seeds='ten'"),
    "train(seeds=True)": (lambda r, p: train(seeds=True), "seeds=True"),
    "train(seeds=None)": (lambda r, p: train(seeds=None), "seeds=None"),
    "train(seed=0.5)": (lambda r, p: train(seed=0.5), "seed=0.5"),
    "train(total_steps=1.5)": (lambda r, p: train(total_steps=1.5), "total_steps=1.5"),
    "train(num_envs=array)": (lambda r, p: train(num_envs=np.ones(2)), "num_envs="),
    "train(devices='all')": (lambda r, p: train(devices="all"), "devices='all'"),
    "train(run_dir=3)": (lambda r, p: train(run_dir=3), "run_dir=3"),
    "train(run_dir=zero byte)": (lambda r, p: train(run_dir="a\0b"), "run_dir='a\\x00b'"),
    "train(score=3)": (lambda r, p: train(score=3), "score=3 is not a function"),
    "train(eval_metrics=3)": (lambda r, p: train(eval_metrics=3), "eval_metrics=3 is not a function"),
    "train(hidden_sizes=64)": (lambda r, p: train(hidden_sizes=64), "hidden_sizes=64"),
    "train(encoder_channels=16)": (
        lambda r, p: train(encoder="cnn", encoder_channels=16),
        "encoder_channels=16 is not a tuple of whole numbers",
    ),
    "train(encoder_features=())": (
        lambda r, p: train(encoder="mlp_each", encoder_features=()),
        "encoder_features=() leaves encoder='mlp_each' without a layer",
    ),
    "train(activation=3)": (lambda r, p: train(activation=3), "activation=3"),
    "train(optimizer_args='eps')": (lambda r, p: train(optimizer_args=3), "optimizer_args=3"),
    "train(network=3)": (lambda r, p: train(network=3), ("network", "3")),
    "train(learning_rate='fast')": (lambda r, p: train(learning_rate="fast"), "learning_rate='fast'"),
    "train(gradient_chunk='all')": (lambda r, p: train(gradient_chunk="all"), "gradient_chunk='all'"),
    "train(norm_obs=1)": (lambda r, p: train(norm_obs=1), "norm_obs=1"),
    "train(learing_rate=1)": (lambda r, p: train(learing_rate=1), "there is no setting 'learing_rate'"),
    "load(None)": (lambda r, p: shoal.load(None), "run=None"),
    "load('')": (lambda r, p: shoal.load(""), "run=''"),
    "load(which=3)": (lambda r, p: shoal.load(r, 3), "which=3"),
    "load(seed='one')": (lambda r, p: shoal.load(r, seed="one"), "seed='one'"),
    "load(seed=9)": (lambda r, p: shoal.load(r, seed=9), "seed=9 is not one of the run's"),
    "load(environment=3)": (lambda r, p: shoal.load(r, environment=3), "environment=3"),
    "evaluate(None)": (lambda r, p: shoal.evaluate(None), "policy=None"),
    "evaluate(environment=3)": (lambda r, p: shoal.evaluate(p, 3), "environment=3"),
    "evaluate(episodes='ten')": (lambda r, p: shoal.evaluate(p, episodes="ten"), "episodes='ten'"),
    "evaluate(seed=None)": (lambda r, p: shoal.evaluate(p, seed=None), "seed=None"),
    "evaluate(greedy='yes')": (lambda r, p: shoal.evaluate(p, greedy="yes"), "greedy='yes'"),
    "evaluate(max_steps=None)": (lambda r, p: shoal.evaluate(p, max_steps=None), "max_steps=None"),
    "evaluate(gravity=nan)": (lambda r, p: shoal.evaluate(p, "CartPole-v1", gravity=float("nan")), "gravity"),
    "rollout(3)": (lambda r, p: shoal.rollout(3), "environment=3"),
    "rollout(policy=3)": (lambda r, p: shoal.rollout(None, 3), "policy=3"),
    "rollout(num_envs='ten')": (lambda r, p: shoal.rollout("CartPole-v1", num_envs="ten"), "num_envs='ten'"),
    "rollout(num_steps=None)": (lambda r, p: shoal.rollout("CartPole-v1", num_steps=None), "num_steps=None"),
    "rollout(devices='all')": (lambda r, p: shoal.rollout("CartPole-v1", devices="all"), "devices='all'"),
    "rollout(save=3)": (lambda r, p: shoal.rollout("CartPole-v1", save=3), "save=3"),
    "rollout(parts=3)": (lambda r, p: shoal.rollout("CartPole-v1", parts=3), "parts=3"),
    "rollout(greedy=3)": (lambda r, p: shoal.rollout("CartPole-v1", greedy=3), "greedy=3"),
    "check(3)": (lambda r, p: shoal.check(3), "environment=3"),
    "check(keys='ten')": (lambda r, p: shoal.check("CartPole-v1", keys="ten"), "keys='ten'"),
    "check(seed=None)": (lambda r, p: shoal.check("CartPole-v1", seed=None), "seed=None"),
    "check(ignore=3)": (lambda r, p: shoal.check("CartPole-v1", ignore=3), "ignore=3"),
    "render(path=3)": (lambda r, p: shoal.render(p, 3), "path=3"),
    "render(None)": (lambda r, p: shoal.render(None, "out.gif"), "policy=None"),
    "render(episodes='ten')": (lambda r, p: shoal.render(p, "out.gif", episodes="ten"), "episodes='ten'"),
    "make(3)": (lambda r, p: shoal.make(3), "name=3"),
    "make(gravity='low')": (lambda r, p: shoal.make("CartPole-v1", gravity="low"), "gravity='low'"),
    "register(3)": (lambda r, p: shoal.register(3, dict), "name=3"),
    "register(constructor=3)": (lambda r, p: shoal.register("Mine-v0", 3), "constructor=3"),
    "register(parameters=3)": (lambda r, p: shoal.register("Mine-v0", dict, parameters=3), "parameters=3"),
    "register(max_episode_steps='ten')": (
        lambda r, p: shoal.register("Mine-v0", dict, max_episode_steps="ten"),
        "max_episode_steps='ten'",
    ),
    "initial_memory(('one',))": (lambda r, p: p.initial_memory(("one",)), "batch_shape='one'"),
    "policy(memory=3)": (lambda r, p: act(p, memory=3), "memory=3"),
    "policy(observation=None)": (lambda r, p: act(p, observation=None), "observation"),
    "policy(observation=words)": (
        lambda r, p: act(p, observation=list("abcd")),
        "observation=['a', 'b', 'c', 'd']",
    ),
    "policy(observation=ragged)": (lambda r, p: act(p, observation=[[0.0], [0.0, 1.0]]), "observation="),
    "policy(observation=short)": (lambda r, p: act(p, observation=(0.0, 0.0)), "observation has shape (2,)"),
    "policy(observation=nan)": (lambda r, p: act(p, observation=(float("nan"),) * 4), "observation"),
    "policy(reward=[1, 2])": (lambda r, p: act(p, reward=[1.0, 2.0]), "reward=[1.0, 2.0]"),
    "policy(first='yes')": (lambda r, p: act(p, first="yes"), "first='yes'"),
    "policy(key=3)": (lambda r, p: act(p, key=3), "key=3"),
    "policy(key=floats)": (lambda r, p: act(p, key=np.zeros(2, np.float32)), "key="),
    "policy(key=several)": (lambda r, p: act(p, key=jax.random.split(jax.random.key(0))), "key="),
    "policy(action_mask=3)": (lambda r, p: act(p, action_mask=3), "action_mask"),
    "policy(action_mask=none legal)": (lambda r, p: act(p, action_mask=[False, False]), "action_mask"),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_bad_argument_is_one_sentence(here, untrained, run, policy, capsys, name):
    call, expected = CALLS[name]
    before = files(".")
    with pytest.raises(ShoalError) as error:
        call(run, policy)
    sentence = str(error.value)
    assert "\n" not in sentence
    assert len(sentence) < 600
    for word in [expected] if isinstance(expected, str) else expected:
        assert word in sentence
    assert capsys.readouterr() == ("", "")
    assert files(".") == before


# ---- as processes of their own, which have what no test fixture has set

COMMAND = "import sys; from shoal.cli import main; sys.exit(main())"
PROCESSES = {
    "train CartPole-v1 --seeds 1e12": "seeds=1000000000000 is out of bounds",
    "train raises:World": ("raises", "my mistake"),
    "train leaves:World": "leaves",
    "eval damaged": "damaged",
    "rollout CartPole-v1 --steps 1e30": "num_steps=1000000000000000019884624838656 is too large",
}


@pytest.mark.parametrize("words", PROCESSES)
@pytest.mark.quick("eval damaged", "train raises:World")
def test_a_bad_command_in_a_process_of_its_own(tmp_path, run, words):
    (tmp_path / "raises.py").write_text("raise ValueError('my mistake')")
    (tmp_path / "leaves.py").write_text("import sys; sys.exit(0)")
    shutil.copytree(run, tmp_path / "damaged")
    cut(tmp_path / "damaged" / "best.safetensors", 0)
    before = files(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COMMAND, *shlex.split(words.replace("{run}", str(run)))],
        cwd=tmp_path,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1", "PYTHONPATH": str(Path(shoal.__file__).parents[1])},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert_one_sentence(done.returncode, done.stderr, PROCESSES[words])
    assert done.stdout == ""
    assert files(tmp_path) == before
