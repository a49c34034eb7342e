"""The members of a population: each has a seed and, where settings differ between members, a label and its settings.

One table, in the order of the population's leading axis, says of every part of a run who member k is: its key, its rows
of `metrics.jsonl`, its entries of `summary.json`, its saved policies and the sentences about it. A run of ten seeds is
ten members of the one variant that has no label.
"""

import operator
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from shoal.base.errors import ShoalError, nearest

NO_SETTINGS: Mapping[str, float] = MappingProxyType({})
ENVIRONMENT = "env."  # the prefix of settings that are parameters of the environment


class Variant(NamedTuple):
    """A setting of a population: a label and the numbers that its members, one for each seed, share."""

    label: str
    # What differs, by flat names; `env.NAME` is a parameter of the environment.
    settings: Mapping[str, float]

    def parameters(self) -> dict[str, float]:
        """Return those of the settings that are parameters of the environment, by the environment's names."""
        own = {name: x for name, x in self.settings.items() if name.startswith(ENVIRONMENT)}
        return {name.removeprefix(ENVIRONMENT): x for name, x in own.items()}

    def of_algorithm(self) -> dict[str, float]:
        """Return those of the settings that are the algorithm's."""
        return {name: x for name, x in self.settings.items() if not name.startswith(ENVIRONMENT)}


class Member(NamedTuple):
    """One member of a population."""

    seed: int
    label: str = ""  # of its variant; empty in a run whose members differ in their seeds only
    settings: Mapping[str, float] = NO_SETTINGS

    @property
    def name(self) -> str:
        """The member's name in a sentence."""
        return f"{self.label}, seed {self.seed}" if self.label else f"seed {self.seed}"

    @property
    def key(self) -> int | str:
        """The name of the member among the results of a run: its seed, where that alone tells members apart."""
        return self.name if self.label else self.seed

    @property
    def columns(self) -> dict[str, int | str]:
        """The entries by which a row of `metrics.jsonl` names the member."""
        return {"seed": self.seed} | ({"label": self.label} if self.label else {})


Members = tuple[Member, ...]


def members_of(seeds: Sequence[int], variants: Sequence[Variant] = ()) -> Members:
    """Make the table of a population: the members of the first variant, one for each seed, then those of the next."""
    return tuple(
        Member(seed, variant.label, variant.settings)
        for variant in variants or (Variant("", NO_SETTINGS),)
        for seed in seeds
    )


def members_of_config(config: Mapping[str, Any]) -> Members:
    """Make the table of a run on disk from its `config.json`: the arrays of the run's files are in its order."""
    run = config["run"]
    variants = [Variant(x["label"], x["settings"]) for x in config.get("variants", ())]
    return members_of(range(run["seed"], run["seed"] + run["seeds"]), variants)


def places_by_label(members: Members) -> dict[str, list[int]]:
    """Return the places of the members of each variant by its label, "" where they differ in their seeds only."""
    places: dict[str, list[int]] = {}
    for k, member in enumerate(members):
        places.setdefault(member.label, []).append(k)
    return places


def to_metadata(members: Members) -> dict[str, list[int] | list[str]]:
    """Return the table as JSON, to be saved with policies."""
    labels = [member.label for member in members]
    return {"seeds": [member.seed for member in members]} | ({"labels": labels} if any(labels) else {})


def from_metadata(metadata: Mapping[str, Any]) -> Members:
    """Make the table again from `to_metadata`; it does not hold the members' settings."""
    seeds = [operator.index(seed) for seed in metadata["seeds"]]
    return tuple(map(Member, seeds, map(str, metadata.get("labels", [""] * len(seeds)))))


def chosen(members: Members, seed: int | None, label: str | None) -> list[int]:
    """Return the places of the members of a seed, of a label, or of both; None stands for all.

    Raises:
      ShoalError: there are none.
    """
    labels, seeds = ({getattr(x, name): None for x in members} for name in ("label", "seed"))
    if label is not None and label not in labels:
        known = "its members differ in their seeds only" if "" in labels else ""
        hint = nearest(label, labels) or "."
        raise ShoalError(f"label={label!r} is not one of the run's: {known or ', '.join(labels)}{hint}")
    if seed is not None and seed not in seeds:
        raise ShoalError(f"seed={seed} is not one of the run's: {', '.join(map(str, seeds))}.")
    return [
        k for k, member in enumerate(members) if label in (None, member.label) and seed in (None, member.seed)
    ]
