import numpy as np
import pytest

from offline.clustering.data import dataset_names, load_ucr, read_series
from stream_ccsd.errors import StreamCcsdError

TS = """# a comment
@problemName Toy
@timeStamps false
@univariate true
@classLabel true up down
@data
1.0,2.0,?:up
4,5:down
"""


def written(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("name", "text", "labels"),
    [
        ("a.tsv", "1\t1.0\t2.0\tNaN\n2\t4\t5\tNaN\n", [1, 2]),
        ("a.txt", "  1.0000e+00   1.0 2.0\n  2.0e+00  4 5\n", [1, 2]),
        ("a", "1,1.0,2.0\n2,4,5\n", [1, 2]),
        ("a.ts", TS, ["up", "down"]),
    ],
)
def test_reads_every_layout(tmp_path, name, text, labels):
    read = read_series(written(tmp_path, name, text))
    assert read.labels.tolist() == labels
    np.testing.assert_array_equal(read.series, [[1, 2], [4, 5]])


def test_unequal_lengths_and_gaps_stay_missing(tmp_path):
    read = read_series(written(tmp_path, "a.tsv", "1\t1\t\t3\t4\n1\t5\t6\n"))
    np.testing.assert_array_equal(read.series, [[1, np.nan, 3, 4], [5, 6, np.nan, np.nan]])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.tsv", "1\t2\n1\tx\n", "line 2.*'x'"),
        ("a.tsv", "1\tinf\n", "line 1.*infinite"),
        ("a.tsv", "\n", "no series"),
        ("a.tsv", "1\tNaN\n2\tNaN\n", "series 1 has no value"),
        ("a.ts", "@classLabel false\n@data\n1:2\n", "no classes"),
        ("a.ts", "@timeStamps true\n@data\n1:2\n", "time stamps"),
        ("a.ts", "@data\n1,2:3,4:up\n", "line 2.*3 parts"),
    ],
)
def test_says_what_is_wrong_and_where(tmp_path, name, text, message):
    with pytest.raises(StreamCcsdError, match=message):
        read_series(written(tmp_path, name, text))


def test_finds_data_sets_by_their_folders(tmp_path):
    for part in ("TRAIN", "TEST"):
        written(tmp_path, f"Toy/Toy_{part}.tsv", "1\t2\n")
    written(tmp_path, "Half/Half_TRAIN.tsv", "1\t2\n")
    assert dataset_names(tmp_path) == ["Toy"]
    assert load_ucr(tmp_path, "Toy", "TEST").series.tolist() == [[2.0]]
    with pytest.raises(StreamCcsdError, match=r"Half_TEST\.tsv"):
        load_ucr(tmp_path, "Half", "TEST")
