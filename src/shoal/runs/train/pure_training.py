"""Training as a pure function of a key, which may be compiled, mapped and differentiated like any other of JAX."""

import dataclasses
import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np

from shoal.algos import catalogue
from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code
from shoal.config import arguments, settings, struct
from shoal.config.traced import on_host
from shoal.engine import team
from shoal.engine.evaluation import evaluate
from shoal.engine.loop import start_training, train
from shoal.engine.population.member_layout import compiler_options
from shoal.engine.run import Run, Stream, batch_of, policy_of, stream_key
from shoal.envs.batch import Batch
from shoal.records.run_config import RunConfig
from shoal.runs.plan.decide import decide
from shoal.runs.plan.experiment import Experiment, resolve
from shoal.runs.policies.trained_policy import TrainedPolicy, as_key
from shoal.runs.train import compiled_trainer, stepwise
from shoal.runs.train.stepwise import CONSTANT, Evaluation, Plan, Source
from shoal.types import Algorithm, Array, Clock, Environment, Learner, PyTree, TimeStep, for_actor, spec_of
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
    """A trainer of one seed, whose methods are pure functions; see `make_train`.

    Attributes:
      environment: that it trains in; its numbers are arrays.
      config: the algorithm's, with all settings decided; its floats are arrays, perhaps traced.
      run: sizes, budget and evaluations.
      evaluation_points: the numbers of updates after which the policy is evaluated; () for never.
      experiment: what was decided, in numbers of Python where they are not traced.
      on_evaluation: is called with each evaluation; None for nothing.
    """

    environment: Environment
    config: Any
    run: RunConfig
    evaluation_points: tuple[int, ...]
    experiment: Experiment = dataclasses.field(repr=False)
    on_evaluation: Callable[[Evaluation], object] | None = None

    @reports_user_code
    def __call__(self, key: Array) -> tuple[Learner, dict[str, Any]]:
        """Train from a key to the end of the budget.

        Returns:
          the learner, and the metrics: of each update its means, [updates], NaN where nothing was counted (such as
          `episode_return` where no episode ended); and where there are evaluations `evaluations`, their metrics and
          the `updates` after which they were made, [evaluations] each, and where they are kept their episodes,
          [evaluations, episodes].
        """
        return self._call(_train, (_required(key), *self._constant))

    # ---- one step after the other

    @reports_user_code
    def start(
        self,
        key: Array,
        start_from: Learner | str | Path | None = None,
        *,
        from_step: int | str = "",
        seed: int | None = None,
        label: str | None = None,
    ) -> Run:
        """Start a run, before its first update: everything that is needed to continue, as one pytree.

        Args:
          key: of all its randomness.
          start_from: a learner that it continues with; or a run from whose parameters it starts, as that of
            `shoal.train`. Environments start anew, and with them what a learner keeps of them, such as a replay; the
            clock of schedules starts at 0.
          from_step: the checkpoint of a run that is taken instead of its end: its environment steps, "best" or "last".
          seed, label: of the run's member; None for the first.
        Raises:
          ShoalError: what it shall start from cannot be had, or is another trainer's.
        """
        given: Any = start_from
        if start_from is not None and not isinstance(start_from, Learner):
            source = Source(arguments.path("start_from", start_from), from_step, seed, label)
            given = stepwise.saved_learner(self._shapes, self.experiment, source)
        return self._with_constants(self._call(_start, (_required(key), *self._constant, given)))

    @on_host
    def resume(
        self,
        run: str | Path,
        *,
        from_step: int | str = "last",
        seed: int | None = None,
        label: str | None = None,
    ) -> Run:
        """Read the state of one member of a run from a checkpoint, from which it continues bit for bit.

        Args:
          run: its directory. It was trained with this trainer's settings, but for those that `shoal.resume` may change.
          from_step: the checkpoint: its environment steps, "best" or "last".
          seed, label: of the member; None for the first.
        Raises:
          ShoalError: there is no such run, checkpoint or member, or it was trained otherwise.
        """
        source = Source(arguments.path("run", run), from_step, seed, label)
        return stepwise.restored(self._with_constants(self._shapes), self.experiment, source)

    @reports_user_code
    def update(self, state: Run) -> tuple[Run, dict[str, Array]]:
        """Make one rollout and one update from it.

        Returns:
          the state after it, and the update's metrics by the names that `metrics.jsonl` has, NaN where nothing was
          counted. A state that has made all its updates, or in which a number was not finite, stays as it is.
        Raises:
          ShoalError: the state is another trainer's.
        """
        return self._advance(stepwise.update, state)

    @reports_user_code
    def evaluate(self, state: Run) -> tuple[Run, dict[str, Array]]:
        """Play whole episodes by the current policy, which `state.best` has from there on if it is the best so far.

        Returns:
          the state, whose training goes on as without the evaluation; and its metrics, with the episodes where they are
          kept.
        Raises:
          ShoalError: the state is another trainer's.
        """
        return self._advance(stepwise.evaluate, state)

    # ---- parts for a loop of one's own

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm's functions, over batches."""
        return self.config.algorithm(spec_of(self.environment))

    @property
    def batch(self) -> Batch:
        """The environments side by side: `reset(key)` starts them, `step(state, actions, key)` makes a step of each."""
        return batch_of(self.environment, self._plan.settings)

    @reports_user_code
    def init(self, key: Array) -> Learner:
        """Make a new learner: that of `start(key)`, where no random steps warm it up."""
        return self.algorithm.init(stream_key(_required(key), Stream.INIT, 0), self.run.num_envs)

    @reports_user_code
    def act(
        self, policy: PyTree, memory: PyTree, timestep: TimeStep, key: Array, *, greedy: bool = False
    ) -> tuple[PyTree, PyTree, PyTree]:
        """Choose the actions of a batch.

        Args:
          policy: of `trainer.policy`, or its parameters.
          memory: of the call before, and at first `trainer.algorithm.memory((N,))`; cleared where an episode begins.
          timestep: of N environments.
          greedy: whether the policy takes its mode.
        Returns:
          memory, actions, and what the algorithm's update wants to know of the step again.
        """
        parameters = policy.parameters if isinstance(policy, TrainedPolicy) else policy
        timestep = for_actor(timestep, spec_of(self.environment))
        return self.algorithm.act(parameters, memory, timestep, _required(key), greedy=greedy)

    @property
    def compiler_options(self) -> dict[str, Any]:
        """The compiler's options of a run, for a caller's own `jax.jit`: others may round otherwise."""
        return compiler_options(is_cpu())

    def policy(self, learner: Learner | Run, index: int | tuple[int, ...] | None = None) -> TrainedPolicy:
        """Return the policy of a learner after the last update, or of a state, as one that `shoal.load` returns.

        Args:
          index: of one learner among those of a mapped training; a tuple where it was mapped several times.
        Raises:
          ShoalError: the learners are several and there is no index of one, or it is none of theirs.
        """
        one = self._shapes if isinstance(learner, Run) else jax.eval_shape(self.init, jax.random.key(0))
        leaf, expected = jax.tree.leaves(learner)[0], jax.tree.leaves(one)[0]
        mapped = leaf.shape[: leaf.ndim - expected.ndim]
        place = () if index is None else index if isinstance(index, tuple) else (index,)
        if len(place) != len(mapped) or not all(k in range(n) for k, n in zip(place, mapped, strict=True)):
            first = 0 if len(mapped) == 1 else (0,) * len(mapped)
            what = f"is of a mapped training, [{', '.join(map(str, mapped))}]" if mapped else "is one"
            remedy = f"policy(learner, index={first}) takes the first" if mapped else "leave index out"
            raise ShoalError(f"the learner {what}, and index={index!r} is the place of none in it; {remedy}.")
        learner = jax.tree.map(lambda x: x[tuple(map(int, place))], learner)
        if isinstance(learner, Run):
            return TrainedPolicy(learner.config, policy_of(learner), learner.environment)
        total = jnp.int32(self.run.total_updates)
        clock = Clock(total, jnp.float32(self.run.total_updates * self.run.steps_per_update), jnp.ones(()))
        return TrainedPolicy(self.config, self.algorithm.policy(learner, clock), self.environment)

    # ---- steps of these

    @functools.cached_property
    def _plan(self) -> Plan:
        program_settings = compiled_trainer.program_settings(self.run, 1, "return_mean", None)
        further = self.evaluation_points, self.run.keep_episodes, self.on_evaluation
        return Plan(program_settings, self.run.total_updates, *further)

    @functools.cached_property
    def _constant(self) -> tuple[Environment, Any, Any]:
        """What no update changes; of NumPy, since it may be made within a trace and outlive it."""
        return self.environment, self.config, np.int32(self.run.total_updates)

    @functools.cached_property
    def _shapes(self) -> Run:
        """The shapes of a state."""
        member = jax.random.key(0), *self._constant
        return jax.eval_shape(lambda: start_training(member, self._plan.settings))

    def _with_constants(self, run: Run) -> Run:
        return dataclasses.replace(run, **dict(zip(CONSTANT, self._constant, strict=True)))

    def _advance(self, function: Callable, state: Run) -> tuple[Run, dict[str, Array]]:
        """Call a function of a state, whose constant parts stay the same arrays."""
        # A state with the trainer's own arrays is the trainer's, and nothing of it has to be read.
        if not all(getattr(state, name, None) is x for name, x in zip(CONSTANT, self._constant, strict=True)):
            stepwise.require_state(state, self._with_constants(self._shapes))
        run, numbers = self._call(function, state)
        return dataclasses.replace(run, **{name: getattr(state, name) for name in CONSTANT}), numbers

    def _call(self, function: Callable, data: Any) -> Any:
        is_traced = struct.is_traced(*jax.tree.leaves(data))  # then the caller compiles
        result = _compiled(function, is_cpu() and not is_traced)(data, self._plan)
        # So that what fails in a callback fails here.
        return result if self.on_evaluation is None or is_traced else jax.block_until_ready(result)


def _required(key: Array) -> Array:
    """Return a typed random key.

    Raises:
      ShoalError: it is none.
    """
    if key is None:
        raise ShoalError("key=None is not a random key; give one such as jax.random.key(3).")
    return cast(Array, as_key(key))


def _start(data: tuple[Array, Environment, Any, Array, Any], plan: Plan) -> Run:
    key, environment, config, total_updates, given = data
    run = start_training((key, *materialise((environment, config, total_updates))), plan.settings)
    return stepwise.without_constants(stepwise.begin_from(run, given))


def _train(data: tuple[Array, Environment, Any, Array], plan: Plan) -> tuple[Learner, dict[str, Any]]:
    key, *constant = data
    # Numbers that the caller's program has as constants stay data here, since divisions by a constant round otherwise.
    run, points = start_training((key, *materialise(tuple(constant))), plan.settings), plan.points

    def evaluation_of(run: Run) -> dict[str, Array]:
        return evaluate(run, keep_episodes=plan.keep_episodes)[1]

    nothing = jax.tree.map(jnp.zeros_like, jax.eval_shape(evaluation_of, run)) if points else {}
    # A row for each evaluation, and one that the other updates write to.
    table = jax.tree.map(lambda x: jnp.zeros((len(points) + 1, *x.shape), x.dtype), nothing)

    def step(carry: tuple[Run, dict[str, Array]], todo: tuple[Array, Array, Array]) -> Any:
        (run, table), (count, is_evaluated, row) = carry, todo
        run, sums = train(run, count)
        if points:
            # Of the metrics alone: a run that went through the conditional would be copied in each update, rings too.
            evaluation = jax.lax.cond(is_evaluated, lambda: evaluation_of(run), lambda: nothing)
            stepwise.report(run, evaluation, is_evaluated, plan)
            table = jax.tree.map(lambda rows, x: rows.at[row].set(x), table, evaluation)
        return (run, table), {name: mean.value for name, mean in sums.items()}

    # The first step makes no update: it is for the evaluation before training.
    updates = np.arange(plan.num_updates + 1)
    is_point = np.isin(updates, points)
    rows = np.where(is_point, np.cumsum(is_point) - 1, len(points))
    todo = jnp.asarray(np.minimum(updates, 1)), jnp.asarray(is_point), jnp.asarray(rows)
    (run, table), metrics = jax.lax.scan(step, (run, table), todo)
    metrics = jax.tree.map(lambda x: x[1:], metrics)
    if points:
        evaluations = {name: x[: len(points)] for name, x in table.items()}
        metrics["evaluations"] = evaluations | {"updates": jnp.asarray(np.array(points, np.int32))}
    return run.learner, metrics


@functools.cache
def _compiled(function: Callable, for_cpu: bool) -> Callable[..., Any]:
    return jax.jit(function, static_argnums=1, compiler_options=compiler_options(for_cpu) or None)


@reports_user_code
def make_train(
    environment: str | Environment,
    config: Any = None,
    *,
    num_evals: int = 0,
    preset: bool = True,
    environment_parameters: Mapping[str, Any] | None = None,
    on_evaluation: Callable[[Evaluation], object] | None = None,
    **settings_by_name: Any,
) -> PureTraining:
    """Make a pure function that trains one seed: `learner, metrics = make_train(environment)(key)`.

    Step by step: `state = trainer.start(key)`, `state, record = trainer.update(state)`, `trainer.evaluate(state)`.

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
      preset: whether the environment's tuned settings are used.
      environment_parameters: of an environment given by name.
      on_evaluation: called on the host with each evaluation (`Evaluation`) of each member; its error ends the training.
      **settings_by_name: those of the algorithm, `num_envs`, `num_steps`, `total_steps` or `num_updates`, `reset`,
        `reset_pool`, `keep_episodes`, `eval_episodes`, `eval_mode`, `eval_max_steps`, `eval_seed`, `eval_consecutive`.
    Raises:
      ShoalError: a setting that cannot work, in one sentence, before anything is traced.
    """
    _check_effects(settings_by_name)
    catalogue.check_algorithm("" if config is None else config, "config")
    if on_evaluation is not None and not callable(on_evaluation):
        raise ShoalError(f"on_evaluation={on_evaluation!r:.80} is not a function of an Evaluation.")
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
    asked = experiment.config  # both are kept, as a run keeps them
    experiment = dataclasses.replace(experiment, config=resolve(asked), unresolved_config=asked)
    experiment.validate()
    team.team_return_of(experiment.environment)
    numbers = struct.as_arrays((experiment.environment, experiment.config))
    points = tuple(experiment.run.evaluation_points()) if num_evals else ()
    trainer = PureTraining(*numbers, experiment.run, points, experiment, on_evaluation)
    if not catalogue.is_builtin(experiment.algorithm):
        # Traced once, so that a mistake in a user's algorithm is found here, and not where the training is compiled.
        jax.eval_shape(trainer.start, jax.random.key(0))
    return trainer


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
