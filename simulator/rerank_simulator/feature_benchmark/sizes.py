"""How much is measured: in full, and quickly."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Sizes of every part.

    Attributes
    ----------
    items
        Of the generated shop.
    training_visits, epochs
        Lists that the model learns from, and passes over them.
    appended, tracked
        Events.
    emitted, rescanned
        Requests to the pipeline and the re-ranker, and to the rescan.
    build_visits, build_repeats
        Lists of the generated training stream, and runs of which the best counts.
    users, events_per_user
        Whose state is weighed.
    kill_rounds
        Processes killed.
    """

    items: int
    training_visits: int
    epochs: int
    appended: int
    tracked: int
    emitted: int
    rescanned: int
    build_visits: int
    build_repeats: int
    users: int
    events_per_user: int
    kill_rounds: int


FULL = Sizes(
    items=2_000,
    training_visits=2_000,
    epochs=8,
    appended=400_000,
    tracked=100_000,
    emitted=2_000,
    rescanned=9,
    build_visits=15_000,
    build_repeats=3,
    users=1_000,
    events_per_user=200,
    kill_rounds=1_000,
)
QUICK = Sizes(
    items=300,
    training_visits=80,
    epochs=2,
    appended=5_000,
    tracked=2_000,
    emitted=50,
    rescanned=2,
    build_visits=100,
    build_repeats=1,
    users=20,
    events_per_user=60,
    kill_rounds=3,
)
