"""Training as a pure function of a key, which may be compiled, mapped and differentiated like any other of JAX."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from shoal.algos import catalogue
from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code
from shoal.config import arguments, settings, struct
from shoal.engine import team
from shoal.engine.evaluation import evaluate
from shoal.engine.loop import start_training, train, update_once
from shoal.engine.population.member_layout import compiler_options
from shoal.engine.run import ProgramSettings, Run
from shoal.records.run_config import RunConfig
from shoal.runs.plan.decide import decide
from shoal.runs.plan.experiment import resolve
from shoal.runs.policies.trained_policy import TrainedPolicy, as_key
from shoal.runs.train import compiled_trainer
from shoal.types import Array, Clock, Environment, Learner, spec_of
from shoal.xla import machine
from shoal.xla.backend import is_cpu
from shoal.xla.barriers import materialise
from shoal.xla.jax_settings import require_usable

# The settings of a run that have an effect where nothing is written.
SETTINGS = settings.names_where(RunConfig(), lambda setting: setting.field.use.in_pure)
# What a function of one key trains, in a program that its caller may map, and place on devices.
ALONE = {"seeds": 1, "devices": 1, "env_groups": 1}


@dataclasses.dataclass(frozen=True, eq=False)
class PureTraining:
    """A pure function from a key to a trained learner; see `make_train`.

    Attributes:
      environment: that it trains in; its numbers are arrays.
      config: the algorithm's, with all settings decided; its floats are arrays, perhaps traced.
      run: sizes, budget and evaluations.
      evaluation_points: the numbers of updates after which the policy is evaluated; () for never.
    """

    environment: Environment
    config: Any
    run: RunConfig
    evaluation_points: tuple[int, ...]

    def __call__(self, key: Array) -> tuple[Learner, dict[str, Any]]:
        """Train from a key to the end of the budget.

        Returns:
          the learner, and the metrics: of each update its means, [updates], NaN where nothing was counted (such as
          `episode_return` where no episode ended); and where there are evaluations `evaluations`, their metrics and
          the `updates` after which they were made, [evaluations] each.
        """
        total = jnp.int32(self.run.total_updates)
        settings = compiled_trainer.program_settings(self.run, 1, "return_mean", None)
        arguments = as_key(key), self.environment, self.config, total
        is_traced = struct.is_traced(*jax.tree.leaves(arguments))  # then the caller compiles
        train = _compiled(is_cpu() and not is_traced)
        return train(*arguments, self.run.total_updates, settings, self.evaluation_points)

    @property
    def compiler_options(self) -> dict[str, Any]:
        """The compiler's options of a run, for a caller's own `jax.jit`: others may round otherwise."""
        return compiler_options(is_cpu())

    def policy(self, learner: Learner, index: int | tuple[int, ...] | None = None) -> TrainedPolicy:
        """Return the policy of a learner after the last update, which acts as one that `shoal.load` returns.

        Args:
          index: of one learner among those of a mapped training; a tuple where it was mapped several times.
        Raises:
          ShoalError: the learners are several and there is no index of one, or it is none of theirs.
        """
        run, algorithm = self.run, self.config.algorithm(spec_of(self.environment))
        one = jax.eval_shape(lambda: algorithm.init(jax.random.key(0), run.num_envs))
        leaf, expected = jax.tree.leaves(learner)[0], jax.tree.leaves(one)[0]
        mapped = leaf.shape[: leaf.ndim - expected.ndim]
        place = () if index is None else index if isinstance(index, tuple) else (index,)
        if len(place) != len(mapped) or not all(k in range(n) for k, n in zip(place, mapped, strict=True)):
            first = 0 if len(mapped) == 1 else (0,) * len(mapped)
            what = f"is of a mapped training, [{', '.join(map(str, mapped))}]" if mapped else "is one"
            remedy = f"policy(learner, index={first}) takes the first" if mapped else "leave index out"
            raise ShoalError(f"the learner {what}, and index={index!r} is the place of none in it; {remedy}.")
        learner = jax.tree.map(lambda x: x[tuple(map(int, place))], learner)
        steps = jnp.float32(run.total_updates * run.steps_per_update)
        clock = Clock(jnp.int32(run.total_updates), steps, jnp.ones(()))
        return TrainedPolicy(self.config, algorithm.policy(learner, clock), self.environment)


def _train(
    key: Array,
    environment: Environment,
    config: Any,
    total_updates: Array,
    num_updates: int,
    settings: ProgramSettings,
    points: tuple[int, ...],
) -> tuple[Learner, dict[str, Any]]:
    # Numbers that the caller's program has as constants stay data here, since divisions by a constant round otherwise.
    environment, config, total_updates = materialise((environment, config, total_updates))
    run = start_training((key, environment, config, total_updates), settings)
    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(evaluate, run)[1]) if points else {}

    def step(run: Run, todo: tuple[Array, Array]) -> tuple[Run, tuple[dict[str, Array], dict[str, Array]]]:
        count, is_evaluated = todo
        run, sums = train(run, count)
        evaluation = nothing
        if points:
            # Of the metrics alone: a run that went through the conditional would be copied in each update, rings too.
            evaluation = jax.lax.cond(is_evaluated, lambda: evaluate(run)[1], lambda: nothing)
        return run, ({name: mean.value for name, mean in sums.items()}, evaluation)

    updates = np.arange(
        num_updates + 1
    )  # the first step makes none: it is for the evaluation before training
    todo = jnp.asarray(np.minimum(updates, 1)), jnp.asarray(np.isin(updates, points))
    run, (metrics, evaluations) = jax.lax.scan(step, run, todo)
    metrics = jax.tree.map(lambda x: x[1:], metrics)
    if points:
        made = np.array(points, np.int32)
        metrics["evaluations"] = {name: x[made] for name, x in evaluations.items()} | {
            "updates": jnp.asarray(made)
        }
    return run.learner, metrics


@functools.cache
def _compiled(for_cpu: bool) -> Callable[..., tuple[Learner, dict[str, Any]]]:
    return jax.jit(_train, static_argnums=(4, 5, 6), compiler_options=compiler_options(for_cpu) or None)


@reports_user_code
def make_train(
    environment: str | Environment,
    config: Any = None,
    *,
    num_evals: int = 0,
    preset: bool = True,
    environment_parameters: Mapping[str, Any] | None = None,
    **settings_by_name: Any,
) -> PureTraining:
    """Make a pure function that trains one seed: `learner, metrics = make_train(environment)(key)`.

    It writes no file, prints nothing and starts no thread, so that it may be compiled by `jax.jit` and mapped by
    `jax.vmap` over keys, and over configs where it is made within the mapped function. Settings are decided as by
    `shoal.train(environment, algorithm=config)`, of whose preset the algorithm's part counts only without a `config`.
    With the key `jax.random.key(s)` the learner is, bit for bit, that of `shoal.train(..., seed=s, seeds=1, devices=1)`
    in the same process; within a program of your own, if that is compiled with the function's `compiler_options`. A
    seed in which a number is not finite makes no further update; its metrics are 0 / 0 from there on.

    Args:
      environment: a name, `module:Name`, or an environment itself.
      config: the algorithm's config, whose floats may be traced; a name such as "a2c"; or None for PPO's. Values that
        are traced are not checked, and a traced `target_kl` makes the KL stop a part of the program.
      num_evals: evaluates this many times, evenly spaced, and before training; 0 never does.
      preset: whether the tuned settings of the environment are used, where there are any.
      environment_parameters: of an environment given by name.
      **settings_by_name: `num_envs`, `num_steps`, `total_steps` or `num_updates`, `reset`, `reset_pool`,
        `eval_episodes`, `eval_mode`, `eval_max_steps`, `eval_seed`, `eval_consecutive`, and settings of the algorithm.
    Raises:
      ShoalError: a setting that cannot work, in one sentence, before anything is traced.
    """
    _check_effects(settings_by_name)
    catalogue.check_algorithm("" if config is None else config, "config")
    machine.prepare(max(getattr(jax.config, "jax_num_cpu_devices", 1), 1))
    require_usable(training=True)
    num_evals = arguments.whole_number("num_evals", num_evals, 0)
    evaluations = {"num_evals": num_evals} if num_evals else {}
    experiment = decide(
        environment,
        algorithm="" if config is None else jax.tree.map(_as_number, config),
        environment_parameters=arguments.mapping("environment_parameters", environment_parameters),
        use_preset=arguments.boolean("preset", preset),
        overrides={**settings_by_name, **evaluations, **ALONE},
    )
    experiment = dataclasses.replace(experiment, config=resolve(experiment.config))
    experiment.validate()
    team.team_return_of(experiment.environment)
    run, own = experiment.run, struct.as_arrays(experiment.config)
    if not catalogue.is_builtin(experiment.algorithm):
        program_settings = compiled_trainer.program_settings(run, 1, "return_mean", None)
        # Traced once, so that a mistake in a user's algorithm is found here, and not where the training is compiled.
        jax.eval_shape(
            update_once, compiled_trainer.member_shapes(experiment.environment, own, program_settings)
        )
    points = tuple(run.evaluation_points()) if num_evals else ()
    return PureTraining(struct.as_arrays(experiment.environment), own, run, points)


def _check_effects(overrides: Mapping[str, Any]) -> None:
    """Refuse the settings of a run that have no effect on training."""
    for name in settings.settings_of(RunConfig()).keys() & overrides.keys() - set(SETTINGS):
        raise ShoalError(
            f"{name}={arguments.short_repr(overrides[name])} has no effect in make_train, which trains one seed on one "
            f"device and writes nothing; of a run's settings it takes {', '.join(SETTINGS)}."
        )


def _as_number(leaf: Any) -> Any:
    """Return an array of one number as the number; a traced value stays as it is."""
    is_concrete = isinstance(leaf, jax.Array) and not isinstance(leaf, jax.core.Tracer)
    return leaf.item() if is_concrete and leaf.ndim == 0 else leaf
