"""What ``headrace explain`` says about windows that share panes: by which rule, and at what cost."""

from __future__ import annotations

from typing import Any

from headrace.graph.combining import can_combine, chooses_panes
from headrace.graph.nodes import Graph, ReduceNode
from headrace.graph.windowing import TimeWindow
from headrace.model.panecost import GAMMA, SLIDING_MERGES, WindowLoad, costs, needed_values_per_key
from headrace.units import in_words


def pane_choices(graph: Graph) -> list[dict[str, Any]]:
    """For each reduce over sliding windows: its form, who chose it, and what either form costs.

    Costs are values touched per slide, in t (values per second) and d (keys per pane) of one subtask.
    """
    return [
        _choice(node, node.window)
        for node in graph.nodes
        if isinstance(node, ReduceNode) and isinstance(node.window, TimeWindow) and not node.window.tumbling
    ]


def in_words_about(choice: dict[str, Any]) -> str:
    """One sentence or two about a choice."""
    return (
        f"{choice['step']}: {choice['form']} ({choice['why']}). A slide touches {choice['windows_cost']} values with "
        f"an aggregate per window, {choice['panes_cost']} with panes of {in_words(choice['pane_s'])} (t values per "
        f"second, d keys per pane): panes pay above {choice['pays_above']:.3g} values per key and pane."
    )


def _choice(node: ReduceNode, window: TimeWindow) -> dict[str, Any]:
    form, why = "panes", "as asked"
    if chooses_panes(node):
        why = "to begin with; decided again from what each subtask receives"
    elif not can_combine(node):
        form, why = "windows", "as asked" if node.combine is False else "its states cannot be merged"
    elif node.combine == "auto":
        why = "under a memory bound" if node.memory_bytes is not None else "users' reducers see each record once"
    per_t, per_d = (
        costs(window.size_us, window.every_us, load, merges=SLIDING_MERGES)
        for load in (WindowLoad(1.0, 0.0), WindowLoad(0.0, 1.0))
    )
    return {
        "step": node.name,
        "form": form,
        "why": why,
        "pane_s": window.pane_us / 1e6,
        "windows_cost": f"{per_t.direct:g} t",
        "panes_cost": f"{per_t.paned:g} t + {per_d.paned:g} d",
        "pays_above": needed_values_per_key(window.size_us, window.every_us, merges=SLIDING_MERGES),
        "gamma": GAMMA,
    }
