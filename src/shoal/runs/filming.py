"""Films of the policies of a run in progress, made from its checkpoints by a process beside it.

-> {"every": 100000, "folder": "..."}
<- {"ready": ""}
-> {"run": "runs/first"}
<- {"note": "runs/first/films/100000.gif"}
-> (the pipe ends)
"""

import contextlib
import dataclasses
import json
import sys
import threading
from pathlib import Path
from typing import Any

from shoal.base import cpu
from shoal.base.errors import ShoalError
from shoal.base.imports import find_user_modules
from shoal.disk.checkpoints import Checkpoints
from shoal.disk.directory import CONFIG, FILMS
from shoal.disk.json_files import read_json
from shoal.engine.population.members import members_of_config
from shoal.envs.base import can_render
from shoal.runs.plan import Experiment
from shoal.show.companions import Companion

POLL_SECONDS = 1.0
PRIORITY = 10  # as `nice` counts: training comes first
EPISODES = 1


def companions_of(every: int) -> tuple[Companion, ...]:
    """Return the process that films a run each time a number of environment steps was made; none for 0."""
    later = "shoal eval {path} --render film.gif"
    return (Companion("films", __name__, {"every": every}, later, {"JAX_PLATFORMS": "cpu"}),) if every else ()


def with_checkpoints(experiment: Experiment, every: int) -> Experiment:
    """Let a run that is filmed have checkpoints at these steps, unless it has them at others already.

    Raises:
      ShoalError: it has no checkpoints, or its environment cannot be drawn.
    """
    if not every:
        return experiment
    if not can_render(experiment.environment):
        raise ShoalError(
            f"film_every={every} has no effect: {experiment.environment_name} has no method render, so that it cannot "
            "be drawn."
        )
    if not experiment.run.checkpoints:
        raise ShoalError(f"film_every={every} needs checkpoints, which checkpoints=False leaves out.")
    if experiment.run.checkpoint_every != -1:
        return experiment
    return dataclasses.replace(experiment, run=dataclasses.replace(experiment.run, checkpoint_every=every))


def main() -> None:
    """Film until the pipe ends, and the last checkpoint then."""
    request = json.loads(sys.stdin.readline())
    find_user_modules(request["folder"])
    _tell(ready="")
    if not (told := sys.stdin.readline()):
        return
    cpu.lower_priority(PRIORITY)
    ended = threading.Event()
    threading.Thread(target=_wait_for_end, args=(ended,), daemon=True).start()
    try:
        _follow(Path(json.loads(told)["run"]), request["every"], ended)
    except ShoalError as error:
        _tell(error=str(error))
    _tell(ended=True)


def _wait_for_end(ended: threading.Event) -> None:
    sys.stdin.read()
    ended.set()


def _tell(**message: Any) -> None:
    with contextlib.suppress(OSError):
        print(json.dumps(message), flush=True)


def _follow(path: Path, every: int, ended: threading.Event) -> None:
    """Film the first checkpoint at or after each multiple of some environment steps, as long as it is there."""
    (path / FILMS).mkdir(exist_ok=True)
    checkpoints = Checkpoints(path)
    filmed = max((int(x.stem) for x in (path / FILMS).glob("*.gif") if x.stem.isdecimal()), default=-1)
    while True:
        is_last = ended.is_set()
        due = [steps for steps in checkpoints.steps() if steps // every > filmed // every and steps > 0]
        if due:
            filmed = due[0]
            _film(path, filmed)
        elif is_last:
            return
        else:
            ended.wait(POLL_SECONDS)


def _film(path: Path, steps: int) -> None:
    """Film the policy of the first member at a checkpoint; one that was removed meanwhile is left out."""
    from shoal.runs.evaluate import render  # noqa: PLC0415 (its seconds are the first film's)
    from shoal.runs.load import load  # noqa: PLC0415

    first = members_of_config(read_json(path / CONFIG))[0]
    try:
        policy = load(path, checkpoint=steps, seed=first.seed, label=first.label or None)
    except ShoalError:
        if steps in Checkpoints(path).steps():
            raise
        return
    film = path / FILMS / f"{steps}.gif"
    render(policy, film, episodes=EPISODES, progress=False)
    _tell(note=f"film of {steps:,} environment steps: {film}")
