"""How far apart the clocks of two hosts are."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.channel.client import ChannelClient
from headrace.channel.clocks import ClockFilter, Exchange, system_us
from headrace.channel.server import ChannelServer

US = st.integers(0, 10**6)


@pytest.fixture
def server() -> Iterator[ChannelServer]:
    made = ChannelServer("127.0.0.1", lambda sender, message: [])
    yield made
    made.close()


def steady_offset_us(client: ChannelClient) -> int:
    """As after a few epochs: on a busy machine single answers take their time."""
    client.offset_us()
    client.offset_us()
    return client.offset_us()


@given(st.integers(-(10**12), 10**12), US, US, US)
def test_an_exchange_is_wrong_by_at_most_half_its_delay(
    skew_us: int, there_us: int, held_us: int, back_us: int
) -> None:
    received = 1_000_000 + there_us + skew_us
    exchange = Exchange(1_000_000, received, received + held_us, 1_000_000 + there_us + held_us + back_us)
    assert exchange.delay_us == there_us + back_us
    assert abs(exchange.offset_us - skew_us) <= exchange.delay_us / 2 + 1


def test_the_fastest_of_the_last_answers_counts() -> None:
    clock = ClockFilter()
    assert clock.best is None
    clock.add(Exchange(0, 10, 10, 4))
    for delay_us in (900, 300, 700):
        clock.add(Exchange(0, 5_000, 5_000, delay_us))
    assert clock.best is not None and clock.best.delay_us == 4
    for _ in range(16):
        clock.add(Exchange(0, 5_000, 5_000, 500))
    assert clock.best.delay_us == 500, "an old answer says nothing about a clock that has drifted since"


def test_two_ends_on_one_host_with_one_clock_are_less_than_a_millisecond_apart(server: ChannelServer) -> None:
    client = ChannelClient(server.address, clock="another")
    try:
        assert abs(steady_offset_us(client)) < 1000
    finally:
        client.close()


@pytest.mark.parametrize("skew_us", [-3_600_000_000, -2_500, 40_000])
def test_a_skewed_clock_is_corrected(server: ChannelServer, skew_us: int) -> None:
    client = ChannelClient(server.address, clock_us=lambda: system_us() - skew_us, clock="another")
    try:
        assert steady_offset_us(client) == pytest.approx(skew_us, abs=1000)
    finally:
        client.close()


def test_the_drivers_own_host_has_its_clock(server: ChannelServer) -> None:
    client = ChannelClient(server.address, clock_us=lambda: system_us() - 40_000)
    try:
        assert client.offset_us() == 0
    finally:
        client.close()


def test_a_driver_that_does_not_answer_holds_nobody_up(server: ChannelServer) -> None:
    client = ChannelClient(server.address, clock_us=lambda: system_us() - 40_000, clock="another")
    try:
        known_us = client.offset_us()
        server.close()
        began_s = time.monotonic()
        assert client.offset_us() == known_us, "what was known holds"
        assert time.monotonic() - began_s < 20, "not even on a busy machine"
    finally:
        client.close()
