"""MLflow read back by its own client, from the database below the run folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.packages import needs
from tests.support.tracked_runs import Followed

pytestmark = [
    needs("mlflow", "sqlalchemy", "alembic"),
    pytest.mark.slow,
]  # a database takes seconds to make, and importing MLflow too


@pytest.fixture(autouse=True)
def no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)


def opened(folder: Path) -> tuple[Any, Any]:
    from mlflow.tracking import MlflowClient

    kept = json.loads((folder / "trackers.json").read_text())["mlflow"]
    client = MlflowClient(tracking_uri=kept["uri"])
    assert str(folder) in kept["uri"]
    return client, client.get_run(kept["id"])


def history(client: Any, run: Any, name: str) -> list[tuple[int, float]]:
    return sorted((each.step, round(each.value, 4)) for each in client.get_metric_history(run.info.run_id, name))


def test_every_step_is_there_with_params_tags_and_completions(tmp_path: Path) -> None:
    trackers = Followed(tmp_path, ["mlflow"]).session(1, 3)
    assert not trackers.failures
    client, run = opened(tmp_path)
    assert history(client, run, "reward") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert history(client, run, "spread/reward/median") == [(1, 0.5), (2, 0.5), (3, 0.5)]
    assert history(client, run, "eval/accuracy") == [(0, 0.25)]
    assert run.data.params["optimizer.learning_rate"] == "0.0001" and run.info.status == "FINISHED"
    assert run.data.tags["health.entropy collapse"] == "step 2: the entropy fell to 0.01 nats"
    assert run.data.tags["whet.after/accuracy"] == "0.75"
    files = [each.path for each in client.list_artifacts(run.info.run_id, "completions")]
    assert files == [f"completions/step-00000{step}.json" for step in (1, 2, 3)]
    assert run.info.artifact_uri.startswith(tmp_path.as_uri())
    table = json.loads(Path(client.download_artifacts(run.info.run_id, files[1])).read_text())
    played = dict(zip(table["columns"], table["data"][1], strict=True))
    assert played["step"] == 2 and played["reward"] == 1.0 and "[tool] 42 <b>" in played["completion"]


def test_a_resumed_run_goes_on_and_one_that_was_cut_back_has_each_step_once(tmp_path: Path) -> None:
    run = Followed(tmp_path, ["mlflow"])
    run.session(1, 2)
    _, first = opened(tmp_path)
    run.session(3, 4, ends=False)
    client, same = opened(tmp_path)
    assert same.info.run_id == first.info.run_id and history(client, same, "reward")[-1] == (4, 0.4)
    run.session(4, 5, reward=0.9)
    client, last = opened(tmp_path)
    assert history(client, last, "reward") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.9), (5, 0.9)]
    assert last.data.tags["whet.replaces"] == first.info.run_id
    assert client.get_run(first.info.run_id).info.lifecycle_stage == "deleted"


def test_a_server_that_is_not_there_costs_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trackers = Followed(tmp_path, ["mlflow"], {"mlflow": {"uri": "http://127.0.0.1:9"}}).session(1, 3)
    assert "off since opening it" in trackers.failures["mlflow"]
    said = [each.getMessage() for each in caplog.records if each.name.startswith("whet")]
    assert len(said) == 1 and "training continues without it" in said[0]
