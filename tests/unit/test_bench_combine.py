"""What the experiment with window sizes concludes from its runs."""

from __future__ import annotations

import pyarrow as pa

from headrace.bench.measuring.cputime import worker_cpu_s
from headrace.bench.overlapping.combine import as_numbers
from headrace.bench.overlapping.combine_figures import CombineOutcome, crossover_s, figures_of, load_of, rule_figures
from headrace.bench.overlapping.trades import Trades, symbol_names
from headrace.model.panecost import WindowLoad


def outcome(stream: str, size_s: int, form: str, ns: int, *, wrong: int = 0) -> CombineOutcome:
    workers = None if form == "stock" else ns
    return CombineOutcome(stream, size_s, form, 1000, round(1e9 / ns), ns, 3 * ns, workers, 0, 0, wrong)


def curve(stream: str, costs: dict[int, tuple[int, int]]) -> list[CombineOutcome]:
    """Costs with panes and without, by size."""
    return [
        outcome(stream, size_s, form, ns)
        for size_s, pair in costs.items()
        for form, ns in zip(("combine", "direct"), pair)
    ]


def test_the_crossover_is_where_panes_begin_to_pay_for_good() -> None:
    assert crossover_s(curve("dense", {2: (9, 5), 5: (10, 9), 15: (11, 20), 60: (12, 70)})) == 15
    assert crossover_s(curve("dense", {2: (4, 5), 5: (10, 9), 15: (11, 20)})) == 15
    assert crossover_s(curve("dense", {2: (4, 5), 15: (11, 20)})) == 2
    assert crossover_s(curve("dense", {2: (9, 5), 60: (80, 70)})) is None


def test_figures() -> None:
    dense = [outcome("dense", 1, "direct", 5), *curve("dense", {2: (9, 5), 60: (12, 70)})]
    runs = [*dense, outcome("dense", 60, "stock", 240, wrong=2), *curve("sparse", {2: (9, 5), 60: (80, 70)})]
    figures = figures_of(runs)
    assert (figures["flatness"], figures["worker_flatness"]) == (1.33, 1.33)
    assert (figures["ratio_at_60s"], figures["cpu_ratio_at_60s"]) == (20.0, 20.0)
    assert (figures["crossover_s"], figures["sparse_crossover_s"]) == (60, None)
    assert (figures["direct_ns_per_item_at_1"], figures["combine_ns_per_item_at_60"]) == (5, 12)
    assert figures["stock_cpu_ns_per_item_at_60"] == 720
    assert (figures["lost"], figures["wrong"], figures["items"]) == (0, 2, 9000)


# cmr fact 23: costs after the model with γ = 2 and an overhead, crossing over between 5 and 15 s on the sparse stream
def test_a_fitted_gamma_tells_the_winner_on_both_sides_of_the_crossover() -> None:
    loads = {"dense": WindowLoad(1000.0, 50.0), "sparse": WindowLoad(1000.0, 440.0)}
    runs = []
    for stream, load in loads.items():
        per_value = load.keys_per_pane / load.values_per_s
        for size_s in (2, 5, 15, 60):
            merges = size_s if size_s < 8 else 4
            runs += curve(stream, {size_s: (round(100 + 210 * per_value * merges), 100 * size_s)})
    assert (crossover_s(runs[:8]), crossover_s(runs[8:])) == (2, 15)
    rule = rule_figures(runs, loads)
    assert rule["trials"] == 8 == rule["winners_predicted"]
    assert 1.8 < rule["gamma"] < 8, "all in between decide alike"
    assert rule_figures(runs[:8], loads)["gamma"] is None


def test_the_load_is_counted() -> None:
    trades = Trades(4)
    tape = trades.tape()
    symbols = [len(set(tape.symbols[tape.seconds == second].tolist())) for second in range(4)]
    assert load_of(trades) == WindowLoad(trades.total / 4, sum(symbols) / 4)


def test_a_workers_cpu_time_is_its_last_report() -> None:
    assert worker_cpu_s([(1, 0.5), (2, 1.0), (1, 2.5)]) == 3.5


def test_results_become_whole_numbers() -> None:
    rows = pa.RecordBatch.from_pydict(
        {
            "symbol": symbol_names().take(pa.array([7, 0])),
            "window_end": pa.array([60_000_000, 61_000_000], pa.timestamp("us", "UTC")),
            "cents": [500, 700],
            "trades": [1, 2],
        }
    )
    assert as_numbers(rows).to_pydict() == {"end_s": [60, 61], "symbol": [7, 0], "cents": [500, 700], "trades": [1, 2]}
