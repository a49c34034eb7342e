"""Weights and Biases: a run for each series, as its own users know them."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shoal.base.errors import ShoalError, nearest
from shoal.monitor.loggers.fitted_names import FittedNames, take_note
from shoal.monitor.loggers.logged_settings import (
    as_text,
    check_folder,
    finite,
    flat_settings,
    folder,
    has_succeeded,
    main_series,
    require_package,
    result_numbers,
    split,
    title,
)
from shoal.monitor.loggers.logger import LoggedRun, Logger, Series
from shoal.records.directory import LOGGERS

OLDEST = "0.31"  # older ones store rows in blocks of 32 KiB alone, of which a kill loses the last
MODES = ("online", "offline", "disabled", "shared")
WITHOUT_KEY = ("offline", "disabled")
STEP = "global_step"  # the axis of all charts: W&B's own step restarts where a run is resumed
STORE_SECONDS = 5.0  # from one writing of rows to the disk to the next
SERVICE = "WANDB_SERVICE"  # in the environment: the service of a parent process, which ends with that
CONNECT_SECONDS = 20.0  # to which W&B adds some 10
# W&B's limits: of a project, of names, groups and tags, and of the names of numbers, by which it sorts and filters.
REFUSED_IN_PROJECTS = r"[/\\#?%:\r\n]"
REFUSED_IN_METRICS = r"[^A-Za-z0-9_./]"
NAME_LENGTH = 128  # also of a project and a group
TAG_LENGTH = 64  # also of a type of job
ONE_RUN = ("WANDB_RUN_ID", "WANDB_SWEEP_ID")  # in the environment: there is a run already, such as an agent's


class WandbLogger(Logger):
    """Logs each series as a run of its own, those of one training run in a group.

    Under an agent of a sweep, or where WANDB_RUN_ID names a run, only the series of all members is logged. Without a
    network it logs offline.

    Args:
      project, entity, group, name, notes, job_type, mode, dir: as of `wandb.init`.
      tags: a list such as "baseline,small".
    """

    settle_seconds = 2 * STORE_SECONDS

    def __init__(
        self,
        project: str = "",
        entity: str = "",
        group: str = "",
        name: str = "",
        notes: str = "",
        tags: str = "",
        job_type: str = "",
        mode: str = "",
        dir: str = "",
    ):
        self._name, self._group, self._mode, self._directory = name, group, mode, dir
        self._titles, self._tags = FittedNames(most=NAME_LENGTH), FittedNames(most=TAG_LENGTH)
        self._projects = FittedNames(REFUSED_IN_PROJECTS, NAME_LENGTH)
        self._job_type = self._tags(job_type)
        self._arguments = {
            "project": self._projects(project or os.environ.get("WANDB_PROJECT", "") or "shoal"),
            "entity": entity or None,
            "notes": notes or None,
            "tags": [self._tags(tag) for tag in split(tags)] or None,
        }
        self._runs: dict[str, Any] = {}

    def check(self) -> None:
        """Require the package, and a key where the mode needs one."""
        os.environ.pop(SERVICE, None)
        check_folder("wandb", self._directory)
        wandb = require_package("wandb", oldest=OLDEST)
        settings = wandb.setup().settings
        mode = self._mode or settings.mode
        if mode not in MODES:
            raise ShoalError(f"wandb.mode={mode!r} is none of {', '.join(MODES)}{nearest(mode, MODES)}.")
        if mode not in WITHOUT_KEY and not _has_key(settings):
            raise ShoalError(
                f"W&B has no API key for {settings.base_url}; `wandb login` stores one, and WANDB_MODE=offline logs "
                "without one."
            )

    def open(self, run: LoggedRun, state: Any) -> str:
        """Begin or resume a run of W&B for each series; offline where the server cannot be reached."""
        self._run, self._offline_reason = run, ""
        state = state or {}
        ids, self._names = state.get("ids", {}), FittedNames(REFUSED_IN_METRICS, known=state.get("names"))
        main = main_series(run)
        is_one_run = any(os.environ.get(name) for name in ONE_RUN)
        logged = [main] if is_one_run else [main, *(x for x in run.series if x != main)]
        if is_one_run:
            ids = {main.name: os.environ.get("WANDB_RUN_ID") or ids.get(main.name)}
        self._runs = {}
        for series in logged:
            self._runs[series.name] = self._connect(series, ids.get(series.name))
        self.note = take_note(self._projects, self._tags, self._titles)
        return self._place()

    def _place(self) -> str:
        first = next(iter(self._runs.values()))
        if first.disabled:
            return ""
        offline = [str(Path(x.dir).parent) for x in self._runs.values() if x.offline]
        if not offline:
            return str(first.url)
        reason = f" ({self._offline_reason})" if self._offline_reason else ""
        where = offline[0] if len(offline) == 1 else str(Path(offline[0]).parent / "offline-run-*")
        return f"offline{reason}, in {where}; `wandb sync {where}` sends it"

    def _connect(self, series: Series, number: str | None) -> Any:
        """Begin a run of W&B; offline, and all further ones too, where the server cannot be reached or refuses."""
        wandb = require_package("wandb")
        try:
            return self._begin(series, number)
        except (wandb.errors.CommError, TimeoutError) as error:
            if self._mode == "offline":
                raise
            self._offline_reason = str(error).strip().splitlines()[0].rstrip(".")
            self._mode = "offline"
            return self._begin(series, number)

    def _begin(self, series: Series, number: str | None) -> Any:
        wandb = require_package("wandb")
        trainer = self._run.process if series.is_main else None  # whose use of the machine is logged
        options: dict[str, object] = {"console": "off", "x_transaction_log_flush_interval": STORE_SECONDS}
        options["x_disable_stats"] = trainer is None
        options |= {} if trainer is None else {"x_stats_pid": trainer}
        options |= {} if os.environ.get("WANDB_INIT_TIMEOUT") else {"init_timeout": CONNECT_SECONDS}
        several = len(self._run.series) > 1
        run = wandb.init(
            **self._arguments,
            id=number,
            resume="allow",
            reinit="create_new",  # beside those of the other series
            name=self._titles(title(self._run, series, self._name)),
            group=self._titles(self._group or self._run.path.name * several) or None,
            job_type=self._job_type or (series.kind if several else None),
            mode=self._mode or None,
            dir=self._folder(),
            config=flat_settings(self._run, series),
            settings=wandb.Settings(stop_fn=self._ask_to_stop, **options),
        )
        run.define_metric("*", step_metric=STEP)
        return run

    def _folder(self) -> str | None:
        """Return the directory in which W&B makes its own, named `wandb`; None for that of WANDB_DIR."""
        if not self._directory and os.environ.get("WANDB_DIR"):
            return None
        parent = folder(self._run, "wandb", self._directory) if self._directory else self._run.path / LOGGERS
        parent.mkdir(parents=True, exist_ok=True)
        return str(parent)

    def _ask_to_stop(self) -> None:
        """Receive what W&B would interrupt the main thread for: its stop button, or the end of a sweep's run."""
        self.stop = "stopped in W&B"

    def add_scalars(self, series: Series, step: int, numbers: Mapping[str, float], time: float) -> None:
        """Log the numbers; those that are not finite are left out."""
        run, values = self._runs.get(series.name), finite(numbers)
        if run is not None and values:
            named = {self._names(key): x for key, x in values.items()}
            run.log(finite({"_timestamp": time}) | named | {STEP: step})
            self.note = take_note(self._names) or self.note

    def add_file(self, kind: str, path: Path, step: int) -> None:
        """Log a film, a picture, or a policy as an artifact; W&B has the settings already."""
        wandb = require_package("wandb")
        run = self._runs[main_series(self._run).name]
        if kind == "film":
            run.log({"film": wandb.Video(str(path), format="gif"), STEP: step})
        elif kind == "picture":
            run.log({path.stem: wandb.Image(str(path)), STEP: step})
        elif kind == "policy":
            log_policy(run, path)

    def flush(self) -> dict[str, object]:
        """Return the numbers of the runs of W&B, and the names that differ there."""
        return {"ids": {key: x.id for key, x in self._runs.items()}, "names": self._names.changed}

    def close(self, summary: Mapping[str, Any] | None) -> None:
        """Finish each run of W&B: as finished, or as crashed where the run was interrupted or all members failed."""
        main = self._runs[main_series(self._run).name]
        main.summary.update(result_numbers(summary))
        if summary is not None and "stopped" in summary:
            main.summary["stopped"] = as_text(summary["stopped"])
        for run in self._runs.values():
            run.finish(exit_code=0 if has_succeeded(self._run, summary) else 1)
        self._runs = {}
        wandb = require_package("wandb")
        wandb.teardown()  # waits until its service has stored all, since that ends with this process


def log_policy(run: Any, path: Path) -> None:
    """Log the best policies as an artifact of a run of W&B."""
    wandb = require_package("wandb")
    artifact = wandb.Artifact(f"policy-{run.id}", type="model")
    artifact.add_file(str(path))
    run.log_artifact(artifact, aliases=["best"])


def _has_key(settings: Any) -> bool:
    """Report whether `wandb.init` will find a key or a token, without using a network.

    Raises:
      ShoalError: a key is of another form.
    """
    if os.environ.get("WANDB_API_KEY") or os.environ.get("WANDB_IDENTITY_TOKEN_FILE") or settings.api_key:
        return True
    auth = require_package("wandb", "wandb.sdk.lib.wbauth")
    try:
        return auth.read_netrc_auth(host=settings.base_url) is not None
    except Exception as error:
        raise ShoalError(
            f"W&B's API key cannot be used: {error}; `wandb login` stores another one."
        ) from error
