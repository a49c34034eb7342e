"""The environment of a run's evaluations, where it is not that of the training."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from shoal.envs import describing
from shoal.envs.given import environment_of
from shoal.records.run_config import names_environment
from shoal.types import Environment


class Elsewhere(NamedTuple):
    """Where a run is evaluated.

    Attributes:
      parameters: by which its environment differs from that of the training.
      entry: of another environment, as `config.json` has one; empty for that of the training.
      made: the other environment, where the caller gave it; else it is made of its entry.
    """

    parameters: Mapping[str, Any] = {}
    entry: Mapping[str, Any] = {}
    made: Environment | None = None

    def __str__(self) -> str:
        """Return the name of the other environment, or the parameters."""
        parameters = ",".join(f"{name}={value}" for name, value in self.parameters.items())
        return str(self.entry.get("name", parameters))

    def environment(self) -> Environment:
        """Return the other environment.

        Raises:
          ShoalError: it cannot be made again.
        """
        return describing.rebuild(self.entry, {})[0] if self.made is None else self.made

    def to_json(self) -> Mapping[str, Any]:
        """Return the entry `eval_env` of `config.json`."""
        return self.entry or {name: describing.to_json(x) for name, x in self.parameters.items()}


HERE = Elsewhere()  # where a run is trained


def given(evaluation: str | Environment | Mapping[str, Any]) -> Elsewhere:
    """Return where a caller wants a run evaluated.

    Args:
      evaluation: parameters of the training's environment; or another one, as its name, as itself, or as a dictionary
        of `name` and `parameters`.
    Raises:
      ShoalError: there is no such environment.
    """
    if isinstance(evaluation, Mapping) and not names_environment(evaluation):
        return Elsewhere(evaluation)
    of: Mapping[str, Any] = {"name": evaluation, "parameters": {}}
    of = evaluation if isinstance(evaluation, Mapping) else of
    name, made = of["name"], environment_of(of["name"], of["parameters"])
    is_name = isinstance(name, str)
    description = describing.describe_named(name, of["parameters"]) if is_name else describing.describe(made)
    return Elsewhere({}, describing.description_to_json(description), made)


def saved_in(config: Mapping[str, Any]) -> Elsewhere:
    """Return where the run of a `config.json` is evaluated."""
    entry = config.get("eval_env", {})
    if names_environment(entry):
        return Elsewhere({}, entry)
    return Elsewhere(describing.decode_parameters(config["environment"]["name"], entry) if entry else {})
