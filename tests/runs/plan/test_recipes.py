"""The recipes have the values of the works that they are named after, and train by one command."""

import json
import tomllib
import zipfile
from pathlib import Path

import pytest

import shoal
from shoal.cli import rollout as rollout_command
from shoal.envs.registry import registered_parameters
from shoal.runs.plan.config_files import RECIPES, read_layers
from shoal.runs.plan.decide import decide
from shoal.runs.plan.setting_files import names_in

ROOT2 = pytest.approx(2**0.5)
NETWORKS = {"orthogonal": ("initialiser", "orthogonal"), "orthogonal √2": ("hidden_scale", ROOT2)}

# What each work calls a value, the name that it has in `config.json`, and the value there.
STOIX = {
    "env.scenario.name": ("name", "CartPole-v1"),
    "arch.seed": ("seed", 42),
    "one run": ("seeds", 1),
    "arch.total_num_envs": ("num_envs", 1024),
    "arch.total_timesteps": ("total_steps", 10_000_000),
    "arch.num_evaluation": ("num_evals", 20),
    "arch.num_eval_episodes": ("eval_episodes", 128),
    "arch.evaluation_greedy": ("eval_mode", "sampled"),
    "arch.absolute_metric": ("absolute_episodes", 1280),
    "system.rollout_length": ("num_steps", 128),
    "system.epochs": ("update_epochs", 4),
    "system.num_minibatches": ("num_minibatches", 16),
    "system.actor_lr": ("learning_rate", 3e-4),
    "system.critic_lr": ("critic_learning_rate", 3e-4),
    "actor_optim, critic_optim": ("separate_updates", True),
    "eps": ("optimizer_args", ["eps=1e-5"]),
    "system.decay_learning_rates": ("lr_schedule", "linear"),
    "system.max_grad_norm": ("max_grad_norm", 0.5),
    "the critic's": ("critic_max_grad_norm", None),  # that of the actor
    "system.gamma": ("gamma", 0.99),
    "system.gae_lambda": ("gae_lambda", 0.95),
    "system.clip_eps": ("clip_coef", 0.2),
    "clipped_value_loss": ("clip_vloss", True),
    "system.clip_eps of the values": ("vf_clip_coef", 0.2),
    "system.ent_coef": ("ent_coef", 0.01),
    "system.vf_coef": ("vf_coef", 0.5),
    "half of the square": ("value_loss", "squared"),
    "system.standardize_advantages": ("norm_adv", "batch"),
    "system.reward_scale": ("reward_scale", 1.0),
    "system.normalize_observations": ("norm_obs", False),
    "system.obs_norm_warmup_steps": ("obs_norm_warmup_steps", 128 * 1024),
    "network.actor_network.pre_torso.layer_sizes": ("hidden_sizes", [256, 256]),
    "network.critic_network.pre_torso.layer_sizes": ("critic_hidden_sizes", None),
    "network.actor_network.pre_torso.activation": ("activation", "relu"),
    "network.actor_network.pre_torso.use_layer_norm": ("layer_norm", False),
    "two networks": ("shared_torso", False),
    "CategoricalHead": ("policy_scale", 0.01),
    "ScalarCriticHead": ("value_scale", 1.0),
    **NETWORKS,
}
XLAND = {
    "env_id": ("name", "MiniGrid-Empty-6x6"),
    "view_size": ("view_size", 7),
    "img_obs": ("observe_image", False),
    "DirectionObservationWrapper": ("observe_direction", False),
    "seed": ("seed", 42),
    "one run": ("seeds", 1),
    "num_envs": ("num_envs", 8192),
    "num_steps": ("num_steps", 16),
    "update_epochs": ("update_epochs", 1),
    "num_minibatches": ("num_minibatches", 16),
    "total_timesteps": ("total_steps", 5_000_000),
    "lr": ("learning_rate", 1e-3),
    "linear_schedule": ("lr_schedule", "linear"),
    "eps": ("optimizer_args", ["eps=1e-8"]),
    "one optimiser": ("separate_updates", False),
    "max_grad_norm": ("max_grad_norm", 0.5),
    "gamma": ("gamma", 0.99),
    "gae_lambda": ("gae_lambda", 0.95),
    "clip_eps": ("clip_coef", 0.2),
    "value_loss_clipped": ("clip_vloss", True),
    "clip_eps of the values": ("vf_clip_coef", 0.2),
    "ent_coef": ("ent_coef", 0.01),
    "vf_coef": ("vf_coef", 0.5),
    "advantages - advantages.mean()": ("norm_adv", "minibatch"),
    "no normaliser": ("norm_obs", False),
    "no clip of observations": ("obs_clip", None),
    "eval_episodes": ("eval_episodes", 40),
    "evaluated after each update": ("eval_every", 8192 * 16),
    "dist.sample": ("eval_mode", "sampled"),
    "img_encoder": ("encoder", "cnn"),
    "features": ("encoder_channels", [16, 32, 64]),
    "kernel_size": ("encoder_kernels", [2, 2, 2]),
    "strides": ("encoder_strides", [1, 1, 1]),
    "padding": ("encoder_padding", "valid"),
    "nn.relu": ("encoder_activation", "relu"),
    "integers straight into the convolutions": ("encoder_embedding", 0),
    "activation after the last one": ("torso_final_activation", True),
    "one torso": ("shared_torso", True),
    "no hidden layers": ("hidden_sizes", []),
    "rnn_core": ("core", "gru"),
    "rnn_hidden_dim": ("core_size", 1024),
    "rnn_num_layers": ("core_layers", 1),
    "glorot_normal(in_axis=1, out_axis=0)": ("core_initialiser", "glorot_normal_whole"),
    "orthogonal(column_axis=0)": ("core_recurrent_initialiser", "orthogonal_whole"),
    "sum outputs from all layers": ("core_outputs", "sum"),
    "memory runs over ends": ("memory_lasts", "run"),
    "prev_action": ("previous_action", True),
    "action_emb_dim": ("action_embedding", 16),
    "prev_action = jnp.zeros": ("start_action", "first"),
    "prev_reward": ("previous_reward", True),
    "head_hidden_dim": ("head_sizes", [256]),
    "nn.tanh": ("activation", "tanh"),
    "orthogonal(2)": ("head_hidden_scale", 2.0),
    "orthogonal(0.01)": ("policy_scale", 0.01),
    "orthogonal(1.0)": ("value_scale", 1.0),
    **NETWORKS,
}
JAXAGENTS = {
    "HuntingContinuous": ("name", "Hunt-v0"),
    "prey_velocity": ("prey_speed", 3.0),
    "predator_velocity": ("predator_speed", 1.0),
    "predator_radius": ("catch_radius", 0.2),
    "max_time": ("max_time", 2.0),
    "dt": ("time_step", 0.01),
    "time_step_reward": ("step_reward", 1.0),
    "caught_reward": ("caught_reward", 100.0),
    "PRNGKey": ("seed", 42),
    "one run": ("seeds", 1),
    "n_steps": ("total_steps", 5_000 * 128 * 200),
    "batch_size": ("num_envs", 128),
    "rollout_length": ("num_steps", 200),
    "minibatch_size": ("num_minibatches", 128 // 16),
    "actor_epochs, counted from 1": ("update_epochs", 10 - 1),
    "critic_epochs": ("critic_update_epochs", 10),
    "actor_optimizer_params.learning_rate": ("learning_rate", 3e-4),
    "critic_optimizer_params.learning_rate": ("critic_learning_rate", 5e-4),
    "actor_optimizer_params.eps": ("optimizer_args", ["eps=1e-5"]),
    "critic_optimizer_params.eps": ("critic_optimizer_args", None),  # those of the actor
    "actor_optimizer_params.grad_clip": ("max_grad_norm", 1.0),
    "critic_optimizer_params.grad_clip": ("critic_max_grad_norm", 1.0),
    "constant": ("lr_schedule", "constant"),
    "gamma": ("gamma", 0.99),
    "gae_lambda": ("gae_lambda", 0.97),
    "eps_clip": ("clip_coef", 0.2),
    "values are not clipped": ("clip_vloss", False),
    "ent_coeff": ("ent_coef", 0.005),
    "vf_coeff": ("vf_coef", 2 * 1.0),  # of the whole square there
    "Standardize GAE": ("norm_adv", "minibatch"),
    "observations as they are": ("norm_obs", False),
    "kl_threshold, which has no counterpart": ("target_kl", "inf"),
    "own layers": ("parameters", "agent"),
    "one observation": ("critic_input", "own"),
    "nn.Dense": ("hidden_sizes", [128, 64]),
    "nn.tanh": ("activation", "tanh"),
    "orthogonal(0.01)": ("policy_scale", 0.01),
    "orthogonal(1.0)": ("value_scale", 1.0),
    "distrax.Normal": ("distribution", "normal"),
    "log_std": ("initial_std", 1.0),
    "actions_clip": ("action_scaling", "clip"),
    "n_evals": ("eval_episodes", 100),
    "eval_frequency": ("eval_every", 100 * 128 * 200),
    "policy": ("eval_mode", "greedy"),
    "eval_rng": ("eval_seed", 18),
    **NETWORKS,
}
JAXDEM = {
    "singleNavigator": ("name", "particles/Navigator-v0"),
    "max_steps": ("max_episode_steps", 20_000),
    "max_box_size": ("area_per_agent", 40.0**2),
    "friction": ("drag", 0.2),
    "max_norm": ("drive", 6.0),
    "dt": ("time_step", 2e-3),
    "skip_frames": ("physics_steps", 1),
    "ke_weight": ("reward", "jaxdem_single"),
    "ends by time alone": ("hold_decisions", 1_000_000),
    "one run": ("seeds", 1),
    "num_envs": ("num_envs", 1024),
    "num_steps_epoch": ("num_steps", 64),
    "num_epochs": ("total_steps", 1_000 * 1024 * 64),
    "one pass": ("update_epochs", 1),
    "num_minibatches": ("num_minibatches", 4),
    "optimizer": ("optimizer", "optax.contrib:muon"),
    "eps": ("optimizer_args", ["eps=1e-12"]),
    "learning_rate": ("learning_rate", 1e-2),
    "anneal_learning_rate": ("lr_schedule", "cosine"),
    "max_grad_norm": ("max_grad_norm", 1.5),
    "advantage_gamma": ("gamma", 0.99),
    "advantage_lambda": ("gae_lambda", 0.95),
    "advantage_rho_clip": ("rho_clip", 1.0),
    "advantage_c_clip": ("c_clip", 1.0),
    "ppo_clip_eps": ("clip_coef", 0.2),
    "value_pred_clipped": ("clip_vloss", True),
    "ppo_clip_eps of the values": ("vf_clip_coef", 0.2),
    "ppo_value_coeff": ("vf_coef", 2.0),
    "ppo_entropy_coeff": ("ent_coef", 0.001),
    "adv - adv.mean()": ("norm_adv", "minibatch"),
    "SharedActorCritic": ("shared_torso", True),
    "architecture": ("hidden_sizes", [42, 42, 42]),
    "activation": ("activation", "gelu"),
    "actor_scale": ("policy_scale", 1.0),
    "critic_scale": ("value_scale", 0.01),
    "distrax.Normal": ("distribution", "normal"),
    "log_std": ("initial_std", 1.0),
    **NETWORKS,
}
WORKS = {"stoix_ff_ppo": STOIX, "xland_minigrid": XLAND, "jaxagents_ippo": JAXAGENTS, "jaxdem": JAXDEM}
SMALL = {  # a few steps of each
    "stoix_ff_ppo": "--num-envs 16 --num-steps 16 --total-steps 512",
    "xland_minigrid": "--num-envs 16 --total-steps 512 --core-size 8 --eval-every 0 --eval-max-steps 16",
    "jaxagents_ippo": "--num-envs 8 --num-steps 16 --total-steps 256 --eval-every 0 --eval-max-steps 16",
    "jaxdem": "--num-envs 8 --num-steps 16 --total-steps 256 --num-evals 0 --eval-max-steps 16",
}


def values_of(config):
    """All values of a `config.json` by their names there, the name of the environment as `name`."""
    parts = [config["algorithm"], config["run"], config["environment"]["parameters"]]
    return {name: x for part in parts for name, x in part.items()} | {"name": config["environment"]["name"]}


@pytest.mark.parametrize("work", WORKS)
def test_a_recipe_has_the_values_of_its_work(work):
    values = values_of(decide(None, config_file=work, overrides={}).as_json())
    found = {name: (setting, values[setting]) for name, (setting, _) in WORKS[work].items()}
    assert found == WORKS[work]


def test_the_empty_room_is_that_of_xland_minigrid():
    """Tests of the grid compare its steps with xminigrid's."""
    decided = decide(None, config_file="xland_minigrid", overrides={})
    world, limit = decided.environment, registered_parameters(decided.environment_name)["max_episode_steps"]
    assert (limit, world.observation_space.shape, world.action_space.n) == (4 * 6 * 6, (7, 7, 2), 6)


@pytest.mark.quick("stoix_ff_ppo")
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.rare()
def test_a_recipe_trains_by_one_command(work, tmp_path, monkeypatch, capsys):
    """And the run's own `config.json` has the recipe's values, but for what the flags change."""
    from shoal.cli import main

    monkeypatch.chdir(tmp_path)
    flags = f"{SMALL[work]} --eval-episodes 4 --absolute-episodes 4 --run-dir run --quiet".split()
    assert main(["train", "--config", work, *flags]) == 0, capsys.readouterr().err
    trained = values_of(json.loads((tmp_path / "run" / "config.json").read_text()))
    given = {word.lstrip("-").replace("-", "_") for word in flags if word.startswith("--")}
    kept = {name: pair for name, pair in WORKS[work].items() if pair[0] not in given}
    assert {name: (setting, trained[setting]) for name, (setting, _) in kept.items()} == kept
    assert len(kept) > 25


def test_mountain_car_is_rolled_out_by_one_command(tmp_path, monkeypatch, capsys):
    from shoal.cli import main

    saved = read_layers("mountain_car")
    assert saved["environment"]["parameters"] == {"max_episode_steps": None, "num_actions": 2}
    names = {"NUM_ENV": "envs", "NUM_DEVICES": "devices", "TIMESTEPS": "steps", "seed": "seed"}
    assert [saved["rollout"][name] for name in names.values()] == [4, 1, 100_000_000, 0]
    asked = []
    collected = rollout_command.rollout

    def rollout(environment, policy, **options):
        asked.append((environment, options))
        return collected(environment, policy, **options | {"num_steps": 8})

    monkeypatch.setattr(rollout_command, "rollout", rollout)
    monkeypatch.chdir(tmp_path)
    assert main(["rollout", "--config", "mountain_car"]) == 0
    ((world, options),) = asked
    kept = ("num_envs", "devices", "num_steps", "seed", "save")
    assert [options[name] for name in kept] == [4, 1, 100_000_000, 0, "mountain_car.npz"]
    bounds = {
        **{"lowest_start": -0.6, "highest_start": -0.4, "min_position": -1.2, "max_position": 0.6},
        **{"max_speed": 0.07, "goal_position": 0.5, "goal_velocity": 0.0, "force": 0.001, "gravity": 0.0025},
    }
    assert {name: getattr(world, name) for name in bounds} == bounds and world.action_space.n == 2
    with zipfile.ZipFile(tmp_path / "mountain_car.npz") as data:
        assert {"observations.npy", "rewards.npy", "last.npy"} <= set(data.namelist())
    assert "MountainCar-v0, random actions: 4 environments, 8 steps each, 1 device" in capsys.readouterr().out
    # Flags stand over the file, and parameters over its parameters.
    assert main(["rollout", "--config", "mountain_car", "--envs", "2", "force=0.01", "--save", ""]) == 0
    world, options = asked[-1]
    assert (options["num_envs"], options["save"], world.force) == (2, None, 0.01)
    assert main(["rollout", "Acrobot-v1", "--config", "mountain_car"]) == 0
    assert asked[-1][0] == "Acrobot-v1"
    capsys.readouterr()
    assert main(["train", "--config", "mountain_car"]) == 2
    assert "it is for `shoal rollout --config mountain_car`." in capsys.readouterr().err


@pytest.mark.parametrize(
    "text, sentence",
    [
        ("stepz = 3", "there is no setting 'stepz'; did you mean 'steps'?"),
        ("steps = 'many'", "steps='many' is "),
    ],
)
def test_a_mistake_in_what_is_rolled_out_is_one_sentence(text, sentence, tmp_path, monkeypatch, capsys):
    from shoal.cli import main

    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(f"[rollout]\n{text}\n")
    assert main(["rollout", "CartPole-v1", "--config", "mine.toml"]) == 2
    assert sentence in capsys.readouterr().err


def test_there_is_a_recipe_of_each_work_in_the_package():
    """A wheel holds all files of `src/shoal` that git does not ignore."""
    assert {*names_in(RECIPES)} == {*WORKS, "mountain_car"}
    root = Path(shoal.__file__).parents[2]
    built = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]
    assert built == {"wheel": {"packages": ["src/shoal"]}} and RECIPES.is_relative_to(root / "src" / "shoal")
    assert not [
        line for line in (root / ".gitignore").read_text().split() if "toml" in line or "recipes" in line
    ]
