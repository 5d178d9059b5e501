"""The rule for clients without room, against players in virtual time."""

from __future__ import annotations

import dataclasses
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent_tts.serve.transports.pace import Pace

GRACE_S, LOOK_S = 2.0, 0.5
SLOWEST = 0.9  # promised
TICK_S = 0.01
KERNEL = 100_000  # bytes that the node's kernel holds
PIECE = 3_840


@dataclasses.dataclass
class Player:
    """A client whose machine has room for `window` bytes, and tells of new room only when `step` bytes are free."""

    speed: float  # of real time
    window: int
    step: int
    rate: float  # bytes of a second of audio
    lead_s: float | None = None  # of what it is sent; None: as fast as it takes it
    start_s: float = 0.0  # when it begins to play
    stop_s: float = math.inf  # and when it stops
    room: int = 0
    held: float = 0.0  # bytes taken and not read

    def __post_init__(self) -> None:
        self.room = self.window

    def takes(self, waiting: int) -> int:
        """How many of the waiting bytes it takes."""
        taken = min(waiting, self.room)
        self.room -= taken
        self.held += taken
        return taken

    def plays(self, now: float, seconds: float) -> None:
        if not self.start_s <= now < self.stop_s:
            return
        self.held = max(0.0, self.held - seconds * self.speed * self.rate)
        free = int(self.window - self.held)
        if free - self.room >= self.step:
            self.room = free


@dataclasses.dataclass
class Cut:
    """How a writer served a player."""

    at: float = math.inf  # when it cut it; infinity if it did not
    full_at: float = math.inf  # when it last had no more room
    taken_at: float = 0.0  # when the player last took something
    played_at: float = 0.0  # when the slowest player would have played what it took


def serve(player: Player, limit_s: float) -> Cut:
    pace, cut = Pace(GRACE_S, 0.0), Cut()
    written = taken = 0
    looked_at = 0.0
    for tick in range(int(limit_s / TICK_S)):
        now = tick * TICK_S
        if new := player.takes(written - taken):
            taken += new
            cut.taken_at = now
            cut.played_at = max(cut.played_at, now) + new / player.rate / SLOWEST
        player.plays(now, TICK_S)
        due = math.inf if player.lead_s is None else (now + player.lead_s) * player.rate
        while written - taken < KERNEL and written < due:
            pace.look(now, written - taken)
            looked_at = now
            written += PIECE
            pace.wrote(PIECE, PIECE / player.rate)
        if written - taken < KERNEL:
            cut.full_at = math.inf
        else:
            cut.full_at = min(cut.full_at, now)
            if now - looked_at >= LOOK_S:
                pace.look(now, written - taken)
                looked_at = now
                if now >= pace.deadline(cut.full_at):
                    cut.at = now
                    break
    return cut


players = st.builds(
    Player,
    speed=st.sampled_from([SLOWEST + 0.001, 1.0, 2.0]),
    window=st.integers(16_000, 8_000_000),
    step=st.just(0),
    rate=st.sampled_from([48_000.0, 96_000.0, 16_000.0, 8_000.0, 3_000.0]),
    lead_s=st.sampled_from([None, 0.24, 1.0, 10.0]),
    start_s=st.floats(0.0, 1.5),
)


@given(player=players, share=st.floats(0.01, 0.7))
def test_a_player_is_never_cut_whatever_its_window_and_the_steps_in_which_it_opens(
    player: Player, share: float
) -> None:
    """Mutations: no audio in the deadline; audio counts from its writing; 1.3 for SLOWEST."""
    player.step = max(PIECE, int(player.window * share))
    assert serve(player, 60.0).at == math.inf


@given(player=players, plays_s=st.floats(0.0, 20.0))
def test_one_that_stops_is_cut_when_it_would_have_played_what_it_took(player: Player, plays_s: float) -> None:
    """Mutation: the time between looks counts for the client."""
    player.stop_s = player.start_s + plays_s
    cut = serve(player, 120.0)
    promised = max(cut.played_at, cut.taken_at, cut.full_at) + GRACE_S + 2 * LOOK_S
    assert promised >= 120.0 or cut.at <= promised


def test_a_client_that_was_left_alone_has_the_grace_from_the_first_lack_of_room() -> None:
    """And then as long as it plays what it takes. Mutations: `since`, or the idle time, is not considered."""
    pace = Pace(GRACE_S, 0.0)
    pace.look(100.0, 0)
    pace.wrote(KERNEL, 2.0)
    pace.look(101.0, KERNEL)
    assert pace.deadline(101.0) == 101.0 + GRACE_S
    pace.look(102.0, 0)
    assert pace.deadline(101.0) == pytest.approx(101.0 + 2.0 / SLOWEST + GRACE_S)


def test_one_that_takes_nothing_is_cut_after_the_grace() -> None:
    cut = serve(Player(speed=0.0, window=0, step=1, rate=48_000.0), 10.0)
    assert GRACE_S <= cut.at <= GRACE_S + LOOK_S


@pytest.mark.parametrize("window", [16_000, 64_000])
def test_a_reader_at_half_speed_is_served_while_it_takes_something(window: int) -> None:
    assert serve(Player(speed=0.5, window=window, step=window // 16, rate=48_000.0), 120.0).at == math.inf


def test_bytes_without_audio_extend_the_deadline_by_the_grace_alone() -> None:
    pace = Pace(GRACE_S, 0.0)
    pace.wrote(10_000)
    pace.look(5.0, 9_999)
    assert pace.deadline(0.0) == 5.0 + GRACE_S
    assert pace.unplayed_s(5.0) == 0.0


def test_the_unplayed_audio_is_what_waits_and_what_was_taken() -> None:
    pace = Pace(GRACE_S, 10.0)
    pace.wrote(48_000, 0.9)
    pace.wrote(48_000, 0.9)
    assert pace.unplayed_s(10.0) == pytest.approx(2.0)
    pace.look(10.0, 48_000)
    assert pace.unplayed_s(10.5) == pytest.approx(1.5)
    pace.look(12.0, 0)
    assert pace.unplayed_s(12.0) == pytest.approx(0.0)
    assert pace.unplayed_s(60.0) == 0.0


@given(seed=st.integers(0, 1_000))
def test_what_else_is_sent_never_counts_as_taken(seed: int) -> None:
    """Pings, heads and a cipher's overhead: measured, but not told."""
    chance = random.Random(seed)
    pace, waiting = Pace(GRACE_S, 0.0), 0
    for step in range(50):
        if chance.random() < 0.5:
            size = chance.randrange(1, 5_000)
            pace.wrote(size, size / 48_000)
            waiting += size + chance.randrange(60)
        pace.look(step * 0.1, waiting)
    assert pace.deadline(0.0) == GRACE_S
