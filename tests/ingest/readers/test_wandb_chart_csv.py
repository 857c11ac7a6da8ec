from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ingest.readers.wandb_chart_csv import WandbChartReader


def test_an_export_names_its_runs_even_where_a_name_holds_the_separator(data: Path) -> None:
    assert WandbChartReader().parts(data / "wandb/chart-two-runs/chart.csv") == ("lively-sun-3", "sweep - lr 1e-6")


def test_each_run_gets_its_own_points_and_none_where_it_has_none(data: Path, read: Any) -> None:
    path = data / "wandb/chart-two-runs/chart.csv"
    first = read(path, reader=WandbChartReader(part="lively-sun-3"))
    second = read(path, reader=WandbChartReader(part="sweep - lr 1e-6"))
    assert [step for step, _ in first.series("train/reward")] == list(range(0, 100, 10))
    assert [step for step, _ in second.series("train/reward")] == list(range(0, 70, 10))
    assert first.series("train/reward")[0] == (0, 0.2)
    assert second.series("train/reward")[0] == (0, 0.2084)


def test_the_extremes_are_series_of_their_own(data: Path, read: Any) -> None:
    taken = read(data / "wandb/chart-two-runs/chart.csv", reader=WandbChartReader(part="lively-sun-3"))
    assert set(taken.metrics[0].values) == {"train/reward", "train/reward__MIN", "train/reward__MAX"}
    assert "sampled" in taken.notes[0]


@pytest.mark.parametrize("own", [True, False])
def test_an_axis_other_than_the_step_needs_wandbs_own_counter(own: bool, tmp_path: Path, read: Any) -> None:
    path = tmp_path / "chart.csv"
    more = ',"r - _step","r - _step__MIN","r - _step__MAX"' if own else ""
    cells = ',"12","12","12"' if own else ""
    path.write_text(f'"epoch","r - loss","r - loss__MIN","r - loss__MAX"{more}\n"0.5","1","1","1"{cells}\n')
    taken = read(path)
    if own:
        assert taken.series("loss") == [(12, 1.0)]
    else:
        assert "no integer in the column of the x axis 'epoch'" in taken.rejects[0].reason
        assert taken.rejects[0].line == 2
