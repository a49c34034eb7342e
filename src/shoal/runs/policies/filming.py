"""Films of the policies of a run in progress, made from its checkpoints by a process beside it."""

import contextlib
import dataclasses
import os
import queue
import shutil
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from shoal.base import cpu
from shoal.base.errors import ShoalError
from shoal.envs.base import can_render
from shoal.monitor.companions import Companion, Trainer
from shoal.records.array_file import SUFFIX
from shoal.records.checkpoints import CHECKPOINTS, Checkpoints
from shoal.records.directory import CONFIG, FILMS
from shoal.records.json_files import read_json
from shoal.records.members import members_of_config
from shoal.records.run_config import RunConfig
from shoal.runs.plan.experiment import Experiment

POLL_SECONDS = 0.2
PENDING = ".pending"  # a folder of the checkpoints that are not filmed yet
PRIORITY = 10  # as `nice` counts: training comes first
EPISODES = 1


def companions_of(run: RunConfig, every: int) -> tuple[Companion, ...]:
    """Return the process that films a run each time a number of environment steps was made; none for 0."""
    if not every:
        return ()
    request = {"every": run.updates_in(every) * run.steps_per_update}  # whole updates
    later = "`shoal log {path}` sends the last films to loggers when it has"
    name = "the maker of films"
    return (Companion(name, name, __name__, request, later, {"JAX_PLATFORMS": "cpu"}),)


def with_checkpoints(experiment: Experiment, every: int) -> Experiment:
    """Let a run that is filmed have checkpoints at these steps, unless it has them at others already.

    Raises:
      ShoalError: it has no checkpoints, or its environment cannot be drawn.
    """
    if every < 0:
        raise ShoalError(f"film_every={every} is out of bounds: it must be at least 0.")
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


def follow(trainer: Trainer) -> Mapping[str, object]:
    """Film until the run has ended, and its last checkpoint then."""
    path = trainer.await_run()
    cpu.lower_priority(PRIORITY)
    _film_all(path, trainer.request["every"], trainer.ended, trainer.tell)
    return {"complete": True}


class _Keeper:
    """Keeps the checkpoints that are due until they are filmed, since the run removes old ones.

    It makes a run directory of links to them, which policies are loaded from.
    """

    def __init__(self, path: Path, every: int):
        self._checkpoints, self._every = Checkpoints(path), every
        self.path = path / FILMS / PENDING
        shutil.rmtree(self.path, ignore_errors=True)  # of a process that was killed
        (self.path / CHECKPOINTS).mkdir(parents=True)
        shutil.copyfile(path / CONFIG, self.path / CONFIG)
        filmed = (int(x.stem) for x in (path / FILMS).glob("*.gif") if x.stem.isdecimal())
        self._newest = max(filmed, default=0)
        self.due: queue.SimpleQueue[int] = queue.SimpleQueue()

    def keep(self) -> None:
        """Keep the first checkpoint at or after each multiple of the steps."""
        for steps in self._checkpoints.steps():
            if steps // self._every > self._newest // self._every:
                source = self._checkpoints.path / f"{steps}{SUFFIX}"
                with contextlib.suppress(FileNotFoundError):  # it was removed before
                    _link(source, self.path / CHECKPOINTS / source.name)
                    self._newest = steps
                    self.due.put(steps)

    def watch(self, ended: threading.Event) -> None:
        """Keep checkpoints until the run has ended; called in a thread."""
        while not ended.wait(POLL_SECONDS):
            self.keep()


def _link(source: Path, target: Path) -> None:
    try:
        os.link(source, target)
    except OSError:  # a file system without links; a checkpoint that was removed cannot be copied either
        shutil.copyfile(source, target)


def _film_all(path: Path, every: int, ended: threading.Event, tell: Callable[..., None]) -> None:
    """Film the checkpoints that are due until the run has ended, and `tell` a `note` of each film."""
    keeper = _Keeper(path, every)
    watcher = threading.Thread(target=keeper.watch, args=(ended,), daemon=True)
    watcher.start()
    while True:
        is_last = ended.is_set()
        if is_last:
            watcher.join()
            keeper.keep()  # the last checkpoint may be newer than the watcher's last look
        try:
            tell(note=_film(path, keeper, keeper.due.get(timeout=0.0 if is_last else POLL_SECONDS)))
        except queue.Empty:
            if is_last:
                break
    shutil.rmtree(keeper.path, ignore_errors=True)


def _film(path: Path, keeper: _Keeper, steps: int) -> str:
    """Film the policy of the first member at a checkpoint, and return a line about the film."""
    from shoal.runs.policies.evaluate import render  # noqa: PLC0415 (its seconds are the first film's)
    from shoal.runs.policies.load import load  # noqa: PLC0415

    first = members_of_config(read_json(path / CONFIG))[0]
    policy = load(keeper.path, checkpoint=steps, seed=first.seed, label=first.label or None)
    film = path / FILMS / f"{steps}.gif"
    render(policy, film, episodes=EPISODES, progress=False)
    return f"film of {steps:,} environment steps: {film}"
