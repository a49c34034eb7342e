"""Reports: one page that opens without a network, of runs and sweeps in every state."""

import base64
import hashlib
import html.parser
import itertools
import json
import math
import re
import shlex
import shutil
import subprocess
import sys

import numpy as np
import pytest

from shoal import cli
from shoal.base.errors import ShoalError
from shoal.base.numbers import format_interval, format_number
from shoal.records.lock import Lock
from shoal.records.members import members_of
from shoal.reports import learning_curves, page, run_html
from shoal.reports.markup import breakable, element, table, void
from shoal.reports.page import report

EVIL = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>&\"'"
BROWSER = shutil.which("chromium-headless-shell")


class Page(html.parser.HTMLParser):
    """The elements of a page, and the text of each kind of element."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.texts, self.open = [], {}, []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag not in ("meta", "img"):
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_endtag(self, tag):
        while self.open and self.open.pop() != tag:
            pass

    def handle_data(self, data):
        for tag in self.open:
            self.texts[tag][-1] += data

    def attributes(self, tag):
        return [attributes for name, attributes in self.tags if name == tag]


def rows_of(count, points, **entries):
    """Rows of evaluations of some seeds."""
    return [
        {
            "kind": "evaluation",
            "step": 1000 * p,
            "updates": p,
            "time": 1e9,
            "seed": k,
            "return_mean": 123.456789 * np.sin(k + p / 9),
            **entries,
        }
        for p in range(points)
        for k in range(count)
    ]


def write_rows(path, rows):
    (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def make(tmp_path):
    """A function that writes a report, and returns its text."""

    def make(runs, **options):
        out = report(runs, tmp_path / "report.html", force=True, **options)
        assert [x.name for x in tmp_path.iterdir() if x.name.endswith(".tmp")] == []
        return out.read_text()

    return make


@pytest.mark.full
def test_a_trained_run_has_all_parts(make, real_run):
    text = make(real_run)
    found = Page(text)
    assert found.texts["h1"] == ["real: CartPole-v1"]
    assert found.texts["h2"] == ["real"]
    assert found.texts["h3"][0] == "Learning curves in CartPole-v1"
    assert "Versions and machine" in found.texts["summary"] and "Make it again" in found.texts["h3"]
    for said in ("Tags: a, b.", "no interval from 2 seeds", "why"):
        assert said.lower() in text.lower()
    assert found.texts["pre"] == [f"shoal train --config {real_run.path}"]
    assert all(real_run.summary["versions"][name] in text for name in ("jax", "numpy"))
    data = json.loads(found.texts["script"][0])
    (curve,) = data["charts"][0]
    assert curve["steps"] == [step for step, _ in real_run.evaluations] and curve["low"] is None
    np.testing.assert_allclose(
        np.transpose([line["values"] for line in curve["lines"]]),
        [x["return_mean"] for _, x in real_run.evaluations],
        rtol=1e-4,
    )


def test_the_command_of_the_summary_is_shown(make, write_run):
    found = Page(make(write_run("a", summary={"command": "shoal train A --note '<b>'"})))
    assert found.texts["pre"] == ["shoal train A --note '<b>'"]


def test_the_command_quotes_a_path_with_blanks(make, write_run):
    (command,) = Page(make(write_run("two words"))).texts["pre"]
    *words, path = shlex.split(command)
    assert words == ["shoal", "train", "--config"] and path.endswith("/two words")


def test_a_resumed_run_has_no_command_of_its_own(make, write_run):
    history = [{"step": 100, "changes": {"learning_rate": [0.1, 0.25]}}]
    path = write_run("a", config={"history": history}, summary={"command": "shoal resume a"})
    text = make(path)
    assert Page(text).texts["pre"] == [f"shoal train --config {path}"]
    assert "Settings were changed while it was trained" in text


def test_the_page_is_small_and_the_same_each_time(make, write_run):
    path = write_run("ten", range(10))
    write_rows(path, rows_of(10, 51))
    text = make(path)
    assert len(text.encode()) < 150_000
    assert text == make(path)


@pytest.mark.slow
def test_the_numbers_of_a_curve_have_the_digits_of_its_interval(make, write_run):
    path = write_run("ten", range(10))
    write_rows(path, rows_of(10, 5))
    (curve,) = json.loads(Page(make(path)).texts["script"][0])["charts"][0]
    for text, ends, middle in zip(curve["texts"], curve["intervals"], curve["middle"], strict=True):
        low, high = map(float, ends.strip("[]").split(", "))
        assert (text, ends) == (format_number(middle, (low, high)), format_interval((low, high)))
    (curve,) = json.loads(Page(make(write_run("two"))).texts["script"][0])["charts"][0]
    assert curve["texts"] == ["0", "1.000", "2.000"] and curve["intervals"] == [""] * 3


@pytest.mark.slow
def test_256_members_are_drawn_as_quantiles(make, write_run):
    path = write_run("many", range(256))
    write_rows(path, rows_of(256, 210))
    text = make(path)
    data = json.loads(Page(text).texts["script"][0])
    assert [line["name"] for line in data["charts"][0][0]["lines"]] == list(learning_curves.QUANTILES)
    assert len(data["charts"][0][0]["steps"]) == learning_curves.MAX_POINTS
    assert "256 seeds; thin lines are quantiles" in text and "Returns of all 256 members" in text
    assert len(text.encode()) < 200_000


def test_the_policy_comes_first_and_names_the_script(make, write_run):
    text = make(write_run("a"))
    head = Page(text).attributes("meta")
    assert head[0] == {"charset": "utf-8"} and head[1]["http-equiv"] == "Content-Security-Policy"
    script = re.search(r"<script>(.*?)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}';" in head[1]["content"]
    assert head[1]["content"].startswith("default-src 'none'; ")
    addresses = re.findall(r'(?:src|href)="(?!data:|#)([^"]*)"', text)
    assert addresses == [] and "@import" not in text and "url(" not in text.replace("url(#", "")


def test_it_can_be_read_without_sight_and_without_scripts(make, write_run):
    path = write_run("a", (1.0, 2.0))
    (path / "lineage.png").write_bytes(b"\x89PNG")
    text = make([path, write_run("b")])
    found = Page(text)
    assert all(x.get("alt") for x in found.attributes("img"))
    assert all(x.get("aria-label") for x in found.attributes("svg")) and found.attributes("svg")
    assert len(found.attributes("caption")) == len(found.attributes("table"))
    assert len(found.attributes("html")) == 1 and found.attributes("html")[0]["lang"] == "en"
    levels = [int(tag[1]) for tag, _ in found.tags if re.fullmatch("h[1-6]", tag)]
    assert levels[0] == 1 and all(b - a <= 1 for a, b in itertools.pairwise(levels))
    assert "Evaluations of a" in " ".join(found.texts["caption"])
    numbers = [attributes for tag, attributes in found.tags if tag == "td" and attributes.get("class") == "n"]
    assert numbers and ".n { text-align: right;" in text


def write_evil(write_run):
    variants = [{"label": f"{EVIL}{k}", "settings": {"gamma": 0.5}} for k in range(2)]
    run = {"name": EVIL, "note": EVIL, "tag": [EVIL], "eval_mode": EVIL}
    config = {"variants": variants, "history": [{"step": 5, "changes": {EVIL: [EVIL, 1]}}], "from": EVIL}
    path = write_run("evil", finished=False, run=run, config={**config, "settings": {EVIL: EVIL}})
    rows = [row for x in variants for row in rows_of(2, 3, label=x["label"])]
    write_rows(path, rows)
    return path


def test_what_users_write_is_text(make, write_run):
    text = make([write_evil(write_run), write_run("b", summary={"command": EVIL, "stopped": EVIL})])
    found = Page(text)
    assert len(found.attributes("script")) == 2 and found.attributes("img") == []
    assert "<img" not in text and EVIL in found.texts["body"][0]
    json.loads(found.texts["script"][0])


@pytest.mark.quick("_hidden")
@pytest.mark.parametrize("name", ["_hidden", "$\\frac{1$", "数据", "a" * 300, "two\nlines", " "])
def test_any_name_has_a_curve(make, write_run, name):
    text = make([write_run("a", run={"name": name}), write_run("b")])
    assert (
        text.count("<svg") == 1 and name in json.loads(Page(text).texts["script"][0])["charts"][0][0]["name"]
    )


def test_a_half_surrogate_is_replaced(make, write_run):
    assert "a?b" in make(write_run("a", run={"note": "a\ud800b"}))


def test_a_killed_run(make, write_run):
    path = write_run("killed", (4.0, 8.0), finished=False)
    text = make(path)
    assert "was interrupted, and can be resumed: its numbers are those so far" in text
    assert "last evaluation" in text and ">6.000<" in text
    (path / "metrics.jsonl").unlink()
    text = make(path)
    assert "There is no score" in text and "<svg" not in text


def test_a_run_in_training(make, write_run):
    path = write_run("training", finished=False)
    with Lock(path):
        assert "The run is being trained" in make(path)


@pytest.mark.parametrize("failed", [[1], [0, 1]])
def test_seeds_that_failed(make, write_run, failed):
    path = write_run("failed", (4.0, 8.0), failed=failed)
    rows = rows_of(2, 5)
    for row in rows:
        if row["seed"] in failed and row["step"] > 2000:
            row["return_mean"] = None
    write_rows(path, rows)
    text = make(path)
    curve = json.loads(Page(text).texts["script"][0])["charts"][0][0]
    assert [line["failed"] for line in curve["lines"]] == [k in failed for k in (0, 1)]
    ends = [
        x is None for x in curve["middle"]
    ]  # of two seeds none is cut: a failed one makes the mean the worst
    assert text.count("; a cross is where a seed failed.") == 1
    assert ends == ([True] * 5 if len(failed) == 2 else [False] * 3 + [True] * 2)
    assert f"2 seeds, of which {len(failed)} failed" in text and text.count("<td>failed</td>") == len(failed)
    assert ("There is no score" in text) == (len(failed) == 2)


def test_a_run_without_evaluations(make, write_run):
    path = write_run("none", summary={"absolute": None, "final": None})
    write_rows(path, [])
    assert "There is no score" in make(path)


def test_population_based_training(make, write_run):
    tuned = {"name": "learning_rate", "scale": "log", "low": 1e-6, "high": 1.0, "start": [1e-5, 1e-4]}
    best = {"seed": 1, "score": 7.0, "steps": 100, "settings": {"learning_rate": 0.1}}
    schedule = [{"updates": 0, "step": 0, "settings": {"learning_rate": 0.25}}]
    path = write_run(
        "pbt",
        range(5),
        config={"evolution": {"tuned": [tuned]}},
        summary={"members": [best], "best": best},
        schedule={"member": 1, "ancestors": [], "schedule": schedule},
    )
    text = make(path)
    assert "seed 1: 7.000" in text and "1e-06 to 1 (log), tuned" in text and ">0.25<" in text
    assert "they are one run" in text and "shoal pbt --replay" in text
    assert json.loads(Page(text).texts["script"][0])["charts"][0][0]["low"] is None  # has no interval


def test_several_agents(make, write_run):
    summary = {"agents": {"count": 3, "team_return": "sum", "agent_steps_per_seed": 600}}
    assert "A return is the sum over 3 agents." in make(write_run("a", summary=summary))


def test_where_a_run_came_from(make, write_run):
    config = {
        "from": "runs/first",
        "from_step": "best",
        "resumed_from": {"run": "runs/second", "step": 1234},
        "history": [{"step": 100, "changes": {"learning_rate": [0.1, 0.25]}}],
    }
    text = make(write_run("a", config=config))
    assert "Started from the parameters of runs/first, at step best." in text
    assert "Continues runs/second from its checkpoint at step 1,234." in text
    assert "<td>0.1</td><td>0.25</td>" in text


@pytest.mark.parametrize("finished", [True, False])
def test_a_sweep(make, write_sweep, finished):
    text = make(write_sweep("grid", finished=finished))
    assert ("Settings so far, the best first" in text) and "1 b" in text
    labels = [curve["name"] for curve in json.loads(Page(text).texts["script"][0])["charts"][0]]
    assert labels == ["0 a"]  # the one that was trained again on new seeds


def test_a_sweep_without_a_confirmation_and_its_table(make, write_sweep):
    path = write_sweep("grid", options={"storage": ""})
    shutil.rmtree(path / "confirmation")
    score = {"iqm": 2.0, "interval": [1.0, 3.0], "returns": [1.0, 3.0]}
    members = [
        {"label": label, "seeds": [0, 1], "absolute": score, "failed": [1]} for label in ("1 b", "0 a")
    ]
    best = {"label": "1 b", "run": "runs/000", "settings": {"gamma": 0.5}, "score": {**score, "seeds": [0]}}
    (path / "summary.json").write_text(json.dumps({"best": best, "members": members, "command": "shoal X"}))
    found = Page(make(path))
    assert [x["name"] for x in json.loads(found.texts["script"][0])["charts"][0]] == ["1 b", "0 a"]
    assert "Settings, the best first" in found.texts["caption"] and found.texts["pre"] == ["shoal X"]
    assert found.texts["body"][0].count("1 failed") == 2


def test_runs_of_one_environment_share_axes(make, write_run):
    config = {"environment": {"name": "Pendulum-v1", "parameters": {}}}
    paths = [
        write_run("a", range(10)),
        write_run("b", range(5, 15)),
        write_run("other/a", config=config, finished=False),
    ]
    found = Page(make(paths))
    charts = json.loads(found.texts["script"][0])["charts"]
    assert [[curve["name"] for curve in curves] for curves in charts] == [["a", "b"], ["a (2)"]]
    table = found.texts["table"][0]
    assert found.texts["caption"][0] == "Comparison of the runs" and "+5.0[+1.7, +8.3]" in table
    assert [x["href"] for x in found.attributes("a")] == ["#run-0", "#run-1", "#run-2"]
    assert {"run-0", "run-1", "run-2"} <= {x.get("id") for x in found.attributes("section")}


def test_runs_that_cannot_be_compared_are_still_shown(make, write_run):
    paths = [write_run(name, run={"eval_mode": name}) for name in ("greedy", "sampled")]
    text = make(paths)
    assert "The runs in CartPole-v1 are not compared with each other" in text and "greedy: 2 seeds" in text


def test_one_run_that_cannot_be_compared_leaves_the_others(make, write_run):
    empty = write_run("empty", summary={"absolute": None, "final": None})
    write_rows(empty, [])
    text = make([empty, write_run("a"), write_run("b", (2.0, 4.0))])
    assert "empty is not compared with the others: run" in text and ">+1.000<" in text


def test_films_are_in_the_page_up_to_a_size(make, write_run):
    path = write_run("a")
    (path / "films").mkdir()
    for name, size in (("films/2000.gif", 100), ("films/10000.gif", 200), ("own.mp4", 300)):
        (path / name).write_bytes(b"x" * size)
    found = Page(make(path))
    assert [x["alt"] for x in found.attributes("img")] == [
        "Film of a policy after 2,000 environment steps",
        "Film of a policy after 10,000 environment steps",
    ]
    assert found.attributes("video")[0]["aria-label"] == "Film own.mp4"
    assert (
        found.attributes("img")[0]["src"] == f"data:image/gif;base64,{base64.b64encode(b'x' * 100).decode()}"
    )
    text = make(path, film_size="500")
    assert "Left out" in text and "2000.gif" in text and len(Page(text).attributes("img")) == 1
    assert "own.mp4 (0.0 MB)" in make(path, film_size="0")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"out": "there.html"}, "out='there.html' exists; give another name, or --force"),
        ({"out": "page.txt"}, "ends in .html"),
        ({"out": "nowhere/page.html"}, "there is no directory 'nowhere'"),
        ({"out": "folder.html"}, "it is a directory"),
        ({"film_size": "large"}, "film_size='large' is not a size"),
        ({"runs": "rnu"}, "there is no run directory 'rnu'; did you mean 'run'?"),
        ({"runs": "nothing"}, "is not a run directory"),
        ({"runs": []}, "runs is empty"),
        ({"runs": 7}, "not a path"),
        ({"runs": ["run", 7]}, "not a path"),
        ({"force": "yes"}, "force='yes' is neither True nor False"),
    ],
)
def test_bad_input_is_one_sentence_and_leaves_nothing(write_run, tmp_path, monkeypatch, options, sentence):
    write_run("run")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there.html").write_text("mine")
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "nothing").mkdir()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ShoalError, match=re.escape(sentence)) as caught:
        report(**{"runs": "run", "out": "new.html", **options})
    assert "\n" not in str(caught.value)
    assert sorted(tmp_path.rglob("*")) == before and (tmp_path / "there.html").read_text() == "mine"


def test_a_damaged_run_is_refused(write_run, tmp_path):
    path = write_run("a", summary={"absolute": {"returns": 3}})
    with pytest.raises(ShoalError, match="is damaged"):
        report(path, tmp_path / "new.html")
    assert not (tmp_path / "new.html").exists()


def test_the_command(write_run, tmp_path, capsys):
    path, out = write_run("a"), tmp_path / "new.html"
    assert cli.main(["report", str(path), "--out", str(out)]) == 0
    assert re.fullmatch(rf"{out} \([0-9]+ kB\)\n", capsys.readouterr().out)
    assert cli.main(["report", str(path), "--out", str(out)]) == 2
    assert cli.main(["report", str(path), "--out", str(out), "--force"]) == 0
    assert cli.main(["report"]) == 2
    assert "no run was named" in capsys.readouterr().err


def test_a_report_imports_no_jax(write_run, tmp_path):
    paths = [str(write_run(name, range(5))) for name in ("a", "b")]
    code = (
        "import sys; from shoal.reports.page import report; "
        f"report({paths}, {str(tmp_path / 'x.html')!r}); print('jax' in sys.modules)"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "False\n"
    )


def test_markup_is_escaped():
    assert (
        element("p", "<&", element("b", "x"), class_="'\"") == '<p class="&#x27;&quot;">&lt;&amp;<b>x</b></p>'
    )
    assert void("img", alt="a", hidden=True, lazy=False) == '<img alt="a" hidden>'
    text = table("c", ("a", "b"), [("<", "1")], {"b"})
    assert '<th scope="row">&lt;</th><td class="n">1</td>' in text and "<caption>c</caption>" in text


def test_a_run_in_a_notebook(real_run):
    text = real_run._repr_html_()
    found = Page(text)
    assert found.attributes("script") == [] and len(found.attributes("svg")) == 1
    assert len(found.attributes("tr")) == 3 and "best policy, new episodes" in text
    assert html.escape(repr(real_run)[1:-1]) in text


def test_several_settings_in_a_notebook():
    members = members_of((0, 1), [type("V", (), {"label": x, "settings": {}})() for x in (EVIL, "b")])
    score = {"iqm": 1.0, "interval": None, "returns": [1.0]}
    summary = {
        "environment": "E",
        "absolute": {"returns": [1.0] * 4},
        "members": [{"label": x, "seeds": [0, 1], "absolute": score} for x in ("b", EVIL)],
    }
    evaluations = [(step, {"return_mean": np.ones(4) * step}) for step in (0, 10)]
    text = run_html.run_html("d", summary, evaluations, members, [])
    assert Page(text).attributes("script") == [] and Page(text).attributes("img") == []
    assert text.index(">b<") < text.index("&lt;/script") and "<svg" in text
    swept = {"environment": "E", "algorithm": "ppo", "confirmed": summary["members"], **summary}
    assert "Best settings on new seeds" in run_html.sweep_html("d", swept)


@pytest.fixture(scope="module")
def browser():
    """Chromium, where it is installed (Debian's chromium-headless-shell, and the wheel playwright)."""
    playwright = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("there is no chromium-headless-shell")
    with playwright.sync_playwright() as program:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        started = program.chromium.launch(executable_path=BROWSER, args=flags)
        yield started
        started.close()


@pytest.fixture
def show(browser, tmp_path):
    """A function that opens a report, and returns its page with what went wrong there."""

    def show(runs, width=1280, theme="light", scripts=True):
        out = report(runs, tmp_path / "shown.html", force=True)
        context = browser.new_context(
            viewport={"width": width, "height": 900}, color_scheme=theme, java_script_enabled=scripts
        )
        shown, problems = context.new_page(), []
        shown.on("console", lambda message: None if TESTED in message.text else problems.append(message.text))
        shown.on("pageerror", lambda error: problems.append(str(error)))
        shown.on("request", lambda request: problems.append(request.url))
        shown.goto(out.as_uri())
        assert problems.pop(0) == out.as_uri()
        return shown, problems

    return show


DARK_PIXELS = """() => [...document.querySelectorAll("canvas")].map((canvas) => {
  const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
  return data.filter((x, k) => k % 4 === 3 && x > 0).length;
})"""
TESTED = "getImageData"  # of the warning that the function above is slow
WIDTHS = "[document.documentElement.scrollWidth, innerWidth]"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_a_browser_draws_the_curves(show, write_run, write_sweep, width, theme):
    paths = [write_run("a", range(10)), write_run("b"), write_sweep("grid")]
    for runs in (paths[0], paths):
        shown, problems = show(runs, width, theme)
        assert problems == [] and shown.evaluate(DARK_PIXELS)[0] > 5000
        needed, available = shown.evaluate(WIDTHS)
        assert needed <= available
        background = shown.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (background == "rgb(255, 255, 255)") == (theme == "light")


def test_curves_are_hidden_and_read_by_the_keyboard(show, write_run):
    path = write_run("a", range(10))
    write_rows(path, rows_of(10, 51))
    shown, problems = show(path)
    before = shown.evaluate(DARK_PIXELS)[0]
    shown.get_by_label("single seeds").uncheck()
    without = shown.evaluate(DARK_PIXELS)[0]
    shown.get_by_label("95% interval").uncheck()
    bare = shown.evaluate(DARK_PIXELS)[0]
    assert before != without and bare < without  # what is left is scaled to the axes
    shown.get_by_label("single seeds").check()
    shown.get_by_text("Choose single seeds").click()
    all_seeds = shown.evaluate(DARK_PIXELS)[0]
    shown.get_by_label("seed 3", exact=True).uncheck()
    assert shown.evaluate(DARK_PIXELS)[0] < all_seeds
    shown.locator("div.plot").focus()
    for _ in range(2):
        shown.keyboard.press("ArrowRight")
    assert shown.locator("output").inner_text().startswith("1,000 steps: 10 seeds ")
    assert problems == []


def test_single_evaluations_are_points(show, write_run):
    path = write_run("a", failed=[0, 1], finished=True)
    write_rows(path, [row | ({"return_mean": None} if row["step"] else {}) for row in rows_of(2, 3)])
    shown, problems = show(path)
    colours = shown.evaluate("""() => {
      const canvas = document.querySelector("canvas");
      const data = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return data.filter((x, k) => k % 4 === 2 && x > data[k - 2] + 50).length;
    }""")
    assert colours > 20 and problems == []


def test_what_users_write_runs_in_no_browser(show, write_run):
    shown, problems = show(write_evil(write_run))
    assert shown.evaluate("window.hacked") is None and problems == []
    assert shown.locator("h1").inner_text().startswith("</script><script>")


def test_without_scripts_there_are_pictures_and_tables(show, write_run):
    shown, _ = show(write_run("a"), scripts=False)
    assert shown.locator("svg").is_visible() and shown.locator("canvas").count() == 0
    shown.get_by_text("Numbers of the curves").click()
    assert shown.get_by_text("Evaluations of 2 seeds").is_visible()


def test_a_printed_page_keeps_legend_table_and_command(show, write_run):
    shown, _ = show([write_run("a", range(10)), write_run("b", range(10))])
    shown.emulate_media(media="print")
    assert shown.locator("figcaption ul").is_visible() and not shown.locator("fieldset").first.is_visible()
    for part in ("table", "pre", "svg, canvas"):
        assert shown.locator(part).first.is_visible()
    assert shown.pdf().startswith(b"%PDF")


def test_the_rules_for_printing_hide_controls_alone():
    """Where there is no browser to print by; in print a legend of several curves is shown, and text is wrapped."""
    css = page._asset("page.css").partition("@media print {")[2]
    rules = dict(re.findall(r"^  ([^{}]+?) \{ (.*) \}$", css, re.MULTILINE))
    assert [
        x for x, rule in rules.items() if re.search("display: none|visibility|content-visibility", rule)
    ] == [".controls, output"]
    assert rules[".in-print"] == "display: block;" and rules[".scroll"] == "overflow: visible;"
    assert "white-space: pre-wrap" in rules["pre"] and 'list.className = "in-print"' in page._asset("page.js")


def test_the_assets_are_named():
    assert page._asset("uPlot.iife.min.js").startswith("/*! https://github.com/leeoniya/uPlot")
    assert "MIT" in page._asset("uPlot.LICENSE")


def test_what_settings_differ_from(write_run, tmp_path):
    """The preset of the run's time is on the page, whatever it is today; names break at their separators."""
    pages, then = [], {"learning_rate": 0.125, "lr_schedule": "linear"}
    for k, (name, preset) in enumerate(
        {"CartPole-v1": {"preset": then}, "my_module:MyEnv": {"preset": {}}, "Acrobot-v1": {}}.items()
    ):
        config = {"environment": {"name": name, "parameters": {}}, **preset}
        pages.append(report(write_run(str(k), config=config), tmp_path / f"{k}.html").read_text())
    assert "Settings that differ from the preset of ppo in CartPole-v1<" in pages[0]
    assert (
        ">learning_<wbr>rate</th><td>0.125<" in pages[0] and ">lr_<wbr>schedule</th><td>linear<" in pages[0]
    )
    assert "Settings that differ from the defaults of ppo<" in pages[1]
    assert "Settings that differ from the preset of ppo in Acrobot-v1, or the defaults<" in pages[2]
    assert all("which differ from" not in page for page in pages[1:])
    assert "<dd>my_<wbr>module:<wbr>MyEnv</dd>" in pages[1]
    assert breakable("1e-06, -0.5 and a=-1") == "1e-06, -0.5 and a=-1"


@pytest.mark.full
def test_where_every_seed_failed_a_sentence_stands_for_the_chart(write_run, tmp_path):
    failed = write_run("a", (math.nan, math.nan), failed=[0, 1])
    text = report(failed, tmp_path / "x.html").read_text()
    assert "every seed failed, so that there is no mean to draw" in text and "<svg" not in text
