"""A study of Optuna over a search space: batches of trials are asked for and told.

The study holds everything: which settings a trial has, what its members reached, and the space and the settings that
all trials share, so that a process with another space is refused. Optuna's storage is a journal file or a database, so
that several processes work on one study.
"""

import contextlib
import dataclasses
import importlib
import json
import math
import os
import secrets
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from shoal.base import signals
from shoal.base.errors import ShoalError
from shoal.base.files import report_os_errors, write_whole_file
from shoal.base.imports import import_package
from shoal.config import arguments
from shoal.records.scores import rank_settings
from shoal.search.distributions import Choice, Int, Log, OneMinusLog, SettingDistribution, UniformRange
from shoal.search.ranking import MemberResult, Ranked, rank, score_of
from shoal.search.space import Point, Space, format_value, label_of
from shoal.search.sweep_directory import first_difference

OLDEST = "4.3"  # the first version that takes over the lock of a process that was killed
IDENTITY, MEMBERS, OWNER, PATH = "shoal", "members", "owner", "path"  # names of Optuna's user attributes
RECORD = b'{"op_code":'  # the beginning of each line of a journal


@dataclasses.dataclass(frozen=True)
class Study:
    """A study of Optuna; `open_study` makes it.

    Attributes:
      objective: the name of the score by which trials are compared.
      owner: a name of the directory, which tells its trials from those of other processes.
    """

    study: Any
    storage: Any
    space: Space
    objective: str
    owner: str = ""
    path: str = ""

    def owned_by(self, directory: Path) -> "Study":
        """Return the study as the process of a directory uses it.

        The directory has a name of its own among all processes of the study, on whichever hosts they are, in a file.
        """
        file = directory / OWNER
        if not file.exists():
            with write_whole_file(file, parents=False) as opened:
                opened.write(secrets.token_hex(8).encode())
        with report_os_errors(f"{file} cannot be read"):
            name = file.read_bytes().strip()
        if not name.isalnum():  # of ASCII alone, as bytes count
            raise ShoalError(f"{file} is damaged: it holds no name of a process of the study.")
        return dataclasses.replace(self, owner=name.decode(), path=str(directory.resolve()))

    @property
    def trials(self) -> list[Any]:
        """Optuna's trials of all processes, by number, but those that only wait in a queue."""
        return [trial for trial in self.study.get_trials(deepcopy=False) if trial.state.name != "WAITING"]

    @property
    def best(self) -> tuple[Any, float] | None:
        """Optuna's trial that is the best so far, and its score; None if no trial was trained to the end.

        The score differs from the value that Optuna was told if a seed failed and the search has found a worse score
        since.
        """
        trials = {str(trial.number): trial for trial in self.trials if trial.state.name == "COMPLETE"}
        scores = {number: self._scores(self._members_of(trial)) for number, trial in trials.items()}
        ranked = rank_settings(scores, self._scores(self.members()))
        return next(((trials[number], score.iqm) for number, score in ranked.items()), None)

    def _scores(self, members: Sequence[MemberResult]) -> list[float]:
        return [score_of(member, self.objective) for member in members]

    def ask(self, count: int) -> dict[int, Point]:
        """Propose trials by the multivariate TPE, each apart from those that run; they are then running.

        Returns:
          the settings to train, by the numbers of the trials.
        Source: Watanabe 2023, "Tree-structured Parzen estimator", arXiv 2304.11127; for the constant liar Ginsbourger
        et al. 2010, "Kriging is well-suited to parallelize optimization".
        """
        asked = {}
        with _quiet():
            for _ in range(count):
                trial = self.study.ask()
                trial.set_user_attr(OWNER, self.owner)
                trial.set_user_attr(PATH, self.path)
                asked[trial.number] = _suggest(trial, self.space)
        return asked

    def points(self, numbers: Sequence[int]) -> dict[int, Point]:
        """Return the settings of trials.

        Raises:
          ShoalError: the study has no such trial.
        """
        by_number = {trial.number: trial for trial in self.trials}
        for number in numbers:
            if number not in by_number:
                raise ShoalError(
                    f"trial {number} is not in the study {self.study.study_name!r}, which has {len(by_number)} trials; "
                    "give the storage and the study that it was started with."
                )
        return {number: _point_of(by_number[number].params, self.space) for number in numbers}

    def running(self) -> set[int]:
        """Return the numbers of the trials of this process that were asked for and have no result yet."""
        return {trial.number for trial in self._own_trials() if trial.state.name == "RUNNING"}

    def _own_trials(self) -> list[Any]:
        return [trial for trial in self.trials if trial.user_attrs.get(OWNER) == self.owner]

    def tell(self, members: Mapping[int, Sequence[MemberResult]]) -> None:
        """Tell Optuna the results of trials; those that have results already do not change.

        A trial's value is the score of its setting, in which a seed that failed counts as the worst score of the search
        so far. One of which all seeds failed is told as failed, one that was stopped early as pruned, with its score at
        its steps.
        """
        every = [member for group in members.values() for member in group]
        results = {x.label: x for x in rank(every, self.objective, self.members())}
        running = self.running()
        for number, group in members.items():
            if number not in running:
                continue
            attribute = [_member_to_json(member) for member in group]
            # By number: the object that proposed the trial is lost if that was a process before this one.
            self.storage.set_trial_user_attr(self._id(number), MEMBERS, attribute)
            self._tell(number, results.get(group[0].label) if group else None)

    def fail(self, number: int, reason: str) -> None:
        """Tell that a trial could not be run, and why."""
        if number in self.running():
            self.storage.set_trial_user_attr(self._id(number), "failure", reason)
            self._tell(number, None)

    def _tell(self, number: int, result: Ranked | None) -> None:
        states = importlib.import_module("optuna").trial.TrialState
        with _quiet():
            if result is None or not result.has_score:
                self.study.tell(number, state=states.FAIL)
            elif result.stopped:
                self.storage.set_trial_intermediate_value(self._id(number), result.steps, result.score)
                self.study.tell(number, state=states.PRUNED)
            else:
                self.study.tell(number, result.score)

    def _id(self, number: int) -> int:
        study_id = self.storage.get_study_id_from_name(self.study.study_name)
        return self.storage.get_trial_id_from_study_id_trial_number(study_id, number)

    def members(self) -> list[MemberResult]:
        """Return the members of all trials of the study that have results, those of other processes too."""
        return [member for trial in self.trials for member in self._members_of(trial)]

    def _members_of(self, trial: Any) -> list[MemberResult]:
        point = _point_of(trial.params, self.space)
        label = label_of(trial.number, point)
        return [MemberResult(label, point, **member) for member in trial.user_attrs.get(MEMBERS, [])]


def open_study(
    storage: str,
    space: Space,
    *,
    objective: str = "absolute",
    name: str = "",
    seed: int = 0,
    identity: Mapping[str, object],
) -> Study:
    """Open a study of Optuna, or make it; `Study.owned_by` names the process that asks for trials.

    Args:
      storage: the path of a journal file, or the URL of a database, such as `sqlite:///study.db`.
      name: of the study, "" for "shoal"; a storage may hold several.
      identity: the settings that all processes of a study share, such as the environment, as JSON.
    Raises:
      ShoalError: Optuna is missing or too old, the storage cannot be opened, or the study is of another space.
    """
    optuna = require_optuna()
    opened = _open_storage(optuna, storage)
    with _quiet():
        study = optuna.create_study(
            storage=opened, study_name=name or "shoal", direction="maximize", load_if_exists=True
        )
    given = {"space": space.to_json(), "objective": objective, **identity}
    known = study.user_attrs.get(IDENTITY)
    if known is None and not study.get_trials(deepcopy=False):
        study.set_user_attr(IDENTITY, given)
    else:
        _check_identity(study.study_name, known, given)
    study.sampler = _sampler(space, seed)
    return Study(study, opened, space, objective)


def _check_identity(name: str, known: Mapping[str, object] | None, given: Mapping[str, object]) -> None:
    if known is None:
        raise ShoalError(f"study {name!r} has trials that Shoal did not make; give another name (study).")
    if found := first_difference(known, given):
        key, before, now = found
        raise ShoalError(
            f"study {name!r} was made with {key}={before}, not {now}; give the same, or another name (study)."
        )


def require_optuna() -> Any:
    """Import Optuna, which takes a second.

    Raises:
      ShoalError: it is missing or too old.
    """
    return import_package("tuning needs", "optuna", "tune", OLDEST)


def _open_storage(optuna: Any, storage: str) -> Any:
    is_database = "://" in storage
    path = None if is_database else arguments.path("storage", storage)
    try:
        with _quiet():
            return optuna.storages.RDBStorage(storage) if path is None else _open_journal(optuna, path)
    except ShoalError:
        raise
    except (
        Exception
    ) as error:  # of the database's driver, or of the reader of a damaged journal, of whichever kind
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ShoalError(f"storage {storage!r} cannot be opened: {reason}") from error


def _open_journal(optuna: Any, path: Path) -> Any:
    journal = optuna.storages.journal
    # The other kind of lock is a symbolic link, which not every file system has.
    lock = journal.JournalFileOpenLock(os.fspath(path))
    with report_os_errors(f"storage {str(path)!r} cannot be opened"):
        with open(path, "ab"):  # makes the file, whose last line is read next
            pass
        _cut_torn_line(path, lock)
    return optuna.storages.JournalStorage(journal.JournalFileBackend(os.fspath(path), lock))


def _cut_torn_line(path: Path, lock: Any) -> None:
    """Remove the last line of a journal if it is not a whole record, since the next record would be joined to it.

    Its process was killed while it wrote. One that is writing now holds the lock.

    Raises:
      ShoalError: the file is not a journal.
    """
    lock.acquire()
    try:
        if torn := _torn_bytes(path):
            os.truncate(path, path.stat().st_size - torn)
            signals.say(
                f"{path}: the last record is not whole, since its process was killed while it wrote; its {torn} bytes "
                "are removed"
            )
    finally:
        lock.release()


def _torn_bytes(path: Path) -> int:
    """Return the length of the last line of a journal if that is not a whole record, else 0."""
    content = path.read_bytes()
    if not content.startswith(RECORD[: len(content)]):
        raise ShoalError(f"storage {str(path)!r} is not a journal of Optuna; give another file.")
    last = content[content.rfind(b"\n", 0, -1) + 1 :]
    with contextlib.suppress(ValueError):
        if not last or (last.endswith(b"\n") and json.loads(last)):
            return 0
    return len(last)


def _sampler(space: Space, seed: int) -> Any:
    """Return the multivariate TPE; with conditions, one for each group of settings that occur together.

    Each trial is proposed with a seed of its own, that of its number: several processes with one seed would otherwise
    propose the same settings, and a process that is resumed those from before.
    """
    samplers = importlib.import_module("optuna").samplers
    base: Any = samplers.BaseSampler

    class SeededByNumber(base):
        def _of(self, trial: Any, name: str = "") -> Any:
            own_seed = zlib.crc32(f"{seed} {trial.number} {name}".encode())
            with _quiet():
                return samplers.TPESampler(
                    multivariate=True, constant_liar=True, group=bool(space.where), seed=own_seed
                )

        def infer_relative_search_space(self, study: object, trial: object) -> dict[str, Any]:
            return self._of(trial).infer_relative_search_space(study, trial)

        def sample_relative(
            self, study: object, trial: object, search_space: dict[str, object]
        ) -> dict[str, Any]:
            sampler = self._of(trial)
            sampler.infer_relative_search_space(study, trial)  # it keeps the groups that it finds
            return sampler.sample_relative(study, trial, search_space)

        def sample_independent(self, study: object, trial: object, name: str, distribution: object) -> Any:
            return self._of(trial, name).sample_independent(study, trial, name, distribution)

    return SeededByNumber()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Hold back Optuna's notes on each trial, and its warnings that the sampler's options are experimental."""
    optuna = importlib.import_module("optuna")
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(before, optuna.logging.WARNING))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            yield
    finally:
        optuna.logging.set_verbosity(before)


def _suggest(trial: Any, space: Space) -> Point:
    """Take a trial's value for each setting whose conditions are met; those that conditions name come first."""
    for name in _by_dependence(space):
        if space.is_active(name, _point_of(trial.params, space)):
            _suggest_value(trial, name, space.distribution(name))
    return _point_of(trial.params, space)


def _by_dependence(space: Space) -> list[str]:
    def depth(name: str) -> int:
        return 1 + max(map(depth, space.where.get(name, {})), default=0)

    return sorted(space.names, key=depth)


def _suggest_value(trial: Any, name: str, kind: SettingDistribution) -> None:
    match kind:
        case UniformRange(low, high):
            trial.suggest_float(name, low, high)
        case Log(low, high):
            trial.suggest_float(name, low, high, log=True)
        case Int(low, high):
            trial.suggest_int(name, low, high)
        case OneMinusLog(low, high):
            trial.suggest_float(_gap(name), _to_gap(high), _to_gap(low), log=True)
        case Choice():
            trial.suggest_categorical(name, _choices(kind))


def _point_of(params: Mapping[str, Any], space: Space) -> Point:
    """Return the settings of a trial from Optuna's parameters."""
    point: Point = {}
    for name in space.names:
        kind = space.distribution(name)
        if isinstance(kind, OneMinusLog) and _gap(name) in params:
            point[name] = min(max(1 - params[_gap(name)], kind.low), kind.high)
        elif name in params:
            value = params[name]
            point[name] = kind.values[_choices(kind).index(value)] if isinstance(kind, Choice) else value
    return space.without_unmet(point)


def _gap(name: str) -> str:
    """Return Optuna's name of the distance from 1, whose logarithm is uniform."""
    return f"1-{name}"


def _to_gap(value: float) -> float:
    return float(f"{1 - value:.12g}")  # 1 - 0.999 is not quite 0.001


def _choices(kind: Choice) -> list[Any]:
    """Return the values as Optuna can hold them: sizes as texts."""
    return [format_value(value) if isinstance(value, tuple) else value for value in kind.values]


def _member_to_json(member: MemberResult) -> dict[str, Any]:
    """Return the entry of a member in a trial; a score that is not finite is left out."""
    scores = {name: float(x) for name, x in member.scores.items() if math.isfinite(x)}
    own = {field: getattr(member, field) for field in ("seed", "steps", "rung", "failure", "unfinished")}
    return own | {"scores": scores}
