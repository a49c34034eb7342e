"""Trained policies from a run's directory, and the environments that they act in."""

import contextlib
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.base.user_errors import reports_user_code
from shoal.config import arguments, struct
from shoal.engine.nonfinite import failed_members
from shoal.envs.checking.check_contract import require_contract
from shoal.envs.given import environment_of
from shoal.records import members
from shoal.records.checkpoint_record import Choice, choose_checkpoint
from shoal.records.checkpoints import Checkpoints
from shoal.records.directory import PROGRESS, SUMMARY, RunDirectory
from shoal.records.json_files import report_wrong_types
from shoal.records.members import Members, from_metadata
from shoal.records.search_files import resolve_run
from shoal.runs.plan.decide import decide
from shoal.runs.plan.experiment import Experiment, resolve
from shoal.runs.policies import policy_files
from shoal.runs.policies.trained_policy import TrainedPolicy
from shoal.types import AlgorithmConfig, Clock, Environment, Learner, Policy, spec_of


@reports_user_code
def load(
    run: str | Path,
    which: str = "best",
    *,
    seed: int | None = None,
    label: str | None = None,
    environment: Environment | None = None,
    checkpoint: int | str | Choice | None = None,
    parts: Sequence[str] = (),
) -> TrainedPolicy:
    """Load a policy from a run directory.

    Args:
      run: the directory, or that of a sweep, whose best setting is taken.
      which: "best" (by evaluation score) or "last"; of a run that has not finished, at its newest sound checkpoint.
      seed: the seed whose policy is loaded; None uses the seed with the highest finite best score of those that were
        trained to the end.
      label: of the members among which it is chosen, in a run whose members differ in more than their seeds; None
        chooses among all.
      environment: that the run was trained in, where it cannot be made by a name (a wrapper of your own).
      checkpoint: instead of `which`, the checkpoint whose current policy is loaded: its environment steps, "best" or
        "last", or a function that is given the records of all checkpoints by steps and returns the steps of one; a
        record has `evaluation`, the metrics of the evaluation there was, a number per seed each, and their `iqm`.
      parts: the parts of the policy's parameters that are loaded, such as ("actor",); the others are those of a new
        policy. Empty loads all.
    Raises:
      ShoalError: there is no such run, policy, checkpoint, part or seed, it is damaged, or no seed is given and no
        score of one that was trained to the end is finite.
    """
    stored, place = find(run, which, seed=seed, label=label, environment=environment, checkpoint=checkpoint)
    return load_policy(stored, place, parts)


def find(
    run: str | Path,
    which: str = "best",
    *,
    seed: int | None = None,
    label: str | None = None,
    environment: Environment | None = None,
    checkpoint: int | str | Choice | None = None,
) -> tuple["StoredPolicies", int]:
    """Read the policies of a run, and return them with the place of the member that the arguments of `load` mean.

    Raises:
      ShoalError: as `load`.
    """
    label = None if label is None else arguments.text("label", label)
    run, label = resolve_run(arguments.path("run", run), label)
    directory = RunDirectory.open(run)
    which, seed = check_which(which), None if seed is None else arguments.seed("seed", seed)
    if environment is not None:  # a name too, to which `decide` would give the run's own parameters
        environment = environment_of(environment, {})
    experiment = decide(environment, config_file=directory.path, overrides={})
    stored = read_policies(directory, which, checkpoint, experiment)
    return stored, chosen_member(stored, seed, label)


class StoredPolicies(NamedTuple):
    """The policies of all members as they were saved."""

    directory: RunDirectory
    experiment: Experiment  # the run's settings
    leaves: Mapping[str, Any]  # by name, each with a leading member axis
    members: Members
    scores: Sequence[float | None]  # the score of each member; empty where they are unknown
    failed: Sequence[int]  # the places of members that were not trained to the end
    checkpoint: int | None  # its steps; None for the best or the last policies of a finished run
    which: str = ""  # "best" or "last"; empty for the current policies of a checkpoint that was named
    prefix: str = policy_files.POLICY  # the leaves' prefix: policies, or learners with policies

    @property
    def title(self) -> str:
        """The name of the policies, such as "best (checkpoint 384)"."""
        steps = "" if self.checkpoint is None else f"checkpoint {self.checkpoint:,}"
        return f"{self.which} ({steps})" if self.which and steps else self.which or steps

    def failed_of(self, policies: Collection[int | str]) -> list[int | str]:
        """Return those of some policies, by the keys of their members, that were not trained to the end."""
        return [key for k in self.failed if (key := self.members[k].key) in policies]


def read_policies(
    directory: RunDirectory,
    which: str,
    checkpoint: int | str | Choice | None,
    experiment: Experiment,
) -> StoredPolicies:
    """Read the policies of all members, "best" or "last", or those of a checkpoint.

    Of a run that has not finished, or was made longer since, they are those of its newest sound checkpoint; a line says
    so.

    Raises:
      ShoalError: there is no such policy or checkpoint, or it is damaged.
    """
    checkpoints, run = Checkpoints(directory.path), (directory, experiment)
    named = None if checkpoint is None or checkpoint == "" else choose_checkpoint(checkpoints, checkpoint)
    steps = checkpoint_instead(directory, which) if named is None else named
    if steps is None:
        leaves, metadata = directory.load_policy(which)
        with report_wrong_types(str(directory.path / which)):
            failed = np.flatnonzero(metadata.get("failed", ())).tolist()
            return StoredPolicies(*run, leaves, from_metadata(metadata), (), failed, None, which)
    leaves, record = checkpoints.load(steps, without=_replay_names(experiment))
    failed = failed_members(leaves["fault"])
    if named is not None:
        scores = (record["evaluation"] or {}).get("score", ())
        return StoredPolicies(
            *run, leaves, experiment.members, scores, failed, steps, prefix=policy_files.LEARNER
        )
    scores, prefix = leaves["best/score"].tolist(), policy_files.LEARNER
    if which == "best":
        leaves, prefix = policy_files.best_leaves(leaves), policy_files.POLICY
    return StoredPolicies(*run, leaves, experiment.members, scores, failed, steps, which, prefix)


def read_last(path: str | Path, from_step: str = "") -> Mapping[str, Any]:
    """Read what all members of a run had learned at its end, or at a checkpoint; of a run in progress at its newest.

    Raises:
      ShoalError: there is no such run or checkpoint, or it is damaged.
    """
    directory = RunDirectory.open(arguments.path("from", path))
    if (chosen := from_step or checkpoint_instead(directory, "last")) is None:
        return directory.load_policy("last")[0]
    checkpoints = Checkpoints(directory.path)
    steps = choose_checkpoint(checkpoints, chosen, "from_step")
    return policy_files.learner_leaves(checkpoints.load(steps, without=(policy_files.LOCAL,))[0])


def checkpoint_instead(directory: RunDirectory, which: str) -> int | None:
    """Return the newest sound checkpoint of a run that has not finished, and say that it is used; else None."""
    has_finished = directory.policy_path(which).is_file() or (directory.path / SUMMARY).is_file()
    is_longer = (directory.path / PROGRESS).is_file()  # next to the files of its earlier end
    if has_finished and not is_longer:
        return None
    steps = Checkpoints(directory.path).newest_sound()
    if steps is not None:
        signals.say(
            f"run {str(directory.path)!r} has not finished; its {which} policies so far are those of its checkpoint at "
            f"{steps:,} environment steps"
        )
    return steps


def chosen_member(stored: StoredPolicies, seed: int | None, label: str | None) -> int:
    """Return the place of the member of a seed and a label; where these leave several, that of the best score.

    Raises:
      ShoalError: there is none, or no score is finite.
    """
    places = members.chosen(stored.members, seed, label)
    # A member that failed is loaded where its seed is asked for, and is never the best one.
    if len(places) == 1 and (seed is not None or places[0] not in stored.failed):
        return places[0]
    if stored.checkpoint is None:
        missing = f"no score of the run {str(stored.directory.path)!r} was ever finite"
        stored = stored._replace(scores=policy_files.best_scores(stored.directory))
    elif stored.which:
        missing = f"no score up to the checkpoint at {stored.checkpoint} was finite"
    else:
        missing = (
            f"the checkpoint at {stored.checkpoint} was not written at an evaluation with a finite score"
        )
    with report_wrong_types(str(stored.directory.path / stored.which)):
        return policy_files.with_best_score(places, stored.members, stored.scores, stored.failed, missing)


def load_policy(stored: StoredPolicies, member: int, parts: Sequence[str] = ()) -> TrainedPolicy:
    """Load the policy of the member at a place; see `load`. No replay is made."""
    experiment = stored.experiment
    own = experiment.solo_of(stored.members[member].label)
    spec, config = spec_of(own.environment), struct.as_arrays(resolve(own.config))

    def init(config: AlgorithmConfig) -> Learner:
        return config.algorithm(spec).init(jax.random.key(0), experiment.run.num_envs)

    def policy(config: AlgorithmConfig, learner: Learner) -> Policy:
        return config.algorithm(spec).policy(learner, Clock.zero())

    learner = jax.eval_shape(init, config)
    if stored.prefix == policy_files.POLICY:
        template = jax.eval_shape(policy, config, learner)
        parameters = policy_files.restore(template, stored.leaves, policy_files.POLICY, member)
    else:
        has_replay = bool(_replay_names(experiment))
        learner = learner._replace(local=()) if has_replay else learner

        # Compiled, so that of a replay only what the policy reads is made, which is nothing.
        def saved_policy(config: AlgorithmConfig, saved: Learner) -> Policy:
            return policy(config, saved._replace(local=init(config).local) if has_replay else saved)

        saved = policy_files.restore(learner, stored.leaves, policy_files.LEARNER, member)
        parameters = jax.jit(saved_policy)(config, saved)
    if parts:
        new = jax.jit(lambda config: policy(config, init(config)))(config)
        parameters = _take_parts(parameters, new, parts)
    has_masks = stored.directory.load_config().get("has_masks")  # not in files from before it was recorded
    return TrainedPolicy(config, parameters, own.environment, has_masks)


def _replay_names(experiment: Experiment) -> tuple[str, ...]:
    """Return the prefix of the names of a replay in a checkpoint, of which no policy reads anything; () for none."""
    own = experiment.solo[0]
    algorithm = struct.as_arrays(resolve(own.config)).algorithm(spec_of(own.environment))
    return (policy_files.LOCAL,) if algorithm.without_replay else ()


def _take_parts(saved: Policy, new: Policy, parts: Sequence[str]) -> Policy:
    """Replace some parts of new parameters by saved ones."""
    leaves, names = struct.named_leaves(saved), [parts] if isinstance(parts, str) else list(parts)
    known = sorted({name.split("/", 1)[0] for name in leaves})
    for part in names:
        if part not in known:
            raise ShoalError(
                f"parts: there is no {part!r} in the policy's parameters; there are {', '.join(known)}."
            )
    taken = {name: x for name, x in leaves.items() if name.split("/", 1)[0] in names}
    return struct.with_named_leaves(new, struct.named_leaves(new) | taken)


def training_experiment(directory: RunDirectory, parameters: Mapping[str, Any]) -> Experiment:
    """Return a run's settings, with other parameters if its environment can no longer be made."""
    with contextlib.suppress(ShoalError):
        return decide(None, config_file=directory.path, overrides={})
    return decide(None, environment_parameters=parameters, config_file=directory.path, overrides={})


def load_policies(
    stored: StoredPolicies, seed: int | None = None, label: str | None = None, memory_lasts: str | None = None
) -> dict[int | str, TrainedPolicy]:
    """Load the policies of a run by the keys of their members, or those of one seed, of one label, or of both."""
    places = members.chosen(stored.members, seed, label)
    policies = {stored.members[k].key: load_policy(stored, k) for k in places}
    if memory_lasts is None:
        return policies
    return {k: policy.with_memory_lasts(memory_lasts) for k, policy in policies.items()}


def policy_of(policy: TrainedPolicy | str | Path) -> TrainedPolicy:
    """Return a policy, loaded if a run directory is given, or what `train` or `sweep` returned.

    Raises:
      ShoalError: as `load`, or it is none of these.
    """
    if isinstance(policy, TrainedPolicy):
        return policy
    if callable(getattr(policy, "policy", None)):  # it loads the policy with its own environment
        return policy.policy()  # type: ignore[union-attr]
    return load(arguments.path("policy", policy))


def environment_for(
    policy: TrainedPolicy | None, environment: str | Environment | None, parameters: Mapping[str, Any]
) -> Environment:
    """Return the environment that a policy will act in, its own if none is named, or that of no policy.

    Raises:
      ShoalError: as `environment_of`, there is none, or its spaces or its number of agents are not the policy's. Agents
        that all have the same parameters, and are not shown their number, may be more or fewer.
    """
    name = environment if isinstance(environment, str) else ""
    if environment is None:
        if policy is None:
            raise ShoalError("no environment was named; give one such as CartPole-v1, or a policy.")
        environment = policy.environment
    environment = environment_of(environment, parameters)
    require_contract(environment, name)
    spec = spec_of(environment)
    if policy is not None and spec != policy.spec and not policy.acts_in(spec):
        different = [name for name in spec._fields if getattr(spec, name) != getattr(policy.spec, name)]
        here, there = (
            ", ".join(f"{name}={getattr(x, name)}" for name in different) for x in (spec, policy.spec)
        )
        raise ShoalError(f"the environment has {here}, and the policy was trained in one that has {there}.")
    return environment


def check_which(which: str) -> str:
    """Require that `which` names a saved policy."""
    return arguments.one_of("which", which, ("best", "last"))
