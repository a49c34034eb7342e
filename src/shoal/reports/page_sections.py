"""The sections of a report about one run or sweep."""

import json
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shoal.base.numbers import format_duration, format_interval, format_number
from shoal.records import scores
from shoal.records.json_files import read_json, report_wrong_types
from shoal.reports.markup import Markup, breakable, element, join, scroll, table
from shoal.reports.page_files import films_of, inline, pictures_of
from shoal.reports.record_curves import ranking
from shoal.reports.run_html import members_table, returns_of, settings_table
from shoal.reports.run_record import RunRecord, scores_by_label
from shoal.reports.sweep_record import SweepRecord

OPEN_ROWS = 20  # of a table; a longer one is folded
MAX_RANKED = 100  # settings of a sweep in its table
SCHEDULE = "schedule.json"
PARTS = ("seeds", "seed", "total_steps", "run_dir", "name", "tag", "note")  # said elsewhere in the page


def folded(title: str, content: Markup, *, is_open: bool = False) -> Markup:
    """Make a part of the page that a reader opens."""
    return element("details", element("summary", title), content, open=is_open)


def part(title: str, *content: Markup) -> Markup:
    """Make a part of a section with a heading; nothing where there is no content."""
    return element("section", element("h3", title), *content) if any(content) else Markup()


def record_section(
    place: int, name: str, record: RunRecord | SweepRecord, film_bytes: float, charts: Markup
) -> tuple[Markup, float]:
    """Make the section of a record.

    Args:
      charts: that are of this record alone.
      film_bytes: that films and pictures may take.
    Returns:
      the section, and the bytes that remain for the films of others.
    """
    run = record if isinstance(record, RunRecord) else None
    pictures, film_bytes = inline(pictures_of(record.path), film_bytes)
    films, film_bytes = inline(films_of(record.path), film_bytes)
    summary = record.summary or {}
    with report_wrong_types(f"a file of {str(record.path)!r}"):
        content = [
            _facts(record),
            _sentences(record),
            charts,
            part("Returns", _returns(run) if run else Markup(), _ranked(record)),
            part(f"Settings that differ from {_base_of(run)}" if run else "Best setting", _settings(record)),
            part("Films", films),
            part("Lineage" if record.kind == "pbt" else "Pictures", pictures, _schedule(record)),
            part("Origin", _origin(run) if run else Markup()),
            part("Make it again", _command(record)),
            _versions(summary),
            _preset(run) if run else Markup(),
            _all_settings(run) if run else Markup(),
        ]
    return element(
        "section", element("h2", breakable(name)), *content, id=f"run-{place}", class_="run"
    ), film_bytes


def _facts(record: RunRecord | SweepRecord) -> Markup:
    """Make the list of a record's most important numbers."""
    summary, score = record.summary or {}, record.score
    facts: list[tuple[str, str]] = [
        ("Environment", record.environment),
        ("Algorithm", record.algorithm),
        ("State", record.state),
        ("Members" if record.kind != "run" else "Seeds", f"{record.num_members:,}"),
        ("Steps of each", f"{record.steps:,}"),
    ]
    if score is not None:
        facts.append(("Score (IQM)", format_number(score.iqm, score.interval)))
        if score.interval:
            facts.append(("95% interval", format_interval(score.interval)))
    if record.kind == "pbt" and (best := summary.get("best")):
        facts.append(("Best member", f"seed {best['seed']}: {format_number(best['score'])}"))
    if isinstance(record, RunRecord):
        values, failed = record.scores()
        if not record.config.get("variants") and len(known := values[~np.isnan(values)]):
            facts.append(("Worst seed", format_number(float(known.min()), score and score.interval)))
        if failed.any():
            facts.append(("Failed", f"{int(failed.sum())} of {len(failed)}"))
    if summary.get("steps_per_second"):
        facts.append(("Steps per second", f"{summary['steps_per_second']:,.0f}"))
    if summary.get("seconds"):
        facts.append(("Training time", format_duration(summary["seconds"]["train"])))
    facts.append(("Started", f"{record.date:%Y-%m-%d %H:%M} UTC"))
    return element(
        "dl",
        *(element("div", element("dt", x), element("dd", breakable(y))) for x, y in facts),
        class_="facts",
    )


def _sentences(record: RunRecord | SweepRecord) -> Markup:
    """Make the sentences that qualify the numbers of a record."""
    summary, score = record.summary or {}, record.score
    found = [record.note] if record.note else []
    found += [f"Tags: {', '.join(record.tags)}."] if record.tags else []
    if record.summary is None:
        states = {"training": "is being trained", "interrupted": "was interrupted, and can be resumed"}
        found.append(
            f"The {record.kind} {states.get(record.state, record.state)}: its numbers are those so far."
        )
    if score is None:
        found.append("There is no score: it was not evaluated, or every seed failed.")
    elif score.label:
        found.append(f"The score is that of the best setting, {score.label}.")
    if isinstance(record, RunRecord) and record.kind == "run" and score is not None:
        note = scores.few_seeds_note(_num_seeds(record))
        found += [f"{note[:1].upper()}{note[1:]}."] if note else []
    if record.kind == "pbt":
        found.append("The members copy each other: they are one run, and not independent seeds.")
    if agents := summary.get("agents"):
        found.append(f"A return is the {agents['team_return']} over {agents['count']} agents.")
    if summary.get("stopped"):
        found.append(f"The run was stopped: {summary['stopped']}")
    if isinstance(summary.get("score"), Mapping):
        found.append(f"The score {summary['score'].get('name')} chose the best policies.")
    found += [f"{note[:1].upper()}{note[1:]}." for note in summary.get("notes", ())]
    return join(element("p", sentence) for sentence in found)


def _num_seeds(run: RunRecord) -> int:
    best = ranking(run)[:1]
    return sum(member.label in best for member in run.members)


def _returns(record: RunRecord) -> Markup:
    """Make the table of a run's members."""
    finished = record.summary if record.progress is None else None
    values, failed = record.scores()
    columns = returns_of(finished) or {"last evaluation": values.tolist()}
    rows = scroll(members_table(record.members, columns, np.flatnonzero(failed).tolist()))
    return _folded_if_long(f"Returns of all {record.num_members:,} members", rows, record.num_members)


def _folded_if_long(title: str, content: Markup, rows: int, *, is_open: bool = False) -> Markup:
    return content if rows <= OPEN_ROWS else folded(title, content, is_open=is_open)


def _ranked(record: RunRecord | SweepRecord) -> Markup:
    """Make the tables of settings, the best first; nothing for a run of one setting."""
    summary = record.summary or {}
    runs = [record] if isinstance(record, RunRecord) else record.runs
    tables = []
    if isinstance(record, SweepRecord) and summary.get("confirmed"):
        tables.append(_ranking("Best settings on new seeds", summary["confirmed"]))
    if summary.get("members") and record.kind != "pbt":
        tables.append(_ranking("Settings, the best first", summary["members"]))
    elif record.kind != "pbt" and any(ranking(record)):
        ranked = scores.rank_settings(scores_by_label(runs))
        entries = [
            {
                "label": label,
                "seeds": x.scores,
                "absolute": {"iqm": x.iqm, "interval": scores.score_interval(np.asarray(x.scores))},
                "failed": [None] * x.failures,
            }
            for label, x in ranked.items()
        ]
        tables.append(_ranking("Settings so far, the best first", entries))
    return join(tables)


def _ranking(caption: str, entries: Sequence[Mapping[str, Any]]) -> Markup:
    more = len(entries) - MAX_RANKED
    note = element("p", f"And {more:,} more, in members.csv of the sweep.") if more > 0 else Markup()
    content = join([scroll(settings_table(caption, entries[:MAX_RANKED])), note])
    return _folded_if_long(caption, content, len(entries), is_open=True)


def _settings(record: RunRecord | SweepRecord) -> Markup:
    """Make the table of the settings that differ, and of those that population-based training changes."""
    rows = [[name, _text(value)] for name, value in record.settings.items()]
    if isinstance(record, RunRecord):
        tuned = record.config.get("evolution", {}).get("tuned", ())
        rows += [[x["name"], f"{x['low']:g} to {x['high']:g} ({x['scale']}), tuned"] for x in tuned]
    return scroll(table("Settings", ("setting", "value"), rows)) if rows else element("p", "None.")


def _base_of(record: RunRecord) -> str:
    """Name what the settings of a run differ from; which of both it was, older runs do not say."""
    names, preset = f"{record.algorithm} in {record.environment}", record.config.get("preset")
    if preset is None:
        return f"the preset of {names}, or the defaults"
    return f"the preset of {names}" if preset else f"the defaults of {record.algorithm}"


def _preset(record: RunRecord) -> Markup:
    """Make the folded table of the settings of the preset as it was; nothing where there was none."""
    rows = [[name, _text(value)] for name, value in (record.config.get("preset") or {}).items()]
    title = f"Settings of {_base_of(record)}, which differ from the defaults of {record.algorithm}"
    return _folded_table(title, ("setting", "value"), rows)


def _folded_table(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> Markup:
    return folded(title, scroll(table(title, head, rows))) if rows else Markup()


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _schedule(record: RunRecord | SweepRecord) -> Markup:
    """Make the table of the schedule that population-based training found."""
    if record.kind != "pbt" or not (record.path / SCHEDULE).is_file():
        return Markup()
    points = read_json(record.path / SCHEDULE)["schedule"]
    names = list(points[0]["settings"])
    rows = [[f"{x['step']:,}", *(f"{x['settings'][name]:.4g}" for name in names)] for x in points]
    head = ("environment steps", *names)
    content = scroll(table("Schedule of the best policy: settings from some steps on", head, rows, head))
    return _folded_if_long("Schedule of the best policy", content, len(rows))


def _origin(record: RunRecord) -> Markup:
    """Make the sentences about where a run started from, and the changes of its settings while it was trained."""
    config, found = record.config, []
    if config.get("from"):
        step = f", at step {config['from_step']}" if config.get("from_step") else ""
        found.append(element("p", f"Started from the parameters of {config['from']}{step}."))
    if source := config.get("resumed_from"):
        step = f"{source['step']:,}" if isinstance(source["step"], int) else str(source["step"])
        found.append(element("p", f"Continues {source['run']} from its checkpoint at step {step}."))
    rows = [
        [f"{entry['step']:,}", name, _text(old), _text(new)]
        for entry in config.get("history", ())
        for name, (old, new) in entry["changes"].items()
    ]
    if rows:
        head = ("environment steps", "setting", "before", "after")
        found.append(scroll(table("Settings changed while the run was trained", head, rows, head[:1])))
    return join(found)


def _versions(summary: Mapping[str, Any]) -> Markup:
    """Make the table of versions, machine and times of a finished run."""
    rows = [[name, str(value)] for name, value in summary.get("versions", {}).items()]
    rows += [["revision", summary["revision"]]] if summary.get("revision") else []
    if device := summary.get("device"):
        rows.append(["devices", f"{device['count']} of {device['platform']} ({device['kind']})"])
    facts = ("host", "started_time", "ended_time")
    rows += [[name.replace("_time", ""), summary[name]] for name in facts if summary.get(name)]
    rows += [[f"seconds: {name}", f"{x:,.2f}"] for name, x in summary.get("seconds", {}).items()]
    if summary.get("costs"):
        rows.append(["parameters", f"{summary['costs']['parameters']:,}"])
    return _folded_table("Versions and machine", ("what", "value"), rows)


def _command(record: RunRecord | SweepRecord) -> Markup:
    """Make the command that trains a record again; of a sweep that has ended, its best setting."""
    path, command = shlex.quote(str(record.path)), (record.summary or {}).get("command")
    if isinstance(record, SweepRecord):
        if not command:
            return Markup()
        return join([element("p", "The best setting alone is trained by"), element("pre", command)])
    if not command or command.startswith("shoal resume "):  # which would not begin at the start
        command = f"shoal {'pbt --replay' if record.kind == 'pbt' else 'train --config'} {path}"
    changed = (
        "Settings were changed while it was trained, as said above; this trains by the last ones throughout:"
    )
    notes = [element("p", changed)] if record.config.get("history") else []
    return join([*notes, element("pre", command, tabindex="0")])


def _all_settings(record: RunRecord) -> Markup:
    """Make the folded table of every setting of `config.json`."""
    rows = []
    for name in ("environment", "algorithm", "run"):
        entries = record.config[name]
        entries = entries["parameters"] if name == "environment" else entries
        rows += [[key, _text(value)] for key, value in entries.items() if key not in PARTS]
    return folded("All settings", scroll(table("All settings of config.json", ("setting", "value"), rows)))
