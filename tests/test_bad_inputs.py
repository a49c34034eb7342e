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
import jax.numpy as jnp
import numpy as np
import pytest

import shoal
from shoal.base.errors import ShoalError
from shoal.cli import main
from shoal.runs import compiled_trainer
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

    monkeypatch.setattr(compiled_trainer, "train_population", train_population)


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
    "--seeds 0": "seeds=0 is out of bounds: it must be at least 1",
    "--seeds -3": "seeds=-3 is out of bounds",
    "--seeds 1.5": "'1.5' is not a whole number",
    "--seeds ten": "'ten' is not a whole number",
    "--seeds nan": "'nan' is not a whole number",
    "--seeds": "--seeds",
    "--seed 1e30": "seed=1e+30 is out of bounds",
    "--seed 4294967296": "seed=4294967296 is out of bounds",
    "--seed 4294967295 --seeds 2": "seeds=2 is too large: it must be at most 1",
    "--seed -1": "seed=-1 is out of bounds",
    "--total-steps 1e30": "total_steps=1e+30 is out of bounds",
    "--total-steps 1e13 --num-envs 1 --num-steps 1 --num-minibatches 1": "updates are counted in 32 bits",
    "--total-steps 10": "total_steps=10 is less than one rollout",
    "--total-steps -1": "total_steps=-1",
    "--total-steps inf": "'inf' is not a whole number",
    "--num-envs 1e12 --total-steps 1e15": "num_envs=1000000000000 is out of bounds",
    "--num-envs 2e9 --num-steps 1 --total-steps 1e10": "num_envs=2000000000 needs at least",
    "--num-envs 1e7 --total-steps 1e10": ("num_envs=10000000 needs at least", "(rollout)", "could fit"),
    "--num-envs 1e9 --num-steps 1e9 --total-steps 1e18": "total_steps=1e+18 is out of bounds",
    "--num-envs 1e6 --num-steps 1e6 --total-steps 1e13": "num_envs*num_steps=1000000*1000000 is too large",
    "--num-envs 0": "num_envs=0 is out of bounds",
    "--num-envs -4": "num_envs=-4 is out of bounds",
    "--num-steps 1e12 --total-steps 1e15": "num_steps=1000000000000 is out of bounds",
    "--num-steps 0": "num_steps=0 is out of bounds",
    "--num-steps 1e400": "'1e400' is not a whole number",
    "--eval-episodes 1e12": "eval_episodes=1000000000000 is out of bounds",
    "--eval-episodes 2e8": ("eval_episodes=200000000 needs at least", "(evaluation)"),
    "--eval-episodes 0": "eval_episodes=0 is out of bounds",
    "--eval-max-steps 1e12": "eval_max_steps=1000000000000 is out of bounds",
    "--eval-max-steps 0": "eval_max_steps=0 is out of bounds",
    "--num-evals 1e9": "num_evals=1000000000 is out of bounds",
    "--num-evals -1": "num_evals=-1 is out of bounds",
    "--eval-every 1 --total-steps 1e12": ("eval_every=1 is too small for total_steps=1000000000000", "gives"),
    "--eval-every -2": "eval_every=-2 is out of bounds",
    "--eval-every 1e30": "eval_every=1e+30 is out of bounds",
    "--log-every 1 --total-steps 1e12": "log_every=1 is too small for total_steps=1000000000000",
    "--log-every -5": "log_every=-5 is out of bounds",
    "--reset pool --reset-pool 1e9": ("reset_pool=1000000000 needs at least", "(pool of starts)"),
    "--reset pool --reset-pool 0": "reset_pool=0 is out of bounds",
    "--devices 5000": "devices=5000 is more than there are",
    "--devices -1": "devices=-1 is out of bounds",
    "--env-groups -1": "env_groups=-1 is out of bounds",
    "--env-groups 3": "env_groups=3 does not divide num_envs=4",
    "--update-epochs 1e9": "update_epochs=1000000000 is out of bounds: it must be at least 1 and at most 10000",
    "--update-epochs 0": "update_epochs=0 is out of bounds",
    "--critic-update-epochs 1e9": "critic_update_epochs=1000000000 is out of bounds",
    "--num-minibatches 1e9": "num_minibatches=1000000000",
    "--num-minibatches 7": "num_minibatches=7 does not divide num_envs*num_steps=512",
    "--num-minibatches 0": "num_minibatches=0",
    "--hidden-sizes 1e9": (
        "hidden_sizes=(1000000000,) needs at least",
        "(parameters and optimiser)",
        "could fit",
    ),
    "--hidden-sizes 1e5 1e5": "hidden_sizes=(100000, 100000) needs at least",
    "--hidden-sizes 1e12": "hidden_sizes=(1000000000000,) is out of bounds: each number of it must be",
    "--hidden-sizes 0": "hidden_sizes=(0,) is out of bounds",
    "--hidden-sizes -5 64": "hidden_sizes",
    f"--hidden-sizes {'8 ' * 5000}": "hidden_sizes has 5000 numbers, which are too many",
    f"--critic-hidden-sizes {'8 ' * 65}": "critic_hidden_sizes has 65 numbers, which are too many",
    "--core gru --core-layers 5000": "core_layers=5000 is out of bounds: it must be at least 1 and at most 64",
    "--core gru --core-layers 0": "core_layers=0",
    "--core gru --core-size 1e9 --num-minibatches 1": "core_size=1000000000 needs at least",
    "--core gru --core-size 0": "core_size=0",
    "--encoder mlp_each --encoder-features 0": "encoder_features=(0,) is out of bounds",
    "--encoder mlp_each --encoder-features 1e9": "encoder_features=(1000000000,) needs at least",
    f"--encoder mlp_each --encoder-features {'8 ' * 65}": "encoder_features has 65 numbers, which are too many",
}

NUMBERS = {
    "--learning-rate 0": "learning_rate=0",
    "--learning-rate -1e-3": "learning_rate=-0.001",
    "--learning-rate nan": "learning_rate=nan",
    "--learning-rate inf": "learning_rate=inf",
    "--learning-rate fast": "'fast' is not a number",
    "--gamma 2": "gamma=2 is out of bounds",
    "--gamma -0.1": "gamma=-0.1 is out of bounds",
    "--gamma nan": "gamma=nan",
    "--gae-lambda 1.1": "gae_lambda=1.1 is out of bounds",
    "--gae-lambda nan": "gae_lambda=nan",
    "--clip-coef 0": "clip_coef=0",
    "--clip-coef nan": "clip_coef=nan",
    "--clip-vloss --vf-clip-coef -1": "vf_clip_coef=-1",
    "--max-grad-norm 0": "max_grad_norm=0",
    "--max-grad-norm nan": "max_grad_norm=nan",
    "--ent-coef -0.1": "ent_coef=-0.1 is out of bounds",
    "--ent-coef inf": "ent_coef=inf",
    "--vf-coef -1": "vf_coef=-1 is out of bounds",
    "--target-kl -1": "target_kl=-1",
    "--target-kl nan": "target_kl=nan",
    "--surrogate penalty --kl-coef -1": "kl_coef=-1 is out of bounds",
    "--surrogate dpo --dpo-alpha -1": "dpo_alpha=-1",
    "--surrogate dpo --dpo-alpha 0": "dpo_alpha=0",
    "--surrogate dpo --dpo-beta nan": "dpo_beta=nan",
    "--lr-schedule adaptive --desired-kl 0": "desired_kl=0",
    "--critic-learning-rate -1": "critic_learning_rate=-1",
    "--critic-max-grad-norm -1": "critic_max_grad_norm=-1",
    "--initial-std 0": "initial_std=0",
    "--gradient-chunk -2": "gradient_chunk=-2",
    "--gradient-chunk 1e30": "gradient_chunk=1e+30 is out of bounds",
}

WORDS = {
    "--learing-rate 1": "no flag '--learing-rate'; did you mean '--learning-rate'?",
    "--no-such-flag": "'--no-such-flag'",
    "-x": "'-x'",
    "--gamma=": "--gamma",
    "--seeds 2 --seeds 3": "--seeds",
    "--gamma 0.9 --gamma=0.8": "--gamma",
    "--norm-obs --no-norm-obs": "norm-obs",
    "--algorithm pop": "there is no algorithm 'pop'; there are a2c, mappo, ppo, reinforce; did you mean 'ppo'?",
    "--algorithm sac": "there is no algorithm 'sac'",
    "--algorithm nowhere:Config": "there is no module 'nowhere'",
    "--algorithm json:JSONDecoder": "'json:JSONDecoder' is not an algorithm's config",
    "--algorithm json:Nothing": "json has no 'Nothing'",
    "--algorithm :": "':'",
    "--surrogate clipp": "'clipp'",
    "--lr-schedule lin": "'lin'",
    "--reset fersh": "'fersh'",
    "--eval-mode greddy": "'greddy'",
    "--members pmap": "'pmap'",
    "--norm-adv some": "'some'",
    "--core grru": "'grru'",
    "--encoder mlp": "'mlp'",
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
    "--optimizer-args eps=": "optimizer_args='eps='",
    "--optimizer-args foo=1": "foo",
    "--critic-optimizer adma": "'adma'",
    "--critic-optimizer-args eps=1": "critic_optimizer_args",
    "--network nowhere:Net": "there is no module 'nowhere'",
    "--network justname": "'justname' is not module:Name",
    "--network json:JSONDecoder": "JSONDecoder",
    "--score return_men": "did you mean 'return_mean'?",
    "--score nowhere:f": "there is no module 'nowhere'",
    "--eval-metrics shoal.api:nothing": "has no 'nothing'",
    "--eval-metrics words": "'words' is not module:Name",
    "--latches 3": "latches=3 has no effect with core='none'",
    "--queries 2": "queries=2 has no effect with core='none'",
    "--first-flag": "first_flag=True has no effect with core='none'",
    "--core gru --chunk-length 5": "chunk_length=5 does not divide num_steps=128",
    "--core gru --chunk-length 1e30": "chunk_length=1000000000000000019884624838656",
    "--core gru --burn-in 500 --chunk-length 8": "burn_in=500 is longer than a chunk",
    "--core gru --action-embedding 4": "action_embedding=4 needs previous_action=True",
    "--core gru --latches 2": "previous_reward",
    "--shared-torso --separate-updates": "shared_torso=True",
    "--vf-clip-coef 0.3": "vf_clip_coef=0.3",
    "--reset-pool 5": "reset_pool=5",
    "--kl-coef 2": "kl_coef=2",
    "--dpo-beta 0.1": "dpo_beta=0.1",
    "--correlated-noise": "correlated_noise=True needs a normal",
    "--from nowhere": "there is no run directory 'nowhere'",
    f"--from {LONG}": "File name too long",
    f"--run-dir {LONG}": "File name too long",
    f"--config {LONG}": "File name too long",
    "--config nowhere": "config file 'nowhere' cannot be read: No such file or directory",
    "Acrobot-v1": "'Acrobot-v1' is one word too many after 'CartPole-v1'",
    "gravty=1": "no parameter 'gravty'",
    "gravity=nan": "gravity",
    "gravity=inf": "gravity",
    "gravity=abc": "gravity='abc'",
    "gravity=": "gravity",
    "gravity=true": "gravity=True",
    "cart_mass=0": "cart_mass=0",
    "cart_mass=-1": "cart_mass=-1",
    "pole_mass=nan": "pole_mass",
    "half_length=0": "half_length=0",
    "time_step=-1": "time_step=-1",
    "max_episode_steps=0": "max_episode_steps=0",
    "max_episode_steps=1.5": "max_episode_steps=1.5",
    "max_episode_steps=ten": "max_episode_steps='ten'",
    "trial_episodes=0": "trial_episodes=0",
    "trial_episodes=-2": "trial_episodes=-2",
}

# ---- other commands; {run} is a run's directory

GRID = "train MiniGrid-Empty-5x5 --encoder cnn"

COMMANDS = {
    "trian": "there is no command 'trian'; there are train, resume, checkpoints, eval, sweep, tune, pbt, rollout, "
    "check, grid, envs; did you mean 'train'?",
    "''": "there is no command ''",
    "--seeds 3": "there is no command '--seeds'",
    "train": "no environment was named",
    "train CartPol-v1": "there is no environment 'CartPol-v1'; did you mean 'CartPole-v1'?",
    "train nowhere:Env": "there is no module 'nowhere'",
    "train json:JSONDecoder": "JSONDecoder",
    "train json:Env": "json has no 'Env'",
    "train :Env": "':Env' is not module:Name",
    "train Pendulum-v1 mass=0": "mass=0",
    "train Pendulum-v1 --distribution categorical": "distribution='categorical' does not fit",
    "train MemoryChain-v0 length=0": "length=0",
    "train MemoryChain-v0 num_bits=-1": "num_bits=-1",
    "train MemoryChain-v0 length=1.5": "length=1.5",
    "train MemoryChain-v0 num_bits=1000000000000": "num_bits=1000000000000",
    "train MiniGrid-Empty-5x5 view_size=1000000000": "view_size=1000000000",
    "train MiniGrid-Empty-5x5 view_size=4": "view_size=4",
    "train MiniGrid-Empty-5x5 height=1000000 width=1000000": "height=1000000",
    "train MiniGrid-Empty-5x5 height=0": "height=0",
    f"{GRID} --encoder-channels 0": "encoder_channels=(0,) is out of bounds: each number of it must be at least 1",
    f"{GRID} --encoder-strides -1 1 1": "encoder_strides",
    f"{GRID} --encoder-channels 8 --encoder-kernels 3 3": (
        "encoder_channels=(8,), encoder_kernels=(3, 3) and encoder_strides=(1,) must have equally many numbers",
        "what is not given (encoder_strides) is the default for observation [7, 7, 2]",
    ),
    f"{GRID} --encoder-kernels 3 4 3": (
        "encoder_kernels=(3, 4, 3) with encoder_strides=(1, 1, 1) has a window of 3 x 3",
        "larger than the 2 x 2 image that reaches convolution 3 from observation [7, 7, 2]",
    ),
    f"{GRID} --encoder-kernels 1e9 2 2": "has a window of 1000000000 x 1000000000, which is larger than the 7 x 7",
    f"{GRID} --encoder-strides 1e9 1 1": "encoder_strides=(1000000000, 1, 1) has a stride of 1000000000",
    f"{GRID} --encoder-channels 1e9": "encoder_channels=(1000000000,) gives 36000000000 numbers after convolution 1",
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
    "eval {run} --episodes ten": "'ten' is not a whole number",
    "eval {run} --seed 5": "seed=5 is not one of the run's: 0, 1",
    "eval {run} --episode-seed -1": "seed=-1 is too small",
    "eval {run} --episode-seed 1e30": "seed=1000000000000000019884624838656 is too large",
    "eval {run} --which first": "'first'",
    "eval {run} --mode greddy": "'greddy'",
    "eval {run} --memory trial": "this one has none",
    "eval {run} --env Acrobot-v1": "and the policy was trained in",
    "eval {run} --env CartPol-v1": "did you mean 'CartPole-v1'?",
    "eval {run} --env gravity=nan": "gravity",
    "eval {run} --render out.jpg": "render='out.jpg' must end in",
    "eval {run} --render no/out.gif": "there is no directory 'no'",
    "eval {run} --render out.gif --render-episodes 0": "render_episodes=0 is too small",
    "eval {run} --render out.gif --render-episodes 1e12": "render_episodes=1000000000000 is too large",
    "eval {run} --render out.gif --render-episodes 1e9": "render_episodes=1000000000 needs at least",
    "eval {run} --plot out.png": "trial_episodes=5 makes some",
    "eval {run} --no-such-flag": "'--no-such-flag'",
    "rollout": "no environment was named",
    "rollout CartPol-v1": "did you mean 'CartPole-v1'?",
    "rollout CartPole-v1 --envs 0": "num_envs=0 is too small",
    "rollout CartPole-v1 --envs 1e12": "num_envs=1000000000000 is too large",
    "rollout CartPole-v1 --envs 2e9": "num_envs=2000000000 needs at least",
    "rollout CartPole-v1 --steps 0": "num_steps=0 is too small",
    "rollout CartPole-v1 --steps 1e30": "num_steps=1000000000000000019884624838656 is too large",
    "rollout CartPole-v1 --steps 1e9 --save data.npz": (
        "num_steps=1000000000 needs at least",
        "(the saved data)",
    ),
    "rollout CartPole-v1 --seed -1": "seed=-1 is too small",
    "rollout CartPole-v1 --devices 99": "devices=99 is more than there are",
    "rollout CartPole-v1 --save full": "it is a directory",
    f"rollout CartPole-v1 --save {LONG}": "File name too long",
    "rollout CartPole-v1 --policy nowhere": "there is no run directory 'nowhere'",
    "rollout Acrobot-v1 --policy {run}": "and the policy was trained in",
    "check": "no environment was named",
    "check CartPol-v1": "did you mean 'CartPole-v1'?",
    "check CartPole-v1 --keys 1": "keys=1",
    "check CartPole-v1 --keys 1e12": "keys=1000000000000 is too large",
    "check CartPole-v1 --steps 0": "steps=0",
    "check CartPole-v1 --steps 1e12": "steps=1000000000000 is too large",
    "check CartPole-v1 --max-steps 1e30": "max_steps=1000000000000000019884624838656 is too large",
    "check CartPole-v1 --seed -1": "seed=-1 is too small",
    "check CartPole-v1 --ignore nothing": "ignore='nothing' is no rule",
    "check CartPole-v1 Acrobot-v1": "'Acrobot-v1' is one word too many",
    "envs CartPol": "there is no environment 'CartPol'",
    "envs CartPole-v1 gravity=abc": "gravity='abc'",
    "envs --all": "'--all'",
    "grid made": "there is no command 'grid made'",
    "grid make-benchmark": "no setting was named",
    "grid make-benchmark smal": "there is no setting 'smal'; there are trivial, small, medium, high; did you mean",
    "grid make-benchmark small --rulesets 0": "rulesets=0",
    "grid make-benchmark small --rulesets 1e12": "rulesets=1,000,000,000,000: they take 53,000,000,000,000 bytes",
    "grid make-benchmark small --held-out 2": "held_out=2",
    "grid make-benchmark small --held-out nan": "held_out=nan",
    "grid make-benchmark small --seed -1": "seed=-1",
    "grid make-benchmark small --chain-depth 9": "chain_depth=9",
    "grid make-benchmark small --prune-prob 2": "prune_prob=2",
    "grid make-benchmark small --goals nothing": "'nothing'",
    "grid make-benchmark small --rulesets 10 --save full": "full cannot be written: it is a directory",
    "grid show": "no file was named",
    "grid show nowhere.npz": "nowhere.npz",
    "grid show {run}/config.json": "config.json",
}

ROWS = {
    f"train CartPole-v1 {words}": expected for words, expected in (SIZES | NUMBERS | WORDS).items()
} | COMMANDS


@pytest.mark.parametrize("words", ROWS, ids=lambda words: words[:60].strip())
def test_a_bad_command_is_one_sentence(here, untrained, run, capsys, words):
    (here / "full").mkdir()
    (here / "full" / "letter.txt").write_text("not a run")
    refused(shlex.split(words.replace("{run}", str(run))), ROWS[words], capsys)


# ---- files: (how a copy of the run, or a new file, is damaged; the words; what is said)


def largest(path):
    return max((file for file in path.rglob("*") if file.is_file()), key=lambda file: file.stat().st_size)


def cut(path, share=0.5):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def setting(group, **values):
    def change(path):
        config = json.loads((path / "config.json").read_text())
        config[group] |= values
        (path / "config.json").write_text(json.dumps(config))

    return change


DAMAGES = {
    "half an array": (lambda run: cut(largest(run / "best" / "arrays-1")), "eval {run}", "damaged"),
    "an empty array": (lambda run: cut(largest(run / "best" / "arrays-1"), 0), "eval {run}", "damaged"),
    "no arrays": (lambda run: shutil.rmtree(run / "best" / "arrays-1"), "eval {run}", "damaged"),
    "no policy": (lambda run: shutil.rmtree(run / "best"), "eval {run}", "holds no policy 'best'"),
    "half a manifest": (
        lambda run: cut(run / "best" / "policy.json"),
        "eval {run}",
        "policy.json is damaged",
    ),
    "half a config": (lambda run: cut(run / "config.json"), "eval {run}", "config.json"),
    "an empty config": (lambda run: cut(run / "config.json", 0), "train --config {run}", "config.json"),
    "a config of nothing": (
        lambda run: (run / "config.json").write_text("{}"),
        "eval {run}",
        "lacks environment",
    ),
    "a config that is a list": (
        lambda run: (run / "config.json").write_text("[1]"),
        "eval {run}",
        "config.json",
    ),
    "a config of bytes": (
        lambda run: (run / "config.json").write_bytes(b"\xff\xfe"),
        "eval {run}",
        "config.json",
    ),
    "an unknown setting": (setting("run", sedes=3), "train --config {run}", "there is no setting 'sedes'"),
    "a setting of text": (setting("run", seeds="two"), "train --config {run}", "seeds='two'"),
    "a setting of null": (setting("algorithm", gamma=None), "train --config {run}", "gamma=None"),
    "an unknown environment": (
        setting("environment", name="Cart"),
        "eval {run}",
        "there is no environment 'Cart'",
    ),
    "an unknown algorithm": (setting("algorithm", name="pop"), "eval {run}", "there is no algorithm 'pop'"),
    "other layers": (setting("algorithm", hidden_sizes=[8]), "eval {run}", "is expected"),
    "a run to start from": (
        lambda run: shutil.rmtree(run / "last"),
        "train CartPole-v1 --from {run}",
        "'last'",
    ),
    "rulesets of nothing": (lambda run: (run / "r.npz").touch(), "grid show {run}/r.npz", "r.npz"),
    "rulesets of text": (lambda run: (run / "r.npz").write_text("rules"), "grid show {run}/r.npz", "r.npz"),
    "rulesets of others": (lambda run: np.savez(run / "r.npz", a=1), "grid show {run}/r.npz", "r.npz"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_a_bad_file_is_one_sentence(here, untrained, run, capsys, name):
    damage, words, expected = DAMAGES[name]
    shutil.copytree(run, here / "copy")
    damage(here / "copy")
    refused(words.replace("{run}", "copy").split(), expected, capsys)


# ---- user modules: (source of the module `name`, the words, what is said)

WORLD = """
import jax, jax.numpy as jnp
from shoal import environment, restart, transition
from shoal.types.spaces import Box, Discrete

@environment
class World:
    observation_space = Box(0, 1, (1,))
    action_space = Discrete(2)

    def reset(self, key):
        RESET
        return (), restart(jnp.zeros(1))

    def step(self, state, action, key):
        STEP
        return (), transition(jnp.ones(1), 1.0, terminated=True)
"""


def world(reset="pass", step="pass"):
    return WORLD.replace("RESET", reset).replace("STEP", step)


MODULES = {
    "value_error": (
        "raise ValueError('my mistake')",
        "train value_error:World",
        ("value_error", "my mistake"),
    ),
    "type_error": ("raise TypeError('my mistake')", "train type_error:World", ("type_error", "my mistake")),
    "runtime_error": ("raise RuntimeError('my mistake')", "check runtime_error:World", "my mistake"),
    "syntax_error": ("def f(:\n    pass", "train syntax_error:World", "syntax_error"),
    "leaves": ("import sys; sys.exit(0)", "train leaves:World", "leaves"),
    "needs": ("import no_such_module", "train needs:World", ("needs", "no_such_module")),
    "plain": ("World = 3", "train plain:World", "plain:World"),
    "spaceless": (
        "from shoal import environment\n@environment\nclass World:\n    pass",
        "train spaceless:World",
        "World",
    ),
    "bad_reset": (
        world(reset="raise KeyError('my mistake')"),
        "train bad_reset:World",
        ("reset", "my mistake"),
    ),
    "bad_step": (world(step="raise KeyError('my mistake')"), "train bad_step:World", ("step", "my mistake")),
    "traced_if": (world(step="if action > 0: pass"), "train traced_if:World", ("step", "traced_if")),
    "bad_shape": (
        world(step="return (), transition(jnp.ones(2), 1.0)"),
        "train bad_shape:World",
        "observation",
    ),
    "bad_score": (
        "def f(x): raise KeyError('my mistake')",
        "train CartPole-v1 --score bad_score:f",
        "my mistake",
    ),
    "bad_net": ("class Net:\n    pass", "train CartPole-v1 --network bad_net:Net", "Net"),
    "bad_config": ("class Config:\n    pass", "train CartPole-v1 --algorithm bad_config:Config", "Config"),
    "rolled": (world(step="raise KeyError('my mistake')"), "rollout rolled:World", ("step", "my mistake")),
}


@pytest.mark.parametrize("name", MODULES)
def test_a_bad_module_of_the_user_is_one_sentence(here, capsys, name):
    source, words, expected = MODULES[name]
    (here / f"{name}.py").write_text(source)
    try:
        refused(words.split(), expected, capsys)
    finally:
        sys.modules.pop(name, None)


# ---- Python: each call is given (run, policy)


def train(**settings):
    return shoal.train(**{"environment": "CartPole-v1", "progress": False} | settings)


def act(policy, memory=(), observation=(0.0,) * 4, **more):
    return policy(memory, np.asarray(observation) if isinstance(observation, tuple) else observation, **more)


CALLS = {
    "train(environment=3)": (lambda r, p: train(environment=3), "environment=3"),
    "train(environment=dict)": (lambda r, p: train(environment=dict), "environment=<class 'dict'>"),
    "train(environment=['CartPole-v1'])": (lambda r, p: train(environment=["CartPole-v1"]), "environment="),
    "train(environment=None)": (lambda r, p: train(environment=None), "no environment was named"),
    "train(algorithm=3)": (lambda r, p: train(algorithm=3), "algorithm=3"),
    "train(algorithm=dict)": (lambda r, p: train(algorithm=dict), "algorithm=<class 'dict'>"),
    "train(environment_parameters=3)": (
        lambda r, p: train(environment_parameters=3),
        "environment_parameters=3",
    ),
    "train(environment_parameters=nan)": (
        lambda r, p: train(environment_parameters={"gravity": float("nan")}),
        "gravity",
    ),
    "train(config=3)": (lambda r, p: train(config=3), "config=3"),
    "train(config=long)": (lambda r, p: train(config=LONG), "File name too long"),
    "train(preset='no')": (lambda r, p: train(preset="no"), "preset='no'"),
    "train(progress=None)": (lambda r, p: train(progress=None), "progress=None"),
    "train(start_from=3)": (lambda r, p: train(start_from=3), "start_from=3"),
    "train(start_from=long)": (lambda r, p: train(start_from=LONG), "File name too long"),
    "train(seeds=[1, 2, 3])": (
        lambda r, p: train(seeds=[1, 2, 3]),
        ("seeds=", "whole number", "number of seeds"),
    ),
    "train(seeds='ten')": (lambda r, p: train(seeds="ten"), "seeds='ten'"),
    "train(seeds=True)": (lambda r, p: train(seeds=True), "seeds=True"),
    "train(seeds=None)": (lambda r, p: train(seeds=None), "seeds=None"),
    "train(seed=0.5)": (lambda r, p: train(seed=0.5), "seed=0.5"),
    "train(total_steps=1.5)": (lambda r, p: train(total_steps=1.5), "total_steps=1.5"),
    "train(total_steps=nan)": (lambda r, p: train(total_steps=float("nan")), "total_steps=nan"),
    "train(num_envs=array)": (lambda r, p: train(num_envs=np.ones(2)), "num_envs="),
    "train(devices='all')": (lambda r, p: train(devices="all"), "devices='all'"),
    "train(devices=2.5)": (lambda r, p: train(devices=2.5), "devices=2.5"),
    "train(run_dir=3)": (lambda r, p: train(run_dir=3), "run_dir=3"),
    "train(run_dir=long)": (lambda r, p: train(run_dir=LONG), "File name too long"),
    "train(run_dir=zero byte)": (lambda r, p: train(run_dir="a\0b"), "run_dir='a\\x00b'"),
    "train(reset=3)": (lambda r, p: train(reset=3), "reset=3"),
    "train(score=3)": (lambda r, p: train(score=3), "score=3 is not a function"),
    "train(eval_metrics=3)": (lambda r, p: train(eval_metrics=3), "eval_metrics=3 is not a function"),
    "train(hidden_sizes=64)": (lambda r, p: train(hidden_sizes=64), "hidden_sizes=64"),
    "train(hidden_sizes=('a',))": (lambda r, p: train(hidden_sizes=("a",)), "hidden_sizes=('a',)"),
    "train(hidden_sizes=None)": (lambda r, p: train(hidden_sizes=None), "hidden_sizes=None"),
    "train(encoder_channels=16)": (
        lambda r, p: train(encoder="cnn", encoder_channels=16),
        "encoder_channels=16 is not a tuple of whole numbers",
    ),
    "train(encoder_features=())": (
        lambda r, p: train(encoder="mlp_each", encoder_features=()),
        "encoder_features=() leaves encoder='mlp_each' without a layer",
    ),
    "train(encoder_channels=())": (
        lambda r, p: train(environment="MiniGrid-Empty-5x5", encoder="cnn", encoder_channels=()),
        "encoder_channels=() leaves encoder='cnn' without a convolution",
    ),
    "train(activation=3)": (lambda r, p: train(activation=3), "activation=3"),
    "train(optimizer=3)": (lambda r, p: train(optimizer=3), "optimizer=3"),
    "train(optimizer_args='eps')": (lambda r, p: train(optimizer_args=3), "optimizer_args=3"),
    "train(network=3)": (lambda r, p: train(network=3), ("network", "3")),
    "train(learning_rate='fast')": (lambda r, p: train(learning_rate="fast"), "learning_rate='fast'"),
    "train(target_kl='much')": (lambda r, p: train(target_kl="much"), "target_kl='much'"),
    "train(gradient_chunk='all')": (lambda r, p: train(gradient_chunk="all"), "gradient_chunk='all'"),
    "train(norm_obs=1)": (lambda r, p: train(norm_obs=1), "norm_obs=1"),
    "train(learing_rate=1)": (lambda r, p: train(learing_rate=1), "there is no setting 'learing_rate'"),
    "load(None)": (lambda r, p: shoal.load(None), "run=None"),
    "load(3)": (lambda r, p: shoal.load(3), "run=3"),
    "load('')": (lambda r, p: shoal.load(""), "run=''"),
    "load(bytes)": (lambda r, p: shoal.load(b"run"), "run=b'run'"),
    "load(long)": (lambda r, p: shoal.load(LONG), "File name too long"),
    "load(which=3)": (lambda r, p: shoal.load(r, 3), "which=3"),
    "load(seed='one')": (lambda r, p: shoal.load(r, seed="one"), "seed='one'"),
    "load(seed=9)": (lambda r, p: shoal.load(r, seed=9), "seed=9 is not one of the run's"),
    "load(environment=3)": (lambda r, p: shoal.load(r, environment=3), "environment=3"),
    "evaluate(None)": (lambda r, p: shoal.evaluate(None), "policy=None"),
    "evaluate(3)": (lambda r, p: shoal.evaluate(3), "policy=3"),
    "evaluate(environment=3)": (lambda r, p: shoal.evaluate(p, 3), "environment=3"),
    "evaluate(episodes='ten')": (lambda r, p: shoal.evaluate(p, episodes="ten"), "episodes='ten'"),
    "evaluate(episodes=True)": (lambda r, p: shoal.evaluate(p, episodes=True), "episodes=True"),
    "evaluate(episodes=1.5)": (lambda r, p: shoal.evaluate(p, episodes=1.5), "episodes=1.5"),
    "evaluate(seed=None)": (lambda r, p: shoal.evaluate(p, seed=None), "seed=None"),
    "evaluate(seed=-1)": (lambda r, p: shoal.evaluate(p, seed=-1), "seed=-1"),
    "evaluate(greedy='yes')": (lambda r, p: shoal.evaluate(p, greedy="yes"), "greedy='yes'"),
    "evaluate(max_steps=None)": (lambda r, p: shoal.evaluate(p, max_steps=None), "max_steps=None"),
    "evaluate(gravity=nan)": (lambda r, p: shoal.evaluate(p, "CartPole-v1", gravity=float("nan")), "gravity"),
    "rollout(3)": (lambda r, p: shoal.rollout(3), "environment=3"),
    "rollout(policy=3)": (lambda r, p: shoal.rollout(None, 3), "policy=3"),
    "rollout(num_envs='ten')": (lambda r, p: shoal.rollout("CartPole-v1", num_envs="ten"), "num_envs='ten'"),
    "rollout(num_steps=None)": (lambda r, p: shoal.rollout("CartPole-v1", num_steps=None), "num_steps=None"),
    "rollout(seed='a')": (lambda r, p: shoal.rollout("CartPole-v1", seed="a"), "seed='a'"),
    "rollout(devices='all')": (lambda r, p: shoal.rollout("CartPole-v1", devices="all"), "devices='all'"),
    "rollout(save=3)": (lambda r, p: shoal.rollout("CartPole-v1", save=3), "save=3"),
    "rollout(greedy=3)": (lambda r, p: shoal.rollout("CartPole-v1", greedy=3), "greedy=3"),
    "check(3)": (lambda r, p: shoal.check(3), "environment=3"),
    "check(keys='ten')": (lambda r, p: shoal.check("CartPole-v1", keys="ten"), "keys='ten'"),
    "check(seed=None)": (lambda r, p: shoal.check("CartPole-v1", seed=None), "seed=None"),
    "check(ignore=3)": (lambda r, p: shoal.check("CartPole-v1", ignore=3), "ignore=3"),
    "render(path=3)": (lambda r, p: shoal.render(p, 3), "path=3"),
    "render(path=None)": (lambda r, p: shoal.render(p, None), "path=None"),
    "render(None)": (lambda r, p: shoal.render(None, "out.gif"), "policy=None"),
    "render(episodes='ten')": (lambda r, p: shoal.render(p, "out.gif", episodes="ten"), "episodes='ten'"),
    "make(3)": (lambda r, p: shoal.make(3), "name=3"),
    "make(None)": (lambda r, p: shoal.make(None), "name=None"),
    "make(gravity='low')": (lambda r, p: shoal.make("CartPole-v1", gravity="low"), "gravity='low'"),
    "register(3)": (lambda r, p: shoal.register(3, dict), "name=3"),
    "register(constructor=3)": (lambda r, p: shoal.register("Mine-v0", 3), "constructor=3"),
    "register(parameters=3)": (lambda r, p: shoal.register("Mine-v0", dict, parameters=3), "parameters=3"),
    "register(max_episode_steps='ten')": (
        lambda r, p: shoal.register("Mine-v0", dict, max_episode_steps="ten"),
        "max_episode_steps='ten'",
    ),
    "initial_memory('one')": (lambda r, p: p.initial_memory("one"), "batch_shape='one'"),
    "initial_memory(('one',))": (lambda r, p: p.initial_memory(("one",)), "batch_shape='one'"),
    "policy(memory=3)": (lambda r, p: act(p, memory=3), "memory=3"),
    "policy(observation=None)": (lambda r, p: act(p, observation=None), "observation"),
    "policy(observation='abcd')": (lambda r, p: act(p, observation="abcd"), "observation"),
    "policy(observation=words)": (
        lambda r, p: act(p, observation=list("abcd")),
        "observation=['a', 'b', 'c', 'd']",
    ),
    "policy(observation=ragged)": (lambda r, p: act(p, observation=[[0.0], [0.0, 1.0]]), "observation="),
    "policy(observation=short)": (lambda r, p: act(p, observation=(0.0, 0.0)), "observation has shape (2,)"),
    "policy(observation=nan)": (lambda r, p: act(p, observation=(float("nan"),) * 4), "observation"),
    "policy(reward='much')": (lambda r, p: act(p, reward="much"), "reward='much'"),
    "policy(reward=[1, 2])": (lambda r, p: act(p, reward=[1.0, 2.0]), "reward=[1.0, 2.0]"),
    "policy(first='yes')": (lambda r, p: act(p, first="yes"), "first='yes'"),
    "policy(key=3)": (lambda r, p: act(p, key=3), "key=3"),
    "policy(key='a')": (lambda r, p: act(p, key="a"), "key='a'"),
    "policy(key=several)": (lambda r, p: act(p, key=jax.random.split(jax.random.key(0))), "key="),
    "policy(key=floats)": (lambda r, p: act(p, key=jnp.zeros(2)), "key="),
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
    "train CartPole-v1 --hidden-sizes 1e9 1e9": "hidden_sizes=(1000000000, 1000000000) needs at least",
    "train CartPole-v1 --core gru --core-layers 5000": "core_layers=5000 is out of bounds",
    "train CartPole-v1 --num-evals 1e9": "num_evals=1000000000 is out of bounds",
    "train CartPole-v1 --devices 5000": "devices=5000 is more than there are",
    "train raises:World": ("raises", "my mistake"),
    "train leaves:World": "leaves",
    "eval {run} --episodes 1e12": "episodes=1000000000000 is too large",
    "eval damaged": "damaged",
    "rollout CartPole-v1 --steps 1e30": "num_steps=1000000000000000019884624838656 is too large",
}


@pytest.mark.parametrize("words", PROCESSES)
@pytest.mark.quick("eval damaged", "train raises:World")
def test_a_bad_command_in_a_process_of_its_own(tmp_path, run, words):
    (tmp_path / "raises.py").write_text("raise ValueError('my mistake')")
    (tmp_path / "leaves.py").write_text("import sys; sys.exit(0)")
    shutil.copytree(run, tmp_path / "damaged")
    cut(largest(tmp_path / "damaged" / "best" / "arrays-1"), 0)
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


def test_the_table_has_two_hundred_rows():
    assert len(ROWS) + len(DAMAGES) + len(MODULES) + len(CALLS) + len(PROCESSES) >= 200
