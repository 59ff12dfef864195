"""Methods at their defaults, and runs over many data sets of which some are bad."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

from offline.clustering import evaluate
from offline.clustering.data import cylinder_bell_funnel
from offline.clustering.distances import MatrixCache
from offline.clustering.evaluate import Experiment, evaluate_clustering
from offline.clustering.metrics import agreement
from offline.clustering.pictures import draw_critical_difference
from offline.clustering.protocols import DEFAULTS, LABEL_FREE_SEEDS, METHODS, judge_label_free
from stream_ccsd import DivergenceKMedoids
from stream_ccsd.cli.main import app
from stream_ccsd.cli.report import drawn
from stream_ccsd.clustering.selection import select_bandwidths

TOY = cylinder_bell_funnel(train=6, test=24, length=32)
QUICK = Experiment("label-free", ("ed", "dtw"))


def source(name, seed=0):
    return lambda: replace(cylinder_bell_funnel(train=6, test=18, length=24, seed=seed), name=name)


def judged(method):
    return judge_label_free(TOY, method, "one-sided", MatrixCache(None))[0]


def write_set(folder, name, dataset, damage=""):
    (folder / name).mkdir(parents=True)
    for part in ("TRAIN", "TEST"):
        labelled = getattr(dataset, part.lower())
        pairs = zip(labelled.labels, labelled.series.tolist(), strict=True)
        rows = ["\t".join([label, *map(repr, row)]) for label, row in pairs]
        (folder / name / f"{name}_{part}.tsv").write_text("\n".join([*rows, damage]))


@pytest.fixture
def archive(tmp_path):
    """Three data sets, the second of which cannot be read."""
    for number, name in enumerate(("First", "Middle", "Third")):
        damage = "up\t1\tx" if name == "Middle" else ""
        write_set(tmp_path / "ucr", name, cylinder_bell_funnel(train=6, test=18, length=24, seed=number), damage)
    return tmp_path


def run(archive, *arguments, code=0):
    environment = {"XDG_CACHE_HOME": str(archive / "cache")}
    words = ["evaluate", "clustering", "--data", str(archive), "--protocol", "label-free", *arguments]
    done = CliRunner().invoke(app, words, env=environment)
    assert done.exit_code == code, done.output
    return done


def test_defaults_are_those_of_the_estimator_and_of_aeon():
    from aeon.clustering import KASBA, KShape
    from aeon.distances import pairwise_distance

    row, chosen = judged("ccsd"), select_bandwidths(TOY.test.series, 3).bandwidths
    assert (row["output"], row["tau"], row["root"], row["neighbours"]) == (chosen.output, chosen.tau, True, 5)
    given = {"output": chosen.output, "tau": chosen.tau, "sigma": (chosen.sigma, chosen.slope_sigma)}
    ours = DivergenceKMedoids(n_clusters=3, random_state=0, **given).fit(TOY.test.series)
    assert row["nmi_mean"] == pytest.approx(agreement(TOY.test.labels, ours.labels_)["nmi"])
    stack = TOY.test.series[:, None, :]
    for name, kind in (("kasba", KASBA), ("kshape", KShape)):
        scores = [
            agreement(TOY.test.labels, kind(n_clusters=3, random_state=s).fit(stack).labels_)["ari"]
            for s in LABEL_FREE_SEEDS
        ]
        assert judged(name)["ari_mean"] == pytest.approx(np.mean(scores))
    for name, setting in (("dtw", {}), ("msm", {"c": 1.0}), ("ed", {})):
        matrix = pairwise_distance(stack, method={"ed": "euclidean"}.get(name, name), **setting)
        known = DivergenceKMedoids(3, metric="precomputed", neighbours=None, random_state=0).fit(matrix)
        assert judged(name)["nmi_mean"] == pytest.approx(agreement(TOY.test.labels, known.labels_)["nmi"])


def test_what_paths_do_can_be_told_apart():
    assert {judged(name)["distance"] for name in METHODS} == set(METHODS)
    assert "neighbours" in judged("ccsd")
    assert judged("ccsd-straight")["neighbours"] is None
    assert judged("msm-paths")["nmi_mean"] != judged("msm")["nmi_mean"]


def test_labels_are_only_compared_with():
    other = replace(TOY, test=replace(TOY.test, labels=np.roll(TOY.test.labels, 1)))
    other = replace(other, train=replace(TOY.train, series=TOY.train.series[::-1] + 1))
    for method in ("ccsd", "ed"):
        rows = [judge_label_free(d, method, "one-sided", MatrixCache(None))[0] for d in (TOY, other)]
        assert rows[0]["nmi_mean"] != rows[1]["nmi_mean"]
        for row in rows:
            for name in list(row):
                if name.endswith(("_mean", "_std", "seconds")):
                    del row[name]
        assert rows[0] == rows[1]


def test_one_bad_data_set_does_not_end_the_run(archive):
    done = run(archive, "--distances", "ccsd,ed,dtw", "--json", "-", "--report", str(archive / "page"), code=3)
    result = json.loads(done.stdout)
    assert [(run["dataset"], run["distance"]) for run in result["runs"]] == [
        (name, distance) for name in ("First", "Third") for distance in ("ccsd", "ed", "dtw")
    ]
    (failed,) = result["failed"]
    assert failed["dataset"] == "Middle"
    assert "Middle_TRAIN.tsv: line 7" in failed["reason"]
    assert result["complete"] is True
    assert result["comparison"]["datasets"] == 2
    page = (archive / "page" / "report.html").read_text(encoding="utf-8")
    assert "Middle_TRAIN.tsv" in page
    assert page.count("<img") == 3  # two maps, and the ranks
    shown = run(archive, "--distances", "ed", code=3).output
    assert "Middle" in shown.partition("could not be done")[2]
    assert run(archive, "--datasets", "First,Third", "--distances", "ed").exit_code == 0


def test_nothing_but_bad_data_sets_is_still_said(archive):
    result = json.loads(run(archive, "--datasets", "Middle", "--json", "-", code=3).stdout)
    assert (result["runs"], len(result["failed"]), result["comparison"]) == ([], 1, None)
    assert "line 7" in run(archive, "--datasets", "Middle", "--report", str(archive / "page"), code=3).output


def test_a_method_that_cannot_leaves_the_others_and_the_means_alone(tmp_path):
    def gaps():
        made = source("Gaps")()
        made.test.series[2, 5] = np.nan
        return made

    result = evaluate_clustering([source("A"), gaps, source("B", 1)], Experiment("label-free", ("ed", "kshape")))
    assert [(f["dataset"], f["distance"]) for f in result["failed"]] == [("Gaps", "kshape")]
    assert "without missing values" in result["failed"][0]["reason"]
    assert ("Gaps", "ed") in [(r["dataset"], r["distance"]) for r in result["runs"]]
    assert result["comparison"] is None  # without the divergence there is nothing to compare with
    assert {r["dataset"] for r in result["runs"]} == {"A", "Gaps", "B"}


def test_stopped_it_has_what_is_finished_and_the_next_run_goes_on(tmp_path, monkeypatch):
    def stop():
        raise KeyboardInterrupt

    first = evaluate_clustering([source("A"), stop, source("B", 1)], QUICK, tmp_path)
    assert first["complete"] is False
    assert [run["dataset"] for run in first["runs"]] == ["A", "A"]
    worked = []
    original = evaluate.judge_label_free
    monkeypatch.setattr(
        evaluate, "judge_label_free", lambda d, *rest: worked.append((d.name, rest[0])) or original(d, *rest)
    )
    second = evaluate_clustering([source("A"), source("B", 1)], QUICK, tmp_path)
    assert worked == [("B", "ed"), ("B", "dtw")]
    assert (second["kept"], second["complete"]) == (2, True)
    assert second["runs"][:2] == first["runs"]
    assert evaluate_clustering([source("A")], QUICK)["kept"] == 0
    assert len(worked) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"sources": [source("A", 1)]},
        {"sources": [source("B")]},
        {"experiment": replace(QUICK, protocol="full")},
        {"experiment": replace(QUICK, outputs=("value",))},
        {"experiment": replace(QUICK, cap=9)},
        {"code": ["another"]},
    ],
    ids=["series", "name", "protocol", "outputs", "cap", "code"],
)
def test_kept_results_are_never_those_of_something_else(tmp_path, monkeypatch, change):
    evaluate_clustering([source("A")], QUICK, tmp_path)
    if "code" in change:
        monkeypatch.setattr(evaluate, "_code", lambda: change["code"])
    again = evaluate_clustering(change.get("sources", [source("A")]), change.get("experiment", QUICK), tmp_path)
    assert again["kept"] == 0
    assert again["runs"]


def test_a_damaged_entry_is_worked_out_again(tmp_path):
    first = evaluate_clustering([source("A")], QUICK, tmp_path)
    entries = sorted((tmp_path / "clustering").glob("*.json"))
    assert len(entries) == 2
    for entry, damage in zip(entries, ('{"runs": [', "{}"), strict=True):
        entry.write_text(damage)
    second = evaluate_clustering([source("A")], QUICK, tmp_path)
    assert second["kept"] == 0
    assert [r["nmi_mean"] for r in second["runs"]] == [r["nmi_mean"] for r in first["runs"]]
    (tmp_path / "file").write_text("")
    assert evaluate_clustering([source("A")], QUICK, tmp_path / "file")["runs"]  # what cannot be kept is a result, too
    pictures = []
    with_divergence = replace(QUICK, distances=("ccsd",))
    evaluate_clustering([source("A")], with_divergence, tmp_path)
    for kept in (0, 1):  # without its picture, an entry is not all that is wanted
        assert evaluate_clustering([source("A")], with_divergence, tmp_path, pictures=pictures)["kept"] == kept
    np.testing.assert_array_equal(pictures[0].places, pictures[1].places)
    assert pictures[0].setting == pictures[1].setting


def test_ctrl_c_shows_what_is_finished(archive):
    """The command itself, by a signal: after the first data set is in the journal."""
    command = [sys.executable, "-m", "stream_ccsd", "evaluate", "clustering", "--protocol", "label-free"]
    command += ["--data", str(archive), "--distances", "ed,ccsd", "--datasets", "First,Third", "--json", "-"]
    environment = {**os.environ, "XDG_CACHE_HOME": str(archive / "cache")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    kept = archive / "cache" / "stream-ccsd" / "clustering"
    for _ in range(1200):
        if list(kept.glob("*.json")) or process.poll() is not None:
            break
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    said, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    result = json.loads(said)
    assert result["complete"] is False
    assert result["runs"]
    again = json.loads(run(archive, *command[7:]).stdout)
    assert again["kept"] >= len(result["runs"])
    assert len(again["runs"]) == 4


@pytest.mark.parametrize("count", [2, 7])
def test_ranks_are_drawn(count):
    names = [f"m{i}" for i in range(count)]
    ranks = dict(zip(names, np.linspace(1.2, count - 0.3, count).tolist(), strict=True))
    compared = {"mean_rank": ranks, "reference": "m1", "cliques": [names[:2], names[1:]]}
    figure = draw_critical_difference(compared)
    texts = " ".join(text.get_text() for text in figure.axes[0].texts)
    assert all(f"{name}  {ranks[name]:.2f}" in texts or f"{ranks[name]:.2f}  {name}" in texts for name in names)
    assert drawn(figure).startswith(b"\x89PNG")


def test_the_field_is_the_default():
    assert DEFAULTS == ("ccsd", "kasba", "kshape", "msm", "dtw", "ed")
