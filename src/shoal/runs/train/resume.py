"""Resumption of a run: the request, the settings that may change, and the checkpoint that it resumes from."""

import dataclasses
import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.config import settings, struct
from shoal.engine.nonfinite import failed_members
from shoal.engine.run import Run
from shoal.records import checkpoint_record
from shoal.records.checkpoints import Checkpoints, Info, MisfitError
from shoal.records.directory import CONFIG, POLICIES, SUMMARY, RunDirectory, parameters_sha256
from shoal.records.history import History
from shoal.records.json_files import report_wrong_types, write_json, write_text
from shoal.records.metrics_file import METRICS, Mark, find_damage
from shoal.records.run_config import RunConfig
from shoal.runs.plan.experiment import Experiment
from shoal.runs.train.checkpointing import replay_of, restored, saved_leaves
from shoal.types import AlgorithmConfig

# What a population has besides the settings of a run, and how a sentence says that it differs.
POPULATION = {
    "variants": "it has other members",
    "eval_env": "it is evaluated in another environment",
    "halving": "it stops other members early",
    "evolution": "other settings change in it, or they change otherwise,",
}


def holds_run(path: str | Path) -> bool:
    """Report whether a directory holds a run, finished or not."""
    return bool(path) and (Path(path).expanduser() / CONFIG).is_file()


def config_json(experiment: Experiment, asked: Experiment) -> dict[str, Any]:
    """Return the content of `config.json`: the resolved settings, and the requested ones where these differ.

    Args:
      experiment: whose settings are all resolved for the machine.
      asked: the same before that.
    """
    resolved, before = experiment.as_json(), asked.as_json()
    requested = {
        part: {name: x for name, x in before[part].items() if x != resolved[part].get(name)}
        for part in ("algorithm", "run")
    }
    further = {"settings": experiment.differences, "preset": experiment.defaults.preset}
    return resolved | further | {"asked": requested, "history": []}


def check_same(path: Path, saved: Mapping[str, Any], asked: Experiment) -> None:
    """Require that a command asks for the run that a directory holds.

    Raises:
      ShoalError: it asks for another one; the sentence names the first setting that differs.
    """
    now = asked.as_json()
    _check_complete(path, saved, now)
    # Settings that describe a run to people may differ from those of the command before.
    repeated = {"run_dir", *settings.names_where(asked.run, lambda setting: setting.field.use.describes)}
    differences = []
    for part in ("environment", "algorithm", "run"):
        before, after = {**saved[part], **saved.get("asked", {}).get(part, {})}, now[part]
        differences += [
            f"{name}={before.get(name)!r} there, and {after.get(name)!r} was asked for"
            for name in {**before, **after}
            if name not in repeated and before.get(name) != after.get(name)
        ]
    differences += [
        f"{what} than was asked for" for name, what in POPULATION.items() if saved.get(name) != now.get(name)
    ]
    if differences:
        raise ShoalError(
            f"run directory {str(path)!r} holds another run: {differences[0]}; name a new directory, or continue with "
            "`shoal resume`."
        )


def _check_complete(path: Path, saved: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Require that a run was written with all settings that this version has.

    Raises:
      ShoalError: it lacks one; the sentence names the first.
    """
    lacking = [name for part in ("algorithm", "run") for name in now[part] if name not in saved[part]]
    lacking += ["schema"] if "schema" not in saved else []
    if lacking:
        raise ShoalError(
            f"run {str(path)!r} was made by an earlier version of Shoal, without {lacking[0]}; use the version that "
            "made it, or start a new run from its parameters with --from."
        )


def is_finished(directory: RunDirectory, run: RunConfig) -> bool:
    """Report whether a run has reached its end, and its policies and its summary were written."""
    files = [directory.path / SUMMARY, *map(directory.policy_path, POLICIES)]
    if not all(file.is_file() for file in files):
        return False
    with report_wrong_types(str(directory.path / SUMMARY)):
        made = int(directory.load_summary()["steps_per_seed"])
    return made == run.total_updates * run.steps_per_update or bool(stopped(directory))


def stopped(directory: RunDirectory) -> str:
    """Return the reason of a listener for which a run ended before its budget was spent; "" where it did not.

    It holds until the run was resumed, which a checkpoint of more steps shows.
    """
    if not (directory.path / SUMMARY).is_file():
        return ""
    summary = directory.load_summary()
    made = max(Checkpoints(directory.path).steps(), default=0)
    return summary.get("stopped", "") if made <= summary["steps_per_seed"] else ""


def check_unfinished(directory: RunDirectory, run: RunConfig, overrides: Mapping[str, Any]) -> None:
    """Require that a run has not reached its end, or was stopped before and is given another budget."""
    reason = stopped(directory)
    if is_finished(directory, run) and not (reason and {"total_steps", "num_updates"} & overrides.keys()):
        steps = directory.load_summary()["steps_per_seed"]
        raise ShoalError(
            f"run {str(directory.path)!r} is finished, with {steps:,} environment steps"
            f"{reason and f' (stopped by {reason})'}; give more total_steps to continue it (--total-steps)."
        )


def check_budget(directory: RunDirectory, run: RunConfig, made: int, *, is_new: bool = False) -> None:
    """Require that the budget of a run is not less than the environment steps that are made.

    Args:
      directory: of the run that made them.
      is_new: whether another run starts from its checkpoint there, which must have an update to make.
    Raises:
      ShoalError: it is.
    """
    total, path = run.total_updates * run.steps_per_update, str(directory.path)
    if total < made or (is_new and total == made):
        what = f"is less than the {made:,} environment steps that each seed of run {path!r} has made"
        if is_new:
            what = (
                f"leaves nothing to train after the checkpoint at {made:,} environment steps of run {path!r}"
            )
        raise ShoalError(f"total_steps={run.total_steps} {what}; give more than {made}.")


def check_refill(run: RunConfig, config: AlgorithmConfig, steps: int) -> None:
    """Require that a run which resumes without its replay learns: that a gradient step follows the refill.

    A run that has learned before may come to its end without one, which is said on standard error, with --quiet too.

    Args:
      steps: of the checkpoint, which are made; the replay is empty after them.
    Raises:
      ShoalError: the rest of the budget holds none, and none was made before.
    """
    values = settings.flat(config)
    if not {"learning_starts", "train_frequency"} <= values.keys():
        return
    starts, every, rollout = values["learning_starts"], values["train_frequency"], run.steps_per_update
    # The first step of the update that may learn, and the first from there that calls for a gradient step.
    refilled = steps + max(-(-starts // rollout) - 1, 0) * rollout
    due = max(-(-refilled // every), starts // every + 1) * every
    if due >= run.total_updates * rollout > steps:
        sentence = (
            f"learning_starts={starts} leaves no gradient step in what is left of total_steps={run.total_steps}, since "
            f"the checkpoint at {steps:,} environment steps is without its replay, which the run refills first; "
            f"total_steps={(due // rollout + 1) * rollout} leaves one."
        )
        if (steps - 1) // every <= starts // every:  # no gradient step was made before
            raise ShoalError(sentence)
        signals.say(sentence)


def changes(directory: RunDirectory, saved: Mapping[str, Any], experiment: Experiment) -> dict[str, list]:
    """Return the settings that a resumed run changes, by name, as [old, new].

    Raises:
      ShoalError: one of them cannot change; the sentence names it.
    """
    now, changeable = experiment.as_json(), _names_on_resume(experiment, "may change")
    ignored = _names_on_resume(experiment, "ignored")
    _check_complete(directory.path, saved, now)
    changed = {}
    for part in ("algorithm", "run"):
        for name, new in now[part].items():
            old = saved[part][name]
            if old == new or name in ignored:
                continue
            if name not in changeable:
                raise ShoalError(
                    f"{name}={new!r} cannot be changed in a resumed run (it has {old!r}); start a new run "
                    f"from its parameters with --from {shlex.quote(str(directory.path))}."
                )
            changed[name] = [old, new]
    return changed


def identity_of(experiment: Experiment, now: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings by which a checkpoint is known to be one of this run: all that cannot change.

    `now` is the content of its `config.json`.

    The numbers of the environment (such as its rulesets, which may come from a file) are in no checkpoint, since they
    never change; their checksum is.
    """
    leaves = struct.named_leaves(struct.as_arrays(experiment.environment))
    left_out = _names_on_resume(experiment, "may change", "ignored")
    # By label, so that a sentence can name the one that differs.
    variants = {x["label"]: x["settings"] for x in now.get("variants", ())}
    population = {name: now.get(name, {}) for name in POPULATION} | {"variants": variants}
    return {
        "environment": now["environment"] | {"sha256": parameters_sha256(jax.device_get(leaves))},
        **{
            part: {name: x for name, x in now[part].items() if name not in left_out}
            for part in ("algorithm", "run")
        },
        **{name: x for name, x in population.items() if x},
    }


def _names_on_resume(experiment: Experiment, *answers: str) -> set[str]:
    """Return the names of the settings that a resumed run may change, or whose values it ignores."""
    parts = (experiment.run, experiment.config)
    return {name for part in parts for name in settings.names_where(part, lambda x: x.on_resume in answers)}


def as_of(saved: Mapping[str, Any], steps: int) -> dict[str, Any]:
    """Return a run's `config.json` with the settings with which the run continued from a checkpoint."""
    history = saved.get("history", [])
    config = {**saved, "history": [entry for entry in history if entry["step"] <= steps]}
    for entry in reversed(history[len(config["history"]) :]):
        for name, (old, _) in entry["changes"].items():
            part = "run" if name in config["run"] else "algorithm"
            config[part] = {**config[part], name: old}
    return config


def save_changes(
    directory: RunDirectory, experiment: Experiment, changes: Mapping[str, list], steps: int
) -> None:
    """Write the settings of a resumed run into its `config.json`, and their changes into the history there."""
    saved = directory.load_config()
    history = [*saved.get("history", []), {"step": steps, "changes": dict(changes)}]
    kept = {name: saved[name] for name in ("asked", "has_masks", "preset") if name in saved}
    config = experiment.as_json() | kept | {"settings": experiment.differences, "history": history}
    write_json(directory.path / CONFIG, config, not_finite=str)


@dataclasses.dataclass
class Restoration:
    """The newest checkpoint of a run that is sound and fits, with damaged ones set aside; or a named one.

    Attributes:
      directory: of the run; nothing in it changes where a checkpoint is named.
      identity: see `identity_of`.
      note: receives a line about each checkpoint that cannot be used.
      named: the steps of the checkpoint that another run starts from; None takes the newest.
      steps: of the checkpoint that was chosen; -1 before.
      leaves: its arrays.
      record: its record.
      frozen: the members that are trained no further.
    """

    directory: RunDirectory
    identity: Mapping[str, Any]
    note: Callable[[str], None]
    named: int | None = None
    steps: int = -1
    leaves: dict[str, Any] = dataclasses.field(default_factory=dict)
    record: dict[str, Any] = dataclasses.field(default_factory=dict)
    frozen: list[int] = dataclasses.field(default_factory=list)
    _rows: bytes = b""  # of metrics.jsonl, up to the checkpoint's mark

    def choose(self, shapes: Run) -> None:
        """Load the newest checkpoint that is sound; damaged ones are set aside once the run is certain to resume.

        Raises:
          ShoalError: it does not fit this run, these shapes or this version; then nothing on the disk changes. Or there
            is none, so that training would lose what was trained before.
        """
        checkpoints = Checkpoints(self.directory.path)
        path = self.directory.path / METRICS
        content = path.read_bytes() if path.is_file() else b""
        found = list[Info]()  # those that cannot be used, the newest first
        for steps in reversed(checkpoints.steps()) if self.named is None else [self.named]:
            info = checkpoints.info(steps)
            if not info.problem:
                info = dataclasses.replace(info, problem=self._load(checkpoints, info, shapes, content))
            if not info.problem:
                self._set_aside(checkpoints, found)
                self._rows = content[: self.mark.bytes]
                return
            if info.is_newer:
                raise self._misfit(steps, info.problem)
            found.append(info)
        if self.named is not None:
            raise ShoalError(
                f"the checkpoint at {self.named} of run {str(self.directory.path)!r} cannot be used: "
                f"{found[0].problem}; name another one, which `shoal checkpoints "
                f"{shlex.quote(str(self.directory.path))}` lists."
            )
        self._set_aside(checkpoints, found)
        reasons = "; ".join(f"at {info.steps}, {info.problem}" for info in found)
        raise ShoalError(
            f"run directory {str(self.directory.path)!r} has no checkpoint that can be used ({reasons}); "
            "it is not started over, since that would lose what it has; name a new directory."
        )

    def _set_aside(self, checkpoints: Checkpoints, unusable: Sequence[Info]) -> None:
        """Say of each checkpoint why it cannot be used, and rename those that are damaged."""
        for info in unusable:
            aside = ""
            if info.is_damaged:
                aside = f"; it is now {checkpoints.set_aside(info.steps, info.problem).name}"
            self.note(f"the checkpoint at {info.steps} cannot be used: {info.problem}{aside}")

    def _load(self, checkpoints: Checkpoints, info: Info, shapes: Run, content: bytes) -> str:
        """Load a sound checkpoint; return why it cannot be used, or "".

        Raises:
          ShoalError: it does not fit.
        """
        saved = info.record.get("identity", {})
        if reason := first_difference(saved, self.identity):
            raise self._misfit(info.steps, reason)
        if reason := find_damage(content, checkpoint_record.mark_of(info.record)):
            return f"{METRICS} does not fit it: {reason}"
        try:
            left_out = replay_of(shapes) if info.record.get("without_replay") else ()
            expected = saved_leaves(shapes, left_out)
            self.leaves, self.record = checkpoints.load(info.steps, expected)
        except MisfitError as error:
            raise self._misfit(info.steps, error.difference) from error
        except ShoalError as error:
            return str(error).rstrip(".")
        self.steps = info.steps
        self.frozen = failed_members(self.leaves["fault"])
        return ""

    def _misfit(self, steps: int, difference: str) -> ShoalError:
        return ShoalError(
            f"run {str(self.directory.path)!r} cannot be resumed as it is: its checkpoint at {steps} is sound and does "
            f"not fit, since {difference}; nothing was changed, and with the settings, the code and the versions that "
            "wrote it the run can be resumed."
        )

    def place(self, population: Run) -> Run:
        """Put the leaves that were chosen into a population; they are given up here. A replay may not be among them."""
        # Else the host would hold them until the run ends.
        leaves, self.leaves = self.leaves, {}
        return restored(population, leaves)

    @property
    def mark(self) -> Mark:
        """The end of the rows of `metrics.jsonl` that the checkpoint counts."""
        return checkpoint_record.mark_of(self.record)

    @property
    def source(self) -> str:
        """The name of the state from which the run continues, for a message."""
        return "the checkpoint" + ("" if self.named is None else f" of run {str(self.directory.path)!r}")

    def begin(self, directory: RunDirectory) -> None:
        """Write the rows up to the checkpoint into the directory of a run that resumes another one."""
        if self.named is not None:
            write_text(directory.path / METRICS, self._rows.decode())

    @property
    def machine(self) -> Mapping[str, Any]:
        """The machine that the checkpoint was written on."""
        return self.record["machine"]

    def history(self) -> History:
        """Return the history of the run up to the checkpoint."""
        rows = [json.loads(line) for line in self._rows.splitlines()]
        return checkpoint_record.to_history(self.record, rows, self.frozen)


class Finished(NamedTuple):
    """A finished run in its process's memory, which it resumes from without checkpoints; as a `Restoration`.

    Attributes:
      steps: environment steps of each seed.
      population: the run.
      ended: the history of the run.
      mark: the end of the rows of `metrics.jsonl`.
    """

    steps: int
    population: Run
    ended: History
    mark: Mark

    @property
    def source(self) -> str:
        """The name of the state in memory from which the run continues, for a message."""
        return "memory"

    @property
    def machine(self) -> Mapping[str, Any] | None:
        """None: the run continues in the same process."""
        return None

    def begin(self, directory: RunDirectory) -> None:
        """Do nothing: the rows are in the file that is continued."""

    def choose(self, shapes: Run) -> None:
        """Do nothing; what may change leaves all shapes as they are."""

    def place(self, population: Run) -> Run:
        """Put copies of the leaves into a population."""
        return restored(population, saved_leaves(self.population))

    def history(self) -> History:
        """Return the history of the run, to be continued."""
        # Lists of its own, since the first result, which has the same history, must not change.
        ended = self.ended
        return dataclasses.replace(
            ended,
            evaluations=list(ended.evaluations),
            frozen=list(ended.frozen),
            exchanges=list(ended.exchanges),
            stopped="",
        )


def machine_differences(saved: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Name what differs between two machines, or ""; if any, a run does not continue bit for bit."""
    names = [name for name in {**saved, **now} if saved.get(name) != now.get(name)]
    return ", ".join(f"{name} ({saved.get(name)!r} then, {now.get(name)!r} now)" for name in names)


def first_difference(saved: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """Say in a clause how the identity of a checkpoint differs from another one (`identity_of`), or ""."""
    for part, names in expected.items():
        for name, value in names.items():
            found = saved.get(part, {}).get(name)
            if found != value:
                what = "the checksum of the environment's numbers" if name == "sha256" else name
                return f"{what} is {found!r}, and {value!r} here"
    return ""
