"""Loss by position against numbers worked out by hand or by the definition."""

import json
import math

import numpy as np
import pytest
from builders import manifest, rows, task
from rich.console import Console

from longeval.errors import UserError
from longeval.results.plots import save_plot, terminal_plot
from longeval.results.positions import (
    bucket_size,
    loss_by_position,
    moving_average,
    positions_table,
    run_positions,
)
from longeval.results.store import create_or_resume


def spans(found):
    return [(span.first, span.last) for span in found]


def test_hand_computed():
    loss = loss_by_position([[1, 2, 3, 4, 5], [3, 2, 1, 0, 9]], bucket=2, bytes_total=20, left_out=3)
    assert (loss.documents, loss.left_out, loss.first, loss.last) == (2, 3, 1, 5)
    assert loss.mean.tolist() == [2, 2, 2, 2, 7]
    assert loss.positions.tolist() == [1, 2, 3, 4, 5]
    assert spans(loss.buckets) == [(1, 2), (3, 4), (5, 5)]
    # Averages of the documents in the buckets: (1.5, 2.5), (3.5, 0.5), (5, 9).
    assert [bucket.loss for bucket in loss.buckets] == [2, 2, 7]
    # s / sqrt(n) with s from n - 1: |x - y| / 2 for two documents.
    assert [bucket.standard_error for bucket in loss.buckets] == pytest.approx([0.5, 1.5, 2.0])
    assert loss.total.loss == 3
    assert loss.total.standard_error == 0
    assert loss.total.perplexity == math.exp(3)
    assert loss.bits_per_byte == pytest.approx(30 / math.log(2) / 20)


def test_losses_are_averaged_and_then_exponentiated():
    loss = loss_by_position([[0.0] * 4, [4.0] * 4], bucket=4)
    assert loss.buckets[0].perplexity == math.exp(2)
    assert loss.buckets[0].perplexity != pytest.approx((math.exp(0) + math.exp(4)) / 2)


def test_one_document_has_no_standard_error():
    loss = loss_by_position([[1.0, 2.0]])
    assert loss.total.standard_error is None
    assert loss.bits_per_byte is None


def test_cumulative_at_powers_of_two():
    values = np.arange(1, 1001, dtype=float)
    loss = loss_by_position([values])
    assert spans(loss.prefixes) == [(1, 128), (1, 256), (1, 512), (1, 1000)]
    assert [prefix.loss for prefix in loss.prefixes] == [(n + 1) / 2 for n in (128, 256, 512, 1000)]
    assert spans(loss_by_position([np.zeros(256)]).prefixes) == [(1, 128), (1, 256)]
    assert spans(loss_by_position([np.zeros(100)]).prefixes) == [(1, 100)]


def test_a_cumulative_curve_hides_a_late_blow_up():
    loss = loss_by_position([[1.0] * 4096 + [5.0] * 512], bucket=512)
    assert loss.buckets[-1].loss == 5
    assert loss.total.loss < 1.5


def test_without_a_bos_positions_begin_at_two():
    values = np.arange(2, 301, dtype=float)
    loss = loss_by_position([values], first=2, bucket=128)
    assert (loss.first, loss.last) == (2, 300)
    assert spans(loss.buckets) == [(2, 128), (129, 256), (257, 300)]
    assert spans(loss.prefixes) == [(2, 128), (2, 256), (2, 300)]
    for span in loss.buckets + loss.prefixes:
        assert span.loss == (span.first + span.last) / 2


@pytest.mark.parametrize(
    ("length", "size"),
    [(65536, 2048), (16384, 2048), (8192, 2048), (4096, 2048), (4095, 256), (1000, 64), (128, 16), (20, 16), (1, 16)],
)
def test_bucket_size(length, size):
    assert bucket_size(length) == size
    assert len(loss_by_position([np.zeros(length)]).buckets) == math.ceil(length / size)


@pytest.mark.parametrize("length", [1, 2, 50, 101, 250])
def test_moving_average_by_definition(length):
    values = np.random.default_rng(0).normal(size=length)
    for window in (1, 3, 101):
        half = window // 2
        expected = [values[max(0, i - half) : i + half + 1].mean() for i in range(length)]
        assert moving_average(values, window) == pytest.approx(expected, abs=1e-12)
    with pytest.raises(ValueError, match="odd"):
        moving_average(values, 100)


def test_sums_are_in_double_precision():
    documents = np.random.default_rng(1).random((50, 3000), np.float32) * 10
    loss = loss_by_position(documents)
    exact = [math.fsum(map(float, column)) / 50 for column in documents.T]
    assert loss.mean == pytest.approx(exact, rel=1e-14)
    assert loss.total.loss == pytest.approx(math.fsum(exact) / 3000, rel=1e-14)


def test_standard_error_over_documents():
    documents = np.random.default_rng(2).normal(2, 1, (7, 400))
    loss = loss_by_position(documents, bucket=100)
    for bucket in loss.buckets:
        means = documents[:, bucket.first - 1 : bucket.last].mean(axis=1)
        assert bucket.standard_error == pytest.approx(means.std(ddof=1) / math.sqrt(7))


def test_what_cannot_be_averaged():
    with pytest.raises(UserError, match="3 and 2 losses"):
        loss_by_position([[1.0, 2.0, 3.0], [1.0, 2.0]])
    with pytest.raises(UserError, match="no document has losses"):
        loss_by_position([])
    with pytest.raises(UserError, match="without losses"):
        loss_by_position([[]])


def test_json():
    loss = loss_by_position([np.full(2000, 800.0), np.full(2000, 1000.0)], bytes_total=8000, left_out=1)
    found = json.loads(json.dumps(loss.as_dict(), allow_nan=False))
    assert found["documents"] == 2
    assert found["left_out"] == 1
    assert found["total"] == {"first": 1, "last": 2000, "loss": 900, "standard_error": 100, "perplexity": None}
    assert found["smoothed"]["window"] == 101
    assert len(found["smoothed"]["positions"]) == len(found["smoothed"]["loss"]) <= 1024
    assert found["smoothed"]["positions"][:2] == [1, 4]


def run_folder(path, documents):
    plan = manifest([task(name) for name in {row.task: None for row, _ in documents}], lengths=(3,))
    with create_or_resume(path, plan["decides"], plan["info"]) as folder:
        for row, nll in documents:
            folder.append(row, nll)
    return folder


def test_of_a_run(tmp_path):
    def row(task, index, **more):
        (row,) = rows(f"{task}-{index}", [1.0], 3, **more)
        return type(row)(**{**vars(row), "task": task})

    def meta(left_out):
        return {"first_position": 1, "bytes": 5, "left_out": left_out}

    folder = run_folder(
        tmp_path / "run",
        [
            (row("p/a", 0, meta=meta(1)), np.array([1, 2, 3], np.float32)),
            (row("p/a", 1, meta=meta(4)), np.array([3, 2, 1], np.float32)),
            (row("p/b", 0, meta=meta(0)), np.array([0, 0, 6], np.float32)),
            (row("s/c", 0, meta={"targets": []}), np.array([9, 9], np.float32)),
        ],
    )
    found = run_positions(folder)
    assert set(found) == {("p/a", 3), ("p/b", 3)}
    loss = found["p/a", 3]
    assert loss.mean.tolist() == [2, 2, 2]
    assert (loss.documents, loss.left_out) == (2, 4)
    assert loss.bits_per_byte == pytest.approx(12 / math.log(2) / 10)
    assert found["p/b", 3].total.loss == 2


@pytest.fixture
def curves():
    position = np.arange(1, 4097)
    flat = 2 + 3 / np.sqrt(position)
    jump = flat + (position > 2048) * 2
    return {"path": loss_by_position([flat, flat + 0.1]), "rope": loss_by_position([jump], bytes_total=9999)}


def text(renderable, width=120):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(renderable)
    return capture.get()


def test_table(curves):
    shown = text(positions_table(curves["rope"], "perplexity/kjv", 2048))
    assert "perplexity/kjv" in shown
    assert "1–2,048 " in shown
    assert "2,049–4,096*" in shown
    assert "n = 1 documents, 0 too short and left out" in shown
    assert "bits per byte" in shown
    assert "beyond the trained window of 2,048" in shown
    assert "±" not in shown.split("n = ")[0]
    narrow = text(positions_table(curves["rope"], "t", 2048), width=60)
    assert "…" not in narrow
    assert "2,049–4,096*" in narrow
    assert "*" not in text(positions_table(curves["path"], "t"))
    assert "±0.0500" in text(positions_table(curves["path"], "t"))


def test_plot_file(tmp_path, curves):
    save_plot(curves, tmp_path / "loss.png", "perplexity/kjv", 2048)
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    save_plot(curves, tmp_path / "loss.svg", "perplexity/kjv")
    assert (tmp_path / "loss.svg").read_text().lstrip().startswith("<?xml")


def test_the_plot_says_which_curve_it_shows(tmp_path, curves, monkeypatch):
    from matplotlib.figure import Figure

    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda self, path: drawn.append(self.axes[0]))
    save_plot(curves, tmp_path / "x.png", "title", 2048)
    (axes,) = drawn
    assert axes.get_ylabel() == "loss per token (nats), moving average of 101 positions"
    path, rope, trained = axes.lines
    assert [line.get_label() for line in axes.lines] == ["path (n = 2)", "rope (n = 1)", "trained length 2,048"]
    assert list(trained.get_xdata()) == [2048, 2048]
    assert path.get_xdata()[0] == 128
    assert path.get_xdata()[-1] == 4096
    assert rope.get_ydata() == pytest.approx(curves["rope"].smoothed()[127:])


def test_terminal_plot(curves):
    shown = text(terminal_plot(curves, "perplexity/kjv", 2048, width=70, height=18))
    heading, legend, *picture = shown.rstrip().splitlines()
    assert heading == "perplexity/kjv · loss per token (nats), moving average of 101 positions"
    assert legend == "⣤ path (n = 2)   ⣤ rope (n = 1)   ┊ trained length 2,048"
    assert sum("┊" in line for line in picture) > 10
    assert max(map(len, picture)) <= 70
    assert len(picture) <= 18
    alone = text(terminal_plot({"path": curves["path"]}, "t", width=70, height=18))
    assert "trained length" not in alone
    assert "trained length" not in text(terminal_plot(curves, "t", 8192))  # beyond the curves
    assert "rope" not in alone


def test_plots_of_short_documents(tmp_path):
    loss = loss_by_position([[1.0, 2.0, 3.0]], first=2)
    save_plot({"m": loss}, tmp_path / "x.png", "t", 8192)
    assert (tmp_path / "x.png").stat().st_size > 0
    assert "m (n = 1)" in text(terminal_plot({"m": loss}, "t"))
