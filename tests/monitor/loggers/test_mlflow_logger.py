"""MLflow's runs in a database, as its own client reads them."""

import math

import pytest
from logging_process import LONG, ODD_NAMES, SERIES, START, expected_curves, odd_curves
from logging_process import run as request_run

pytest.importorskip("mlflow")

pytestmark = pytest.mark.filterwarnings("ignore")  # of MLflow and SQLAlchemy
PARENT = "mlflow.parentRunId"


@pytest.fixture
def runs(run_path):
    """Return a function that returns the client and the runs of the experiment, by name."""

    def read(experiment="shoal"):
        from mlflow import MlflowClient

        client = MlflowClient(f"sqlite:///{run_path / 'loggers' / 'mlflow.db'}")
        number = client.get_experiment_by_name(experiment).experiment_id
        return client, {run.info.run_name: run for run in client.search_runs([number])}

    return read


def curve(client, run, name):
    return [(x.step, x.value) for x in client.get_metric_history(run.info.run_id, name)]


def test_has_each_row_once_after_a_kill_in_nested_runs(log, runs, run_path, summary):
    told = log("mlflow", 0, 25, members=2, kill=True)
    uri = f"sqlite:///{run_path}/loggers/mlflow.db"
    assert told["place"] == f"{uri}; `mlflow ui --backend-store-uri {uri}` shows it"
    again = log("mlflow", told["rows"], 620, members=2, state=told["state"], summary=summary, flush_every=600)
    assert again["state"] == told["state"]
    client, found = runs()
    names = {"seed 3": "first, seed 3", "slow, seed 3": "first, slow, seed 3", "all": "first"}
    assert set(found) == set(names.values())
    for (series, name), points in expected_curves(620, 2).items():
        assert curve(client, found[names[series]], name) == points
    main, slow = found["first"], found["first, slow, seed 3"]
    assert (PARENT in main.data.tags, slow.data.tags[PARENT]) == (False, main.info.run_id)
    assert main.data.params["hidden_sizes"] == "[64, 64]"
    assert (main.data.params["learning_rate"], slow.data.params["learning_rate"]) == ("0.001", "0.0001")
    assert main.data.metrics["absolute/iqm"] == 2.5
    assert {run.info.status for run in found.values()} == {"FINISHED"}
    assert client.get_metric_history(main.info.run_id, "train/loss")[0].timestamp == 1000 * START


@pytest.mark.parametrize(
    "result, status",
    [(None, "KILLED"), ({"steps_per_seed": 1, "failed": [{}]}, "FAILED")],
    ids=["interrupted", "failed"],
)
def test_the_status_says_how_a_run_ended(log, runs, result, status):
    told = log("mlflow", 0, 10, summary=result, arguments={"experiment": "fish", "name": "trout"})
    _, found = runs("fish")
    assert found["trout"].info.status == status
    log("mlflow", 10, 20, state=told["state"], kill=True, arguments={"experiment": "fish", "name": "trout"})
    assert runs("fish")[1]["trout"].info.status == "RUNNING"


def test_each_series_has_one_run(log, runs):
    log("mlflow", 0, 10, members=2)
    client, found = runs()
    stored = client.search_runs([found["first"].info.experiment_id])
    assert len(stored) == 3 and {x.info.status for x in stored} == {"KILLED"}


def test_cuts_long_settings_and_logs_files(log, runs, pictures):
    log("mlflow", files=pictures, algorithm={"optimizer_args": 7000 * "x"})
    client, found = runs()
    assert found["first"].data.params["optimizer_args"] == 6000 * "x"
    number = found["first"].info.run_id
    assert [x.path for x in client.list_artifacts(number)] == [
        "best.safetensors",
        "films",
        "learning_curve.png",
    ]
    assert [x.path for x in client.list_artifacts(number, "films")] == ["films/1000.gif"]
    assert not any(math.isnan(x) for x in found["first"].data.metrics.values())


def test_names_that_mlflow_refuses_are_changed_and_stay_distinct(log, runs, summary):
    odd = {"names": ODD_NAMES, "algorithm": {"a,b": 1, "a@b": 2, LONG: 3}}
    odd["arguments"] = {"name": LONG, "experiment": LONG}
    told = log("mlflow", 0, 10, kill=True, **odd)
    log("mlflow", 10, 20, state=told["state"], summary=summary, **odd)
    client, found = runs(f"{127 * 'w'}..{127 * 'w'}")
    ((name, run),) = found.items()
    assert name == f"{124 * 'w'}..{124 * 'w'}" and run.info.status == "FINISHED"
    named = told["state"]["names"]
    for odd_name, points in odd_curves(20).items():
        assert curve(client, run, named.get(odd_name, odd_name)) == points
    assert named["train/success (%)"] == "train/success ___" and named["train/a_b"] == "train/a_b_2"
    assert {x: run.data.params[x] for x in ("a_b", "a_b_2")} == {"a_b": "1", "a_b_2": "2"}


def test_runs_are_ended_where_the_last_numbers_cannot_be_sent(run_path):
    from shoal.monitor.loggers.mlflow_logger import MlflowLogger

    ended = []
    logger = MlflowLogger()
    logger.open(request_run({"path": str(run_path)}), None)
    logger._client.log_batch = lambda *_, **__: 1 / 0
    logger._client.set_terminated = lambda number, status: ended.append(status)
    logger.add_scalars(SERIES[1][0], 1, {"train/loss": 1.0}, START)
    with pytest.raises(ZeroDivisionError):
        logger.close(None)
    assert ended == ["KILLED"]
