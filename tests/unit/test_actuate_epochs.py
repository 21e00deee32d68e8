"""How long epochs last where nobody said."""

from __future__ import annotations

import pytest
from planned import planned

from headrace.config import Settings
from headrace.errors import ConfigError
from headrace.forecast.epochs import first_length, is_automatic, next_length

P99 = ({"p99": "60 ms"},)


def test_an_explicit_length_stays_and_others_are_ours_to_choose() -> None:
    assert not is_automatic(planned(bounds=P99, epoch="30 s"))
    assert not is_automatic(planned(bounds=P99, epoch=30.0))
    assert planned(bounds=P99, epoch="30 s").settings.epoch_s == 30.0
    assert not is_automatic(planned(bounds=()))
    assert is_automatic(planned(bounds=P99))
    assert is_automatic(planned(bounds=(), epoch="auto")) and is_automatic(planned(bounds=(), recovery="30 s"))
    assert not is_automatic(planned(bounds=P99, mode="microbatch"))
    assert Settings.of(epoch="auto").epoch_s == Settings().epoch_s
    with pytest.raises(ConfigError, match="recovery must be at least 1 s"):
        Settings.of(recovery="10 ms")


def test_a_tail_bound_shorter_than_the_gap_wants_a_hundred_gaps_and_more() -> None:
    plan = planned(bounds=P99)
    first = first_length(plan)
    assert first.epoch_s == plan.settings.epoch_s and "usual gaps of 500 ms" in first.sentence
    assert next_length(plan, first, []) is None and next_length(plan, first, [0.5]) is None
    longer = next_length(plan, first, [2.0, 2.0])
    assert longer is not None and longer.epoch_s == pytest.approx(200, rel=0.05)
    assert "measured gaps of 2 s" in longer.sentence
    shorter = next_length(plan, longer, [2.0] * 8 + [0.4] * 8)
    assert shorter is not None and shorter.epoch_s == plan.settings.epoch_s


def test_recovery_sets_the_length_where_the_bound_allows_it() -> None:
    assert first_length(planned(bounds=P99, recovery="90 s")).epoch_s == 180.0
    assert first_length(planned(bounds=({"mean": "60 ms"},), recovery="20 s")).epoch_s == 40.0
    assert first_length(planned(bounds=(), recovery="15 s")).epoch_s == 30.0


def test_a_bound_that_recovery_forbids_is_named_with_what_could_be_had() -> None:
    refused = first_length(planned(bounds=P99, recovery="10 s"))
    assert refused.epoch_s == 20.0
    assert "but recovery allows 20 s" in refused.sentence and "the smallest bound is" in refused.sentence


def test_of_several_bounds_the_one_that_asks_for_most_decides() -> None:
    both = planned(bounds=({"mean": "60 ms"}, {"p99": "60 ms"}))
    gaps = [2.0]
    alone = next_length(planned(bounds=P99), first_length(both), gaps)
    together = next_length(both, first_length(both), gaps)
    assert together is not None and alone is not None and together.epoch_s == alone.epoch_s


def test_without_a_rate_only_waits_and_gaps_decide() -> None:
    unknown = planned(None, bounds=P99)
    longer = next_length(unknown, first_length(unknown), [2.0])
    assert longer is not None and longer.epoch_s == pytest.approx(200, rel=0.05)
