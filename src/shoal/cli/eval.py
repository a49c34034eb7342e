"""`shoal eval RUN`: evaluate a run's policies on whole episodes, and print a line for each seed."""

import dataclasses
import itertools
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from shoal.base.errors import ShoalError
from shoal.base.numbers import format_estimate, format_interval, format_number, format_numbers
from shoal.cli import flags
from shoal.config.requirements import Needs, Table
from shoal.monitor.progress import Activity
from shoal.records.json_files import json_text
from shoal.records.summary import interval_lines
from shoal.runs.policies.cross_play import cross_play
from shoal.runs.policies.evaluate import evaluate_run

COMMAND = "shoal eval RUN"
DESCRIPTION = (
    "Evaluates the policies of a run directory, or of the best setting of a sweep, on whole episodes, each in an "
    "environment of its own."
)


@dataclasses.dataclass(frozen=True)
class EvalFlags:
    """The flags of an evaluation."""

    needs: ClassVar[Table] = {
        "render_episodes": (Needs("render", other_than=("",), such_as="out.gif"),),
        "sampled": (Needs("mode", ("run", "sampled")),),
        "which": (Needs("checkpoint", ("",)),),
        "role": (Needs("against", other_than=("",), such_as="random"),),
        **dict.fromkeys(
            ("seed", "label", "memory", "render", "plot", "consecutive", "episodes_file", "eval_epsilon"),
            (Needs("against", ("",)),),
        ),
    }

    env: tuple[str, ...] = ()
    """Evaluates in another environment than the run's own: its name, name=value parameters, or both."""
    episodes: int = 100
    """Plays this many episodes with each policy."""
    which: Literal["best", "last"] = "best"
    """Evaluates the policies with the best evaluation score (best), or the last ones (last)."""
    checkpoint: str = ""
    """Evaluates the policies of this checkpoint instead: its environment steps, best or last."""
    seed: int = -1
    """Evaluates the policy of this seed; -1 evaluates those of all seeds of the run."""
    label: str = ""
    """Evaluates the policies of this label only, in a run or a sweep of several settings."""
    mode: Literal["run", "greedy", "sampled"] = "run"
    """Acts by the policies' mode (greedy) or samples actions (sampled); run does as the run's evaluations did."""
    memory: Literal["run", "trial", "episode"] = "run"
    """Clears the memory of a recurrent policy after each trial or each episode; run does as it was trained."""
    sampled: bool = False
    """Samples actions, short for --mode sampled."""
    eval_epsilon: float | None = None
    """Takes a random action with this probability where policies of action values sample; None does as the run."""
    episode_seed: int = 0
    """Sets the seed of the evaluation episodes."""
    consecutive: int = 0
    """Plays this many episodes of one task in a row with the memory kept, counts them as one, and prints the return of
    each by its place; 0 does as the evaluations of the run."""
    episodes_file: str = ""
    """Writes return, length, end and final reward of each episode (and agent) of each policy into this .npz file."""
    render: str = ""
    """Draws the first episodes of the best seed into this file, such as out.gif (or .mp4, by ffmpeg; .png for
    one image; .pvd for ParaView).
    """
    render_episodes: int = 3
    """Draws this many episodes, one after the other (render)."""
    plot: str = ""
    """Plots the return of each episode of a trial by its index into this PNG, and for a policy with memory
    also the return with the memory cleared at every episode.
    """
    against: str = ""
    """Plays each policy against each of this run's, in a world whose agents have several roles; or against random
    actions (random), or a function (observation, key) -> action (module:name)."""
    role: int = 0
    """Lets the policies of RUN control the agents of this role, and the others all other agents (against)."""
    json: bool = False
    """Prints everything as JSON."""


def main(arguments: Sequence[str]) -> int:
    """Evaluate, and print a table."""
    settings, words = flags.parse(COMMAND, DESCRIPTION, EvalFlags(), arguments)
    run = flags.require("run", "shoal eval runs/CartPole-v1-ppo-20260131-093000", "".join(words[:1]))
    # Those after the run are parameters of its environment; a second run would be taken for an environment.
    for word in (word for word in words[1:] if "=" not in word):
        raise ShoalError(f"shoal eval takes one run, not {words[0]!r} and {word!r}; evaluate each by itself.")
    environment, parameters = flags.parse_environment([*settings.env, *words[1:]])
    mode = "sampled" if settings.sampled else settings.mode
    # Flags always have a value: "" and -1 stand for None in Python, which is as the run did it.
    shared: dict[str, Any] = {
        "which": settings.which,
        "checkpoint": settings.checkpoint or None,
        "episodes": settings.episodes,
        "seed": settings.episode_seed,
        "greedy": None if mode == "run" else mode == "greedy",
        "environment_parameters": parameters,
    }
    with Activity() as activity:
        shared["tell"] = activity.describe
        if settings.against:
            results = cross_play(run, settings.against, environment or None, role=settings.role, **shared)
        else:
            results = evaluate_run(
                run,
                environment or None,
                run_seed=None if settings.seed < 0 else settings.seed,
                label=settings.label or None,
                eval_epsilon=settings.eval_epsilon,
                memory_lasts=None if settings.memory == "run" else settings.memory,
                consecutive=settings.consecutive or None,
                episodes_file=settings.episodes_file,
                plot=settings.plot,
                render=settings.render,
                render_episodes=settings.render_episodes,
                **shared,
            )
    text = matrices if settings.against else table
    print(json_text(results).rstrip() if settings.json else text(results))
    return 0


def table(results: dict[str, Any]) -> str:
    """Format a line for each seed, and the interquartile mean."""
    # Members of several settings have labels, which are longer than seeds.
    width = max(6, *(len(str(member)) + 2 for member in results["metrics"]))
    lines = [
        f"{results['environment']}, {results['which']} policies, {results['mode']}, "
        f"{results['episodes']} episodes each",
        f"{'seed':>{width}}{'return':>11}{'std':>10}{'min':>11}{'max':>11}{'length':>10}{'terminated':>12}{'truncated':>11}",
    ]
    metrics, interval = results["metrics"].values(), results["interval"]
    spreads = [format_numbers([x[name] for x in metrics], interval) for name in ("return_min", "return_max")]
    # Means and deviations together, so that a column's digits can be compared with the other's.
    both = format_numbers([x[name] for name in ("return_mean", "return_std") for x in metrics], interval)
    columns = both[: len(metrics)], both[len(metrics) :], *spreads
    for seed, x, mean, std, low, high in zip(results["metrics"], metrics, *columns, strict=True):
        lines.append(
            f"{seed:>{width}}{mean:>11}{std:>10}{low:>11}{high:>11}"
            f"{x['length_mean']:>10.1f}{x['terminated']:>12.0%}{x['truncated']:>11.0%}"
        )
    if len(metrics) > 1:
        iqm = format_number(results["iqm"], interval)
        lines.append(f"{'IQM':>{width}}{iqm:>11}  {format_interval(interval)}".rstrip())
        lines += interval_lines(interval, len(metrics))
    if failed := ", ".join(str(seed) for seed in results["failed"]):
        lines.append(f"  not trained to the end, since a number was not finite: {failed}")
    shares = [x["unfinished"] for x in metrics]
    lines += unfinished_lines(sum(shares) / len(shares), results["max_steps"])
    lines += [*agent_lines(list(metrics), results.get("team_return", "")), *info_lines(results)]
    return "\n".join([*lines, *trial_lines(results["by_episode"]), *rendered_lines(results)])


def matrices(results: dict[str, Any]) -> str:
    """Format the returns of each role, a line for each seed of the first side and a column for each of the second."""
    first, second = results["first"], results["second"]
    lines = [
        f"{results['environment']}, {results['mode']}, {results['episodes']} episodes of each pair",
        f"rows: {_side(first)}; columns: {_side(second)}",
    ]
    for role, x in results["returns"].items():
        iqm = format_estimate(x["iqm"], x["interval"])
        lines.append(f"return of role {role}, its agents' mean: IQM {iqm}")
        lines.append(f"{'seed':>6}" + "".join(f"{seed:>11}" for seed in second["seeds"]))
        texts = iter(format_numbers(itertools.chain(*x["matrix"]), x["interval"]))
        for seed, row in zip(first["seeds"], x["matrix"], strict=True):
            lines.append(f"{seed:>6}" + "".join(f"{text:>11}" for _, text in zip(row, texts, strict=False)))
    # The intervals are by a bootstrap over the seeds of both sides; the note is about the side that has fewer.
    fewest = min((len(side["seeds"]) for side in (first, second) if len(side["seeds"]) > 1), default=1)
    lines += interval_lines(next(iter(results["returns"].values()))["interval"], fewest)
    return "\n".join([*lines, *unfinished_lines(results["unfinished"], results["max_steps"])])


def _side(side: dict[str, Any]) -> str:
    which = f" ({side['which']})" if side["which"] else ""
    names = ", ".join(map(str, side["failed"]))
    failed = f", without seed {names}, which was not trained to the end" if names else ""
    return f"{side['name']}{which} as role {' and '.join(map(str, side['roles']))}{failed}"


def unfinished_lines(share: float, steps: int) -> list[str]:
    """Format the share of episodes that were cut before they ended; empty where all ended."""
    cut = f"  {share:.0%} of the episodes were cut at {steps:,} steps, and count by their return until then"
    return [cut] if share else []


def agent_lines(metrics: Sequence[Mapping[str, float]], team_return: str) -> list[str]:
    """Format the mean return of each of several agents, and how they add up to the team's; empty for one agent."""
    names = [f"return_agent_{i}_mean" for i in range(len(metrics[0]))]
    means = [sum(x[name] for x in metrics) / len(metrics) for name in names if name in metrics[0]]
    if not means:
        return []
    of_agents = ", ".join(format_numbers(means))
    return [f"  a return is the {team_return} over {len(means)} agents, of which each has {of_agents}"]


def info_lines(results: dict[str, Any]) -> list[str]:
    """Format the entries of the environment's `info`, mean and range over seeds; empty without `info`."""
    metrics = list(results["metrics"].values())
    lines = []
    for name in (name for name in metrics[0] if name.startswith("info_")):
        values = [x[name] for x in metrics]
        mean, low, high = format_numbers([sum(values) / len(values), min(values), max(values)])
        extent = f"   [{low}, {high}] over the seeds" if len(values) > 1 else ""
        lines.append(f"  {name.removeprefix('info_')} {mean}{extent}")
    return lines


def rendered_lines(results: dict[str, Any]) -> list[str]:
    """Name the seed and the file that was drawn; empty where nothing was."""
    if "rendered" not in results:
        return []
    rendered = results["rendered"]
    count, returns = len(rendered["returns"]), ", ".join(map(format_number, rendered["returns"]))
    what = f"{count} episode{'s' * (count > 1)} of seed {rendered['seed']}, return {returns}"
    return [f"  {rendered['path']}: {what}, {rendered['frames']:,} picture{'s' * (rendered['frames'] > 1)}"]


def trial_lines(by_episode: dict[str, dict[str, list]]) -> list[str]:
    """Format return and success by the place of an episode in its trial, the seeds' mean; empty without trials."""
    if not by_episode:
        return []
    statistics, has_several_seeds = ("mean", "median", "p20"), len(by_episode["return"]["seeds"][0]) > 1
    lines = ["by episode of a trial" + (", the mean of the seeds" if has_several_seeds else "")]
    header = [f"{name} {statistic}" for name in by_episode for statistic in statistics]
    has_interval = any(by_episode["return"]["interval"])
    columns = [format_numbers(x[statistic]) for x in by_episode.values() for statistic in statistics]
    lines.append(
        " episode" + "".join(f"{x:>16}" for x in header) + ("   95% of return" if has_interval else "")
    )
    for index, interval in enumerate(by_episode["return"]["interval"]):
        line = f"{index:>8}" + "".join(f"{column[index]:>16}" for column in columns)
        lines.append(line + (f"   {format_interval(interval)}" if has_interval else ""))
    return lines
