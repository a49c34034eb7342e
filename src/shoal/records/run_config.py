"""The settings of a run: seeds, budget, sizes, evaluation, devices."""

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, Literal

from shoal.base.errors import ShoalError
from shoal.config import arguments
from shoal.config.arguments import LARGEST_INDEX, LARGEST_SEED, short_repr
from shoal.config.fields import Use, parameter
from shoal.config.requirements import Needs
from shoal.config.settings import check_fields, names_where
from shoal.records import halving

_USED, _EVALUATION, _WRITING = "most used", "evaluation", "logging and checkpoints"  # groups of the help
_RESETS, _DEVICES = "resets and observations", "devices"
_POOL, _CHECKPOINTS = Needs("reset", ("pool",)), Needs("checkpoints", (True,))
_EVALUATED = Needs("eval_every", other_than=("never",), such_as=-1)
# Where and how a run is made, what it writes besides, and what it is: the experiment itself counts without them.
_WHERE = Use(on_resume="ignored", tells_apart=False, identifies=False)
_BESIDES = Use(on_resume="may change", tells_apart=False, identifies=False)
_KEPT = dataclasses.replace(_BESIDES, in_pure=True)
_TEXT = dataclasses.replace(_BESIDES, describes=True)
_SIZE, _JUDGEMENT = Use(in_sweep=True, in_pure=True), Use(in_pure=True)
_FUNCTION, _SEEDS = Use(imports=True), Use(tells_apart=False)

# Fixed limits of sizes that cost time on the host or do not fit their dtype; `memory_limits` has those of memory.

# Environment steps are written into metrics and summaries as floats, which are exact up to here.
MAX_STEPS = 2**53
MAX_POINTS = 100_000  # evaluations or log points: the host lists them, and the compiled loop stops at each


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """The settings of a run other than its environment and its algorithm."""

    seeds: int = parameter(10, low=1, high=LARGEST_SEED, group=_USED, use=_SEEDS)
    """Trains this many seeds together, in one compiled program."""
    seed: int = parameter(0, low=0, high=LARGEST_SEED, group=_USED, use=_SEEDS)
    """Sets the first seed; the others are the numbers after it."""
    total_steps: int = parameter(
        500_000,
        low=1,
        high=MAX_STEPS,
        group=_USED,
        use=dataclasses.replace(_BESIDES, in_sweep=True, in_pure=True),
    )
    """Trains each seed for this many environment steps, rounded down to whole updates."""
    num_updates: int | None = parameter(None, low=1, high=LARGEST_INDEX, group=_USED, use=_JUDGEMENT)
    """Trains each seed for this many updates, in place of total_steps."""
    num_envs: int = parameter(64, low=1, high=LARGEST_INDEX, group=_USED, use=_SIZE)
    """Steps this many environments together for each seed."""
    num_steps: int = parameter(128, low=1, high=LARGEST_INDEX, group=_USED, use=_SIZE)
    """Makes this many steps in each environment for an update."""
    name: str = parameter("", group=_USED, use=_WHERE)
    """Gives the run this name, in its directory's name, its result and its summary."""
    tag: tuple[str, ...] = parameter((), group=_WRITING, use=_TEXT)
    """Gives the run these tags, by which `shoal runs --tag` lists it."""
    note: str = parameter("", group=_WRITING, use=_TEXT)
    """Keeps this text with the run, which `shoal runs` shows."""
    run_dir: str = parameter("", group=_USED, use=_WHERE)
    """Writes the run to this directory; without it to a new directory under runs/."""
    reset: Literal["fresh", "pool", "optimistic", "first"] = parameter("fresh", group=_RESETS, use=_SIZE)
    """Starts each episode with a reset (fresh); or, where resets are expensive, draws it from a pool of starts (pool),
    or computes few starts in each step, which episodes share where more have ended (optimistic). first repeats each
    environment's first start, for comparisons with trainers that do.
    """
    reset_pool: int = parameter(128, low=1, high=LARGEST_INDEX, group=_RESETS, needs=_POOL, use=_SIZE)
    """Computes this many starts for the pool (reset pool)."""
    reset_refresh: int = parameter(1, low=0, high=LARGEST_INDEX, group=_RESETS, needs=_POOL)
    """Replaces this many of the pool's starts by new ones in each update; 0 replaces none (reset pool)."""
    reset_ratio: int = parameter(
        16, low=1, high=LARGEST_INDEX, group=_RESETS, needs=Needs("reset", ("optimistic",))
    )
    """Computes one start in each step for this many environments (reset optimistic)."""
    actor_only: tuple[str, ...] = parameter((), group=_RESETS)
    """Shows these entries of a dictionary of observations to the actor only, besides those that the environment names.
    """
    critic_only: tuple[str, ...] = parameter((), group=_RESETS)
    """Shows these entries of a dictionary of observations to the critic only, besides those that the environment names.
    """
    num_evals: int = parameter(
        20,
        low=0,
        high=MAX_POINTS,
        group=_EVALUATION,
        needs=Needs("eval_every", (-1,)),
        use=Use("may change", in_pure=True),
    )
    """Evaluates this many times during training, evenly spaced, in addition to the evaluation before it."""
    eval_every: int | Literal["never"] = parameter(
        -1, low=-1, high=MAX_STEPS, group=_EVALUATION, use=Use("may change")
    )
    """Evaluates every so many environment steps; 0 evaluates only before training and at its end, -1 as often as
    num_evals says. never evaluates no policy while training, and the last one counts as the best."""
    # The best policy plays ten times as many.
    eval_episodes: int = parameter(32, low=1, high=LARGEST_INDEX // 10, group=_EVALUATION, use=_JUDGEMENT)
    """Plays this many whole episodes in each evaluation."""
    absolute_episodes: int = parameter(-1, low=-1, high=LARGEST_INDEX, group=_EVALUATION)
    """Evaluates the best policy again at the end, on this many new episodes; -1 plays ten times eval_episodes, 0 skips
    this evaluation."""
    eval_seed: int = parameter(-1, low=-1, high=LARGEST_SEED, group=_EVALUATION, use=_JUDGEMENT)
    """Plays the same episodes in every evaluation while training, with all seeds: the start states and random numbers
    of this seed; with -1 each evaluation has its own."""
    eval_consecutive: int = parameter(1, low=1, high=LARGEST_INDEX, group=_EVALUATION, use=_JUDGEMENT)
    """Plays this many episodes of one task in a row, with the policy's memory kept, and counts them as one; reports the
    return of each by its place too."""
    eval_mode: Literal["greedy", "sampled", "both"] = parameter("greedy", group=_EVALUATION, use=_JUDGEMENT)
    """Evaluates with the policy's mode (greedy), with samples (sampled), or with both; then the greedy score counts."""
    eval_max_steps: int = parameter(10_000, low=1, high=LARGEST_INDEX, group=_EVALUATION, use=_JUDGEMENT)
    """Cuts an episode of an evaluation after this many steps, for environments that may never end."""
    score: str = parameter("return_mean", group=_EVALUATION, needs=_EVALUATED, use=_FUNCTION)
    """Chooses the best policy by this metric of an evaluation, or by module:function of all metrics."""
    eval_metrics: str = parameter("", group=_EVALUATION, use=_FUNCTION)
    """Adds the metrics that this module:function computes from the episodes of an evaluation."""
    keep_episodes: bool = parameter(False, group=_EVALUATION, needs=_EVALUATED, use=_KEPT)
    """Keeps the return and the length of each episode of the evaluations while training, in evaluations.npz."""
    log_every: int = parameter(
        0, low=0, high=MAX_STEPS, group=_WRITING, use=Use("may change", tells_apart=False)
    )
    """Writes metrics every so many environment steps; 0 writes them forty times per run, and at each evaluation."""
    checkpoint_seconds: float = parameter(
        60.0, above=0, group=_WRITING, needs=(_CHECKPOINTS, Needs("checkpoint_every", (-1,))), use=_BESIDES
    )
    """Writes a checkpoint, from which the run can be resumed, this many seconds after the last one."""
    checkpoint_every: int = parameter(
        -1, low=-1, high=MAX_STEPS, group=_WRITING, needs=_CHECKPOINTS, use=_BESIDES
    )
    """Writes a checkpoint every so many environment steps, and not by time; -1 writes them by time."""
    keep: int = parameter(3, low=1, high=LARGEST_INDEX, group=_WRITING, needs=_CHECKPOINTS, use=_BESIDES)
    """Keeps this many of the newest checkpoints, besides the first, the last, and the one of the best evaluation."""
    checkpoint_evals: bool = parameter(False, group=_WRITING, needs=_CHECKPOINTS, use=_BESIDES)
    """Writes a checkpoint at each evaluation too, and keeps them all."""
    checkpoint_replay: str = parameter("1GB", group=_WRITING, needs=_CHECKPOINTS, use=_BESIDES)
    """Writes the replay of all seeds into checkpoints up to this size, such as 500MB: a resumed run is then bit-equal.
    Above it, or with never, a resumed run refills it by its own policy first.
    """
    checkpoints: bool = parameter(True, group=_WRITING, use=_WHERE)
    """Writes checkpoints; without them a run cannot be resumed."""
    on_nan: Literal["stop", "freeze"] = parameter("stop", group=_WRITING, use=_BESIDES)
    """Ends the run when a number is not finite (stop), or continues without the seed that has it (freeze)."""
    on_disk_error: Literal["continue", "stop"] = parameter("continue", group=_WRITING, use=_BESIDES)
    """Continues when the disk fails, with a warning (continue), or ends the run (stop)."""
    devices: int = parameter(0, low=0, high=LARGEST_INDEX, group=_DEVICES, use=_WHERE)
    """Uses this many devices of the machine; 0 uses all."""
    env_groups: int = parameter(0, low=0, high=LARGEST_INDEX, group=_DEVICES, use=_SEEDS)
    """Splits the environments of a seed into this many groups, one per device; 0 makes one group per device for
    a single seed, else one group. The result depends on the number of groups (each group shuffles its own
    rows), not on the devices.
    """
    seed_batching: Literal["auto", "map", "vmap"] = parameter("auto", group=_DEVICES, use=_WHERE)
    """Trains the seeds of one device one after the other (map) or together (vmap); auto uses map on the CPU
    and vmap elsewhere.
    """

    @property
    def steps_per_update(self) -> int:
        """The environment steps of one rollout, of each seed."""
        return self.num_envs * self.num_steps

    @property
    def total_updates(self) -> int:
        """The number of whole updates that fit the budget."""
        return self.total_steps // self.steps_per_update

    def with_total_steps(self, *, is_given: bool) -> "RunConfig":
        """Return the settings with the budget as `total_steps` alone, where `num_updates` states it.

        Args:
          is_given: whether the caller gave `total_steps` too.
        Raises:
          ShoalError: then it is another budget; or a setting is of a wrong type or out of its bounds.
        """
        if self.num_updates is None:
            return self
        check_fields(self)
        if is_given and self.total_updates != self.num_updates:
            raise ShoalError(
                f"num_updates={self.num_updates} and total_steps={self.total_steps} are two budgets, since "
                f"{self.num_updates} updates of num_envs*num_steps={self.num_envs}*{self.num_steps} are "
                f"{self.num_updates * self.steps_per_update} environment steps; give one of them."
            )
        total_steps = self.num_updates * self.steps_per_update
        return dataclasses.replace(self, total_steps=total_steps, num_updates=None)

    @property
    def num_absolute_episodes(self) -> int:
        """The number of episodes on which the best policy is evaluated again; 0 for none."""
        return 10 * self.eval_episodes if self.absolute_episodes == -1 else self.absolute_episodes

    @property
    def max_replay_bytes(self) -> float:
        """The bytes up to which checkpoints hold the replay of all members."""
        return arguments.num_bytes("checkpoint_replay", self.checkpoint_replay)

    @property
    def is_evaluated(self) -> bool:
        """Whether policies are evaluated while training; else the last one counts as the best."""
        return self.eval_every != "never"

    def validate(self) -> None:
        """Raise ShoalError for the first setting that cannot work."""
        if isinstance(self.seeds, tuple | list):
            raise ShoalError(
                f"seeds={short_repr(self.seeds)} is not a whole number; it is the number of seeds, and `seed` is the "
                "first of them."
            )
        check_fields(self)
        if self.checkpoint_every == 0:
            raise ShoalError(
                "checkpoint_every=0 is not a number of environment steps; give -1 to write them by time."
            )
        if self.run_dir:
            arguments.path("run_dir", self.run_dir)
        arguments.num_bytes("checkpoint_replay", self.checkpoint_replay)
        if self.total_updates < 1:
            raise ShoalError(
                f"total_steps={self.total_steps} is less than one rollout, num_envs*num_steps="
                f"{self.num_envs}*{self.num_steps}={self.steps_per_update}; give at least that many."
            )
        groups = max(self.env_groups, 1)
        if self.num_envs % groups:
            raise ShoalError(
                f"env_groups={groups} does not divide num_envs={self.num_envs}; "
                f"{math.gcd(groups, self.num_envs)} does."
            )
        if self.seeds > (most := LARGEST_SEED - self.seed + 1):  # the next seed would be 0 once more
            raise ShoalError(f"seeds={self.seeds} is too large: it must be at most {most}.")
        # Of 32 bits, in which compiled programs number steps and updates, before anything computes with them.
        if self.steps_per_update > LARGEST_INDEX:
            raise ShoalError(
                f"num_envs*num_steps={self.num_envs}*{self.num_steps} is too large: the steps of a rollout are "
                f"numbered in 32 bits, so that there may be at most {LARGEST_INDEX}."
            )
        if self.total_updates > LARGEST_INDEX:
            raise ShoalError(
                f"total_steps={self.total_steps} is too large for rollouts of {self.steps_per_update} steps: updates "
                f"are counted in 32 bits, so that it must be at most {LARGEST_INDEX * self.steps_per_update}."
            )
        for name in ("eval_every", "log_every"):
            every = getattr(self, name)
            if every != "never" and every > 0 and self.total_updates // self.updates_in(every) > MAX_POINTS:
                smallest = -(-self.total_updates // MAX_POINTS) * self.steps_per_update
                raise ShoalError(
                    f"{name}={every} is too small for total_steps={self.total_steps}: there may be at most "
                    f"{MAX_POINTS} such points, which {name}={smallest} gives."
                )

    def updates_in(self, steps: int) -> int:
        """Return the number of whole updates nearest to a number of environment steps, at least one."""
        return halving.updates_in(steps, self.steps_per_update)

    def evaluation_points(self) -> list[int]:
        """List the numbers of updates after which the policy is evaluated: 0, evenly spaced ones, and the last."""
        total = self.total_updates
        if self.eval_every == "never":
            return []
        if self.eval_every > 0:
            every = self.updates_in(self.eval_every)
            points = set(range(0, total + 1, every))
        elif self.eval_every == 0:
            points = set()
        else:
            points = {round(total * k / self.num_evals) for k in range(1, self.num_evals + 1)}
        return sorted(points | {0, total})

    def log_points(self) -> list[int]:
        """List the numbers of updates after which metrics are written: as log_every says, and at each evaluation."""
        total = self.total_updates
        if self.log_every > 0:
            every = self.updates_in(self.log_every)
            points = set(range(every, total + 1, every))
        else:
            points = {round(total * k / 40) for k in range(1, 41)} - {0}
        return sorted((points | set(self.evaluation_points())) - {0})


def identifying(run: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings of a run, as `config.json` has them, that make it another experiment where they differ."""
    besides = names_where(RunConfig(), lambda setting: not setting.field.use.identifies)
    return {name: x for name, x in run.items() if name not in besides}


def names_environment(entry: Mapping[str, Any]) -> bool:
    """Report whether the entry `eval_env` of `config.json` is another environment, and not parameters of the same."""
    return {"name", "parameters"} <= entry.keys() <= {"name", "parameters", "gaps"}


def check_at_least(name: str, value: int, bound: int) -> None:
    """Require that `value` is at least `bound`."""
    if value < bound:
        raise ShoalError(f"{name}={value} is too small: it must be at least {bound}.")
