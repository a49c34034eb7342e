"""Policies in worlds with more agents than they were trained with: `python benchmarks/more_agents.py RUN picture.png`.

RUN is a run of particles/MultiNavigator-v0 with 8 agents. Its policies act for 8 to 32, at the density of the training
(40 squared radii for each agent, so that the way to a target grows with the box) and in the same box (320 squared radii
for all). Prints a table and draws it: the mean over the seeds, and each seed.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from shoal.reports import figures
from shoal.runs.policies.evaluate import evaluate_run

AGENTS = (8, 16, 24, 32)
TRAINED_AGENTS, TRAINED_AREA = 8, 40.0  # squared radii for each agent
BOXES = {
    "equal density": lambda agents: TRAINED_AREA,
    "the same box": lambda agents: TRAINED_AREA * TRAINED_AGENTS / agents,
}
MEASURES = {
    "success": "share of agents at their targets",
    "collisions": "collisions of an agent in an episode",
}


def measure(run: str, episodes: int) -> dict[str, dict[str, np.ndarray]]:
    """Return for each kind of box and each measure the values [numbers of agents, seeds]."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for box, area in BOXES.items():
        rows: dict[str, list[list[float]]] = {name: [] for name in MEASURES}
        for agents in AGENTS:
            parameters = {"num_agents": agents, "area_per_agent": area(agents)}
            results = evaluate_run(run, None, episodes=episodes, **parameters)
            for name, values in rows.items():
                values.append([x[f"info_{name}"] for x in results["metrics"].values()])
            success = rows["success"][-1]
            cells = [str(agents), f"{area(agents):.3g}, {box}"]
            cells += [f"{np.mean(success):.3f}, {min(success):.3f}", f"{np.mean(rows['collisions'][-1]):.2f}"]
            print(f"| {' | '.join(cells)} |", flush=True)
        found[box] = {name: np.array(values) for name, values in rows.items()}
    return found


def draw(path: Path, found: dict[str, dict[str, np.ndarray]]) -> None:
    """Draw a panel for each measure, and a curve for each kind of box."""
    figure = figures.new_figure(9, 3.6)
    panels: Any = figure.subplots(1, len(MEASURES))
    for axes, (name, label) in zip(panels, MEASURES.items(), strict=True):
        for colour, (box, values) in zip(figures.COLOURS, found.items(), strict=False):
            axes.plot(AGENTS, values[name], color=colour, alpha=0.25, linewidth=0.7)
            axes.plot(AGENTS, values[name].mean(axis=1), color=colour, linewidth=2, marker="o", label=box)
        axes.set_xticks(AGENTS)
        axes.set_ylim(bottom=0)
        axes.set_xlabel("agents (8 in training)", color=figures.TEXT)
        axes.set_ylabel(label, color=figures.TEXT)
        figures.style(axes)
    figures.add_legend(panels[0])
    figures.save(figure, path)


def main() -> None:
    """Measure, print and draw."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("run")
    parser.add_argument("picture", type=Path)
    parser.add_argument("--episodes", type=int, default=64, help="of each seed")
    parsed = parser.parse_args()
    print("| agents | squared radii for each | success, worst seed | collisions |\n| --- | --- | --- | --- |")
    draw(parsed.picture, measure(parsed.run, parsed.episodes))


if __name__ == "__main__":
    main()
