"""Search spaces: grids, random settings and conditions, and the points that a sweep trains.

A space is the product of a grid and of samples of random settings, new ones for each combination of the grid. Names are
those of settings (`learning_rate`), of the environment's parameters (`env.gravity`) and of the optimiser's arguments
(`optimizer_args.eps`).

On the command line:

    --grid ent_coef=0,0.01  --grid hidden_sizes=64x64,256x256
    --random learning_rate=log:1e-5:1e-2  --random env.gravity=uniform:5:15

In a file of three tables, all optional:

    [grid]
    surrogate = ["clip", "penalty"]                  # a list: every value, with every value of the others

    [random]
    learning_rate = "log:1e-5:1e-2"                  # a distribution, see `distributions`
    env.gravity = "uniform:5:15"
    activation = ["tanh", "relu"]                    # a list: one of the values
    kl_coef = "log:0.1:10"

    [where]
    kl_coef.surrogate = "penalty"                    # kl_coef is a part of a point only where surrogate = "penalty";
                                                     # a list of values: where it has one of them

A setting that is not part of a point has its value from the command line, the preset or the default.
"""

import dataclasses
import itertools
import tomllib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from shoal.base.errors import ShoalError, nearest
from shoal.base.files import report_os_errors
from shoal.config import arguments
from shoal.config.settings import Setting
from shoal.config.values import cast_to_declared, from_text, options_of
from shoal.search.distributions import (
    Choice,
    Int,
    SettingDistribution,
    is_same,
    natural_order,
    read_distribution,
    read_values,
    to_json,
)

TABLES = ("grid", "random", "where")
LABEL_LENGTH = 60  # characters of a label, besides the first setting

Point = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Space:
    """A grid, random settings, and the conditions under which a setting is a part of a point.

    Attributes:
      grid: the values of each setting of the grid.
      random: the distribution of each random setting.
      where: for a setting, the values that others must have; it is left out of the points where they have not.
    """

    grid: Mapping[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    random: Mapping[str, SettingDistribution] = dataclasses.field(default_factory=dict)
    where: Mapping[str, Mapping[str, tuple[Any, ...]]] = dataclasses.field(default_factory=dict)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all settings that vary, those of the grid first."""
        return (*self.grid, *self.random)

    def points(self, samples: int = 1, seed: int = 0, *, sobol: bool = False) -> list[Point]:
        """Return the settings to train: for every combination of the grid, samples of the random part.

        A larger `samples` extends the list: its first points stay the same. Each combination of the grid has samples of
        its own, since a number of random values that is repeated in all of them would cover less of the space. A point
        that repeats an earlier one, as conditions and choices may make it, is left out.

        Args:
          sobol: whether the samples of a combination cover the space evenly (scrambled Sobol points) instead of
            independently.
        Raises:
          ShoalError: several samples of a space without random settings, or `sobol` for it.
        """
        if not self.random and (samples > 1 or sobol):
            given = "sobol" if sobol else f"samples={samples}"
            raise ShoalError(f"{given} has no effect on a grid; it needs a random setting.")
        combinations = [
            dict(zip(self.grid, values, strict=True)) for values in itertools.product(*self.grid.values())
        ]
        draws = [self._draw(samples, (seed, _checksum(repr(x))), sobol) for x in combinations]
        found: dict[str, Point] = {}
        # The first samples of all combinations come first, so that further samples only extend the list.
        for index in range(samples):
            for combination, drawn in zip(combinations, draws, strict=True):
                point = self.without_unmet(combination | drawn[index])
                found.setdefault(repr(point), point)
        return list(found.values())

    def _draw(self, samples: int, seed: tuple[int, ...], sobol: bool) -> list[Point]:
        """Draw the random part of some points."""
        if sobol:
            from scipy.stats import qmc  # noqa: PLC0415 (takes a second)

            sequence = qmc.Sobol(len(self.random), scramble=True, seed=np.random.default_rng(seed))
            # Sobol points cover a cube evenly in powers of two alone.
            rows = sequence.random_base2((samples - 1).bit_length())[:samples]
        else:  # a stream for each name, so that another setting in the space leaves the draws of this one as they are
            streams = [np.random.default_rng((*seed, _checksum(name))) for name in self.random]
            rows = np.array([stream.random(samples) for stream in streams]).reshape(-1, samples).T
        return [
            {name: kind.from_unit(u) for (name, kind), u in zip(self.random.items(), row, strict=True)}
            for row in rows.tolist()
        ]

    def without_unmet(self, point: Mapping[str, object]) -> Point:
        """Return a point without the settings whose conditions it does not meet, in the space's order."""
        # A trial that Optuna is still proposing lacks settings that are active.
        return {name: point[name] for name in self.names if name in point and self.is_active(name, point)}

    def is_active(self, name: str, point: Mapping[str, object]) -> bool:
        """Report whether a point meets the conditions of a setting, and those of the settings that they name."""
        return all(
            other in point
            and any(is_same(point[other], value) for value in values)
            and self.is_active(other, point)
            for other, values in self.where.get(name, {}).items()
        )

    def distribution(self, name: str) -> SettingDistribution:
        """Return a setting's distribution; the values of a grid are those of a choice."""
        return self.random[name] if name in self.random else Choice(self.grid[name])

    def to_unit(self, name: str, value: Any) -> float:
        """Map a value of a setting to its place in [0, 1] on the setting's scale, for pictures and models."""
        return self.distribution(name).to_unit(value)

    def axis(self, name: str) -> list[Any]:
        """Return the values of a grid or a choice in the order in which an axis shows them."""
        kind = self.distribution(name)
        assert isinstance(kind, Choice)
        return natural_order(kind.values)

    def cast(self, known: Mapping[str, Setting]) -> "Space":
        """Make the listed values, those of conditions too, what their settings declare: texts, and whole numbers.

        Args:
          known: the settings of the run and of the algorithm, by name. Values of names with a dot, the environment's
            parameters and arguments of a setting, are of any type.
        Raises:
          ShoalError: a distribution draws values of another type, or two values of a setting become the same.
        """
        for name in self.names:
            if name in known:
                _check_draws(name, self.distribution(name), known[name])

        def cast_all(name: str, values: Iterable[object]) -> tuple[Any, ...]:
            declared = known[name].declared if name in known else Any
            return read_values(name, [_cast(value, declared) for value in values])

        grid = {name: cast_all(name, values) for name, values in self.grid.items()}
        random = {
            name: Choice(cast_all(name, kind.values)) if isinstance(kind, Choice) else kind
            for name, kind in self.random.items()
        }
        where = {
            name: {other: cast_all(other, values) for other, values in conditions.items()}
            for name, conditions in self.where.items()
        }
        return _checked(Space(grid, random, where))

    def to_json(self) -> dict[str, Any]:
        """Return the three tables as strict JSON can hold them; `from_tables` reads them back."""
        return {
            "grid": {name: to_json(values) for name, values in self.grid.items()},
            "random": {name: kind.to_json() for name, kind in self.random.items()},
            "where": {
                name: {other: to_json(values) for other, values in conditions.items()}
                for name, conditions in self.where.items()
            },
        }


def _cast(value: object, declared: object) -> Any:
    value = from_text(value, declared) if isinstance(value, str) else cast_to_declared(value, declared)
    # A whole number is a float too, so that points, labels and seeds are those of the number however it is written.
    return float(value) if float in options_of(declared) and type(value) is int else value


def _check_draws(name: str, kind: SettingDistribution, setting: Setting) -> None:
    """Require that a range of numbers is for a setting that is a number, and one of whole numbers where it must be."""
    options = options_of(setting.declared)
    if isinstance(kind, Choice):
        return
    if not {int, float} & set(options) or setting.field.choice:
        raise ShoalError(
            f"{name}={kind.to_json()} draws numbers, and {name} is not a number; give a list, such as "
            f"--grid {name}=A,B or choice:A:B."
        )
    if float not in options and not isinstance(kind, Int):
        raise ShoalError(f"{name}={kind.to_json()} draws numbers that are not whole; give int:LOW:HIGH.")


def _checksum(text: str) -> int:
    """Return a number of a text that is the same in every process, for the seed of a stream."""
    return zlib.crc32(text.encode())


def label_of(index: int, point: Mapping[str, object]) -> str:
    """Return a short name of a point: its index and its first settings, such as `3 learning_rate=0.0003 gamma=0.99`.

    It depends on the point and its index alone, so that it stays the same when a sweep is extended.
    """
    words = [f"{name}={format_value(value)}" for name, value in point.items()]
    shown = 1
    while shown < len(words) and len(" ".join(words[: shown + 1])) <= LABEL_LENGTH:
        shown += 1
    rest = [f"+{len(words) - shown}"] if len(words) > shown else []
    return " ".join([str(index), *words[:shown], *rest])


def number_of(label: str) -> int:
    """Return the index that a label begins with: of a point of a sweep, or of a trial of a study."""
    return int(label.split(" ", 1)[0])


def format_value(value: object) -> str:
    """Format a value for a label or an axis: a number with four significant digits, sizes as 64x64."""
    if isinstance(value, tuple):
        return "x".join(map(format_value, value)) or "()"
    if isinstance(value, float):
        # 0.99912 must not become 0.9991 next to 0.99914: what counts near 1 is the distance from it.
        digits = 4 if not 0.9 < abs(value) < 1 else 6
        return f"{value:.{digits}g}"
    return str(value)


def from_words(grid: Sequence[str] = (), random: Sequence[str] = (), file: str | Path = "") -> Space:
    """Read a space from the flags of a command: `NAME=V1,V2`, `NAME=DISTRIBUTION`, and a file of tables.

    Values stay texts; `Space.cast` makes them what their settings declare.

    Raises:
      ShoalError: a word or the file cannot be read, a setting is given twice, or there is none.
    """
    tables = read_file(file) if file else {}
    given_grid = assignments("grid", grid, "learning_rate=1e-4,3e-4")
    given_random = assignments("random", random, "learning_rate=log:1e-5:1e-2")
    for table, given in (("grid", given_grid), ("random", given_random)):
        present = _flat(tables.get(table, {}), table)
        for name in given:
            if name in present:
                raise ShoalError(f"{name} is given by --{table} and by {str(file)!r}; give it once.")
        tables[table] = present | given
    return from_tables(tables)


def read_file(path: str | Path) -> dict[str, Any]:
    """Read the tables of a space file.

    Raises:
      ShoalError: it cannot be read, or is no TOML.
    """
    path = arguments.path("space", path)
    with report_os_errors(f"space file {str(path)!r} cannot be read"):
        data = path.read_bytes()
    try:
        return tomllib.loads(data.decode())
    except ValueError as error:  # of TOML, or of the encoding
        raise ShoalError(f"space file {str(path)!r} is not TOML: {error}") from error


def from_tables(tables: Mapping[str, object]) -> Space:
    """Make a space of its three tables, of a file, of `Space.to_json` or of a caller.

    Args:
      tables: `grid` (a list of values by name), `random` (a distribution as text, or a list of choices, by name) and
        `where` (by name, the value or values of each other setting); names may be nested as in TOML.
    Raises:
      ShoalError: a table is unknown or no table, a distribution is wrong, a setting is given twice, a condition names
        no setting of the space, or nothing varies.
    """
    for name in tables:
        if name not in TABLES:
            raise ShoalError(
                f"the space has the key {name!r}, which is none of {', '.join(TABLES)}{nearest(name, TABLES)}."
            )
    grid = {name: _grid_values(name, values) for name, values in _flat(tables.get("grid"), "grid").items()}
    random = {
        name: read_distribution(name, given) for name, given in _flat(tables.get("random"), "random").items()
    }
    for name in grid:
        if name in random:
            raise ShoalError(f"{name} is in the grid and among the random settings; give it once.")
    if not grid and not random:
        raise ShoalError(
            "the space is empty; give a setting that varies, such as learning_rate=log:1e-5:1e-2."
        )
    return _checked(Space(grid, random, _read_where(tables.get("where"), (*grid, *random))))


def _flat(table: object, what: str) -> dict[str, Any]:
    """Join the names of nested tables with dots, as `env.gravity` is a table within a table in TOML."""
    found: dict[str, Any] = {}
    for name, value in arguments.mapping(what, table).items():
        # {"float": "inf"} is a number that strict JSON cannot hold (`distributions.to_json`), and no table.
        if isinstance(value, Mapping) and set(value) != {"float"}:
            found |= {f"{name}.{part}": inner for part, inner in _flat(value, f"{what}.{name}").items()}
        else:
            found[name] = value
    return found


def _grid_values(name: str, values: object) -> tuple[Any, ...]:
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise ShoalError(
            f"grid: {name}={arguments.short_repr(values)} is not a list of values; give one such as [0.1, 0.2]."
        )
    return read_values(name, list(values))


def _read_where(table: object, names: Sequence[str]) -> dict[str, dict[str, tuple[Any, ...]]]:
    """Read conditions: by the name of a setting, the name of another with its value or list of values."""
    found: dict[str, dict[str, tuple[Any, ...]]] = {}
    for path, values in _flat(table, "where").items():
        owners = [name for name in names if path.startswith(f"{name}.")]
        # A name may begin with another one and a dot: optimizer_args.eps with optimizer_args.
        owner = max(owners, key=len, default=None)
        if owner is None:
            raise ShoalError(
                f"where: {path} begins with no setting of the space{nearest(path.partition('.')[0], names)}."
            )
        other = path.removeprefix(f"{owner}.")
        if other not in names:
            hint = nearest(other, [name for name in names if name != owner])
            raise ShoalError(
                f"where: {owner} depends on {other!r}, which is not a setting of the space; a condition needs one that "
                f"varies{hint}."
            )
        listed = values if isinstance(values, list | tuple) else [values]
        found.setdefault(owner, {})[other] = read_values(f"where: {path}", listed)
    return found


def _checked(space: Space) -> Space:
    """Require that conditions can be met and do not depend on themselves."""
    for name, conditions in space.where.items():
        _check_no_cycle(space, name, ())
        for other, values in conditions.items():
            kind = space.distribution(other)
            if not isinstance(kind, Choice):
                raise ShoalError(
                    f"where: {name} depends on {other}, which is drawn from a range of numbers; a condition needs a "
                    "grid or a choice."
                )
            for value in values:
                # Texts of the command line are read as far as that is possible without their setting's type.
                if not any(is_same(_cast(value, Any), _cast(known, Any)) for known in kind.values):
                    known = ", ".join(map(format_value, kind.values))
                    raise ShoalError(
                        f"where: {name} needs {other}={format_value(value)}, which {other} never has; it is one of "
                        f"{known}."
                    )
    return space


def _check_no_cycle(space: Space, name: str, before: tuple[str, ...]) -> None:
    if name in before:
        raise ShoalError(f"where: {' depends on '.join((*before, name))}; leave one of these conditions out.")
    for other in space.where.get(name, {}):
        _check_no_cycle(space, other, (*before, name))


def assignments(flag: str, words: Sequence[str], example: str) -> dict[str, Any]:
    """Read the words of a flag: `NAME=TEXT`; a grid's text is split at its commas."""
    found: dict[str, Any] = {}
    for word in words:
        name, separator, text = word.partition("=")
        name = name.strip().replace("-", "_")
        if not separator or not name:
            raise ShoalError(f"--{flag} {word!r} is not NAME=VALUES; give one such as {example}.")
        if name in found:
            raise ShoalError(f"--{flag} {name} is given twice; give it once, with all of its values.")
        found[name] = split_values(text) if flag == "grid" else text
    return found


def split_values(text: str) -> list[str]:
    """Split a text at the commas that stand outside brackets: `(64,64),(32,32)` is two values."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts if part.strip()]
