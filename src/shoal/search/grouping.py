"""From the points of a space to populations: which settings differ within a compiled program, and which divide them."""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax

from shoal.base.errors import ShoalError, nearest
from shoal.config import schema, settings, struct
from shoal.config.settings import Setting
from shoal.engine.population import member_layout
from shoal.records.directory import RunDirectory
from shoal.records.members import ENVIRONMENT, NO_SETTINGS, Variant
from shoal.records.pbt_settings import Evolution
from shoal.records.run_config import RunConfig
from shoal.runs.plan.decide import decide
from shoal.runs.plan.experiment import Experiment
from shoal.runs.train import placement, resume
from shoal.search.space import Point
from shoal.types import Environment
from shoal.xla import machine

# Settings of a run that may differ between the settings of a sweep; the others name places, or how members are judged.
SIZES = settings.names_where(RunConfig(), lambda setting: setting.field.use.in_sweep)
# Settings of the runs of a search, where the caller gives no others: a member that fails does not end its population,
# and each is the run that trains it alone.
DEFAULTS: Mapping[str, Any] = {"on_nan": "freeze", "env_groups": 1}


class Candidate(NamedTuple):
    """One setting of a sweep, which is trained with all seeds."""

    label: str
    settings: Point


@dataclasses.dataclass(frozen=True)
class Request:
    """The arguments of `decide` that all members of a sweep have in common."""

    environment: Any
    algorithm: Any = ""
    environment_parameters: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    config_file: Any = None
    use_preset: bool = True
    evaluation: str | Environment | Mapping[str, Any] | None = None
    overrides: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def decide(
        self,
        static: Mapping[str, Any] = NO_SETTINGS,
        variants: Sequence[Variant] = (),
        evolution: Evolution | None = None,
    ) -> Experiment:
        """Decide the settings of the run that trains some variants, all of them with the settings `static`."""
        chosen = Variant("", static)
        environment, parameters = self.environment, {**self.environment_parameters, **chosen.parameters()}
        # `decide` takes parameters of an environment by name only.
        if environment is not None and not isinstance(environment, str) and parameters:
            environment, parameters = self._rebuilt(parameters), {}
        given = vars(self) | {"environment": environment, "environment_parameters": parameters}
        given["overrides"] = {**self.overrides, **chosen.of_algorithm()}
        return decide(**given, variants=variants, evolution=evolution)

    def _rebuilt(self, parameters: Mapping[str, object]) -> Any:
        """Make an environment that was given itself with other parameters."""
        given = dataclasses.replace(self, environment_parameters={}, evaluation=None)
        return given.decide().with_parameters(parameters)


class Group(NamedTuple):
    """Settings that one compiled program trains."""

    experiment: Experiment  # with a variant for each of them
    candidates: tuple[Candidate, ...]

    def part(self, start: int, stop: int) -> "Group":
        """Return a part of the settings."""
        variants = self.experiment.variants[start:stop]
        return Group(dataclasses.replace(self.experiment, variants=variants), self.candidates[start:stop])

    @property
    def seeds(self) -> int:
        """The number of members of each setting."""
        return self.experiment.run.seeds


class Planned(NamedTuple):
    """A run of a sweep: its directory within the sweep's and the settings that it trains."""

    root: Path
    name: str
    group: Group

    @property
    def path(self) -> Path:
        """The run's directory."""
        return self.root / self.name

    @property
    def experiment(self) -> Experiment:
        """The run's experiment, in its directory."""
        run = dataclasses.replace(self.group.experiment.run, run_dir=str(self.path))
        return dataclasses.replace(self.group.experiment, run=run)

    @property
    def is_finished(self) -> bool:
        """Whether the run has ended and holds its results."""
        if not resume.holds_run(self.path):
            return False
        return resume.is_finished(RunDirectory.open(self.path), self.group.experiment.run)

    @property
    def steps(self) -> int:
        """Environment steps of all members together."""
        run = self.group.experiment.run
        return run.total_updates * run.steps_per_update * self.group.experiment.num_members


def devices_alone(devices: int, members: int, seeds: int, groups: int) -> tuple[int, int]:
    """Return with how many devices of a CPU, and how many seeds, one setting of a population trains bit for bit alike.

    The compiler makes other instructions of a program for one device than of one that several share, so that sums are
    rounded otherwise; how many share it makes no difference. Where devices cannot share the seeds of one setting
    evenly, each seed has a device of its own, and one seed trains next to another.

    Args:
      seeds: of the setting, from the first of which as many are to be alike.
    """

    def kind(devices: int, members: int) -> tuple[bool, int]:
        over_members, over_groups = member_layout.mesh_shape(devices, members, groups)
        return over_members * over_groups > 1, over_groups

    wanted = kind(devices, members)
    possible = [(devices, seeds), (seeds, seeds), (devices, seeds + 1)]
    return next(x for x in possible if x[0] <= machine.max_devices() and kind(*x) == wanted)


def known_settings(base: Experiment) -> dict[str, Setting]:
    """Return the settings that a space may name, without those of a dot."""
    of_run = {name: x for name, x in settings.settings_of(RunConfig()).items() if name in SIZES}
    return of_run | settings.settings_of(base.config)


def check_names(names: Sequence[str], base: Experiment) -> None:
    """Require that each name of a space may vary: it is a setting, or `env.NAME`, or `SETTING.NAME`.

    Raises:
      ShoalError: a setting of the run cannot; or there is none of that name, with the nearest.
    """
    known = known_settings(base)
    for name in names:
        owner, dot, part = name.partition(".")
        if name in known or (dot and part and (name.startswith(ENVIRONMENT) or owner in known)):
            continue
        if name in settings.settings_of(RunConfig()):
            raise ShoalError(
                f"{name} cannot vary in a sweep, whose settings are all trained and judged alike; of a run's settings "
                f"only {', '.join(SIZES)} can."
            )
        instead = f"a parameter of the environment would be {ENVIRONMENT}{name}{nearest(name, known)}"
        if name in base.environment_parameters:
            instead = f"the parameter of the environment is {ENVIRONMENT}{name}"
        elif dot:
            examples = "env.NAME or SETTING.NAME, such as optimizer_args.eps"
            instead = f"a name with a dot is {examples}{nearest(owner, ['env', *known])}"
        raise ShoalError(f"there is no setting {name!r}; {instead}.")


def group_candidates(request: Request, candidates: Sequence[Candidate]) -> list[Group]:
    """Divide settings into groups, each of which is one compiled program, in the order of their first members.

    Numbers that are data differ within a group. Everything else divides groups: sizes, networks, words, and numbers
    that switch a part of the program on.

    Raises:
      ShoalError: a setting cannot work; the sentence names it, and the member that has it.
    """
    base = request.decide()
    parted: dict[str, tuple[dict[str, Any], list[Candidate], list[Variant]]] = {}
    for candidate in candidates:
        data = {name: float(x) for name, x in candidate.settings.items() if is_data(base, name, x)}
        static = {name: x for name, x in candidate.settings.items() if name not in data}
        # A text, since 1, 1.0 and True are one key of a dictionary, and divide programs.
        key = repr((sorted(static.items(), key=lambda item: item[0]), list(data)))
        group = parted.setdefault(key, (static, [], []))
        group[1].append(candidate)
        group[2].append(Variant(candidate.label, data))
    return [
        group
        for static, members, variants in parted.values()
        for group in _same_programs(request.decide(static, variants), members)
    ]


def _same_programs(experiment: Experiment, candidates: Sequence[Candidate]) -> Iterator[Group]:
    """Divide the settings of a group further by the structure that their values give the config."""
    solo = placement.place(experiment)[1].solo
    places: dict[Any, list[int]] = {}
    for place, member in enumerate(solo):
        places.setdefault(jax.tree.structure((member.environment, member.config)), []).append(place)
    for chosen in places.values():
        variants = tuple(experiment.variants[k] for k in chosen)
        yield Group(dataclasses.replace(experiment, variants=variants), tuple(candidates[k] for k in chosen))


def is_data(base: Experiment, name: str, value: object) -> bool:
    """Report whether a value of a setting may differ between members of one compiled program."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if name.startswith(ENVIRONMENT):
        return name.removeprefix(ENVIRONMENT) in data_parameters(base.environment)
    setting = settings.find(base.config, name)
    return setting is not None and setting.is_data


def data_parameters(environment: object) -> set[str]:
    """Return the names of an environment's fields, and of those inside its wrappers, that are numbers and data."""
    return {
        name
        for part in _with_inner(environment)
        for name, declared in schema.types_of(type(part)).items()
        if declared is float and name in struct.data_fields(part)
    }


def reward_parameters(environment: object) -> set[str]:
    """Return the parameters of an environment that are declared as parts of its rewards (`struct.parameter`)."""
    fields = [field for part in _with_inner(environment) for field in dataclasses.fields(part)]
    return {field.name for field in fields if field.metadata.get("in_reward")}


def _with_inner(environment: Any) -> list[Any]:
    """Return an environment and those inside its wrappers, each of which has the next one as `env`; structs alone."""
    if not struct.is_struct(environment):
        return []
    return [environment, *(_with_inner(environment.env) if "env" in struct.data_fields(environment) else ())]


def check_objective(objective: str, names: Sequence[str], base: Experiment) -> None:
    """Require a metric of `info` where a parameter that is a part of the rewards varies.

    Raises:
      ShoalError: the objective is a return.
    """
    if objective.startswith("info_"):
        return
    in_reward = reward_parameters(base.environment)
    for name in names:
        if name.startswith(ENVIRONMENT) and name.removeprefix(ENVIRONMENT) in in_reward:
            raise ShoalError(
                f"{name} is a part of the rewards, so that returns of members that differ in it do not say which is "
                f"better; give a metric of the environment's own as objective, such as {_info_example(base)}."
            )


def _info_example(base: Experiment) -> str:
    names = [f"info_{name}" for name in base.environment.info_summaries]
    return names[0] if names else "info_success, which the environment would have to report"
