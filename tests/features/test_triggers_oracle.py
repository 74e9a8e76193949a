"""Random rules and random streams of events: the trie fires what a plain rescan of all events fires."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from rerank_features import Event, TriggerMatcher, TriggerSpec
from rerank_features.triggers import TriggerRule, TriggerStep

KINDS = ("click", "impression", "hide", "other")
USERS = ("ann", "bob")
SESSION_GAP_S = 20.0
MAX_LATE_S = 8.0


class Oracle:
    """Keeps every event and looks at all of them again, for each rule, at each event."""

    def __init__(self, spec: TriggerSpec) -> None:
        self.spec = spec
        steps = [step for rule in spec.rules for step in rule.steps]
        self.kinds = {kind for step in steps for kind in step.kinds + step.without}
        if any(
            not rule.gaps or rule.cooldown_events or rule.scope == "session" or any(not s.kinds for s in rule.steps)
            for rule in spec.rules
        ):
            self.kinds = set(KINDS)
        self.events: dict[str, list[tuple[Event, int, int]]] = {}
        self.ids: set[tuple[str, str | None]] = set()
        self.clock: dict[str, int] = {}
        self.session: dict[str, int] = {}
        self.fired: dict[tuple[str, str], tuple[int, int]] = {}
        self.floors: dict[tuple[str, str, object], int] = {}
        self.count: dict[str, int] = {}

    def feed(self, event: Event) -> list[tuple[str, int, int]]:
        user = event.user
        if event.kind not in self.kinds or (user, event.id) in self.ids:
            return []
        self.ids.add((user, event.id))
        time_ms, clock = event.time_ms, self.clock.get(user, event.time_ms)
        if clock - time_ms > MAX_LATE_S * 1000:
            self.events[user] = []
            self.session[user] = self.session.get(user, 0) + 1
            self.fired = {key: last for key, last in self.fired.items() if key[0] != user}
            self.floors = {key: last for key, last in self.floors.items() if key[0] != user}
        else:
            if time_ms - clock > SESSION_GAP_S * 1000:
                self.session[user] = self.session.get(user, 0) + 1
            time_ms = max(time_ms, clock)
        self.clock[user] = time_ms
        self.count[user] = self.count.get(user, 0) + 1
        history = self.events.setdefault(user, [])
        history.append((event, time_ms, self.session.get(user, 0)))
        found = []
        for index, rule in enumerate(self.spec.rules):
            started_ms = self._match(rule, user, history, time_ms)
            if started_ms is not None:
                found.append((-rule.priority, index, (rule.name, time_ms, started_ms)))
        return [one for _, _, one in sorted(found)]

    def _match(self, rule: TriggerRule, user: str, history: list[tuple[Event, int, int]], now: int) -> int | None:
        newest, _, session = history[-1]
        scope: object = {"user": None, "session": session, "request": newest.request}[rule.scope]
        sequence = [
            (event, time_ms)
            for event, time_ms, of_session in history
            if rule.scope == "user"
            or (rule.scope == "session" and of_session == session)
            or (rule.scope == "request" and event.request == newest.request)
        ]
        units = [step for step in rule.steps for _ in range(step.count)]

        def fits(step: TriggerStep, event: Event) -> bool:
            if (step.kinds and event.kind not in step.kinds) or event.kind in step.without:
                return False
            return all(
                bound is None or (got is not None and (got - bound) * sign >= 0)
                for bound, got, sign in (
                    (step.min_value, event.value, 1),
                    (step.max_value, event.value, -1),
                    (step.min_position, event.position, 1),
                    (step.max_position, event.position, -1),
                )
            )

        # Row by row of the pattern: at which event it may stand, and with which first events.
        starts = [{i} if fits(units[0], event) else set() for i, (event, _) in enumerate(sequence)]
        for step in units[1:]:
            following: list[set[int]] = []
            for i, (event, _) in enumerate(sequence):
                found: set[int] = set()
                if fits(step, event):
                    for before in range(i) if rule.gaps else range(max(i - 1, 0), i):
                        if not any(between.kind in step.without for between, _ in sequence[before + 1 : i]):
                            found |= starts[before]
                following.append(found)
            starts = following
        floor = self.floors.get((user, rule.name, scope), -1)
        within_ms = float("inf") if rule.within_s is None else rule.within_s * 1000
        good = [start for start in starts[-1] if start > floor and now - sequence[start][1] <= within_ms]
        if not good:
            return None
        if (user, rule.name) in self.fired and (rule.debounce_s or rule.cooldown_events):
            fired_ms, fired_event = self.fired[user, rule.name]
            if now - fired_ms < rule.debounce_s * 1000 or self.count[user] - fired_event <= rule.cooldown_events:
                return None
        self.fired[user, rule.name] = (now, self.count[user])
        self.floors[user, rule.name, scope] = 10**9 if rule.once else len(sequence) - 1
        return sequence[max(good)][1]


@st.composite
def steps(draw: st.DrawFn) -> TriggerStep:
    kinds = draw(st.lists(st.sampled_from(KINDS), max_size=2, unique=True))
    others = [kind for kind in KINDS if kind not in kinds]
    return TriggerStep(
        kinds=kinds,
        count=draw(st.sampled_from((1, 1, 1, 2, 3))),
        without=draw(st.one_of(st.just([]), st.lists(st.sampled_from(others), max_size=1))),
        min_value=draw(st.sampled_from((None, None, None, 1.0))),
        max_value=draw(st.sampled_from((None, None, None, 2.0))),
        min_position=draw(st.sampled_from((None, None, None, 1))),
        max_position=draw(st.sampled_from((None, None, None, 2))),
    )


@st.composite
def specs(draw: st.DrawFn) -> TriggerSpec:
    shared = draw(st.lists(steps(), min_size=1, max_size=4))
    rules = [
        TriggerRule(
            name=f"r{i}",
            action=draw(st.sampled_from(("rerank", "personalise", "refresh"))),
            # Steps from a small pool, so that rules share prefixes.
            steps=draw(st.lists(st.sampled_from(shared), min_size=1, max_size=3)),
            scope=draw(st.sampled_from(("user", "user", "session", "request"))),
            within_s=draw(st.sampled_from((None, None, 3.0, 10.0))),
            gaps=draw(st.booleans()),
            once=draw(st.sampled_from((False, False, False, True))),
            debounce_s=draw(st.sampled_from((0.0, 0.0, 5.0))),
            cooldown_events=draw(st.sampled_from((0, 0, 2))),
            priority=draw(st.integers(0, 1)),
        )
        for i in range(draw(st.integers(1, 5)))
    ]
    return TriggerSpec(name="random", rules=rules, session_gap_s=SESSION_GAP_S, max_late_s=MAX_LATE_S)


@st.composite
def streams(draw: st.DrawFn) -> list[Event]:
    """Mostly forward in time, with equal times, late events, jumps both ways, and repeated deliveries."""
    events: list[Event] = []
    now = 100_000
    for number in range(draw(st.integers(1, 40))):
        if events and draw(st.integers(0, 9)) == 0:
            events.append(events[-draw(st.integers(1, min(len(events), 8)))])
            continue
        now = max(now + draw(st.sampled_from((0, 500, 1000, 1000, 3000, 21_000, -4_000, -30_000))), 0)
        events.append(
            Event(
                user=draw(st.sampled_from(USERS)),
                item="i",
                kind=draw(st.sampled_from(KINDS)),
                time_ms=now,
                request=draw(st.sampled_from((None, "q"))),
                value=draw(st.sampled_from((None, 0.5, 1.5, 3.0))),
                position=draw(st.sampled_from((None, 0, 1, 3))),
                id=f"e{number}",
            )
        )
    return events


@settings(max_examples=400, deadline=None)
@given(specs(), streams())
def test_the_trie_fires_what_a_rescan_fires(spec: TriggerSpec, events: list[Event]) -> None:
    matcher, oracle = TriggerMatcher(spec), Oracle(spec)
    trusting, came = TriggerMatcher(spec, recognise_repeats=False), set()
    for event in events:
        found = matcher.feed(event)
        assert [(f.rule, f.time_ms, f.started_ms) for f in found] == oracle.feed(event)
        if event.identity() not in came:
            assert trusting.feed(event) == found
        came.add(event.identity())


@settings(max_examples=100, deadline=None)
@given(specs(), streams(), st.integers(0, 40))
def test_a_restored_matcher_goes_on_alike(spec: TriggerSpec, events: list[Event], cut: int) -> None:
    through, before, after = TriggerMatcher(spec), TriggerMatcher(spec), TriggerMatcher(spec)
    for event in events[:cut]:
        through.feed(event)
        before.feed(event)
    for user in USERS:
        data = before.snapshot(user)
        after.restore(user, data)
        assert after.snapshot(user) == data
    for event in events[cut:]:
        assert after.feed(event) == through.feed(event)
    for user in USERS:
        assert after.snapshot(user) == through.snapshot(user)
