"""The words of a report: how figures are written, and what each of them means."""

from __future__ import annotations

from rerank_simulator.movielens import PERSONALISED, SERVER, SPLIT, WITH_EVENTS, WITHOUT_EVENTS
from rerank_simulator.report.result import BETTER, WORSE, DemoResult
from rerank_simulator.server import ServerConfig
from rerank_simulator.timeline import CHECKPOINTS, RELEVANT_AFTER_MS, RELEVANT_RATING

NO_BREAK = "\N{NO-BREAK SPACE}"


def fraction(value: float) -> str:
    """Write a metric.

    Examples
    --------
    >>> fraction(0.31724)
    '0.3172'
    """
    return f"{value:.4f}"


def difference(value: float) -> str:
    """Write a difference of two metrics.

    Examples
    --------
    >>> difference(0.0744), difference(-0.00001)
    ('+0.0744', '0.0000')
    """
    return f"{value:+.4f}" if round(value, 4) else "0.0000"


def percent(value: float) -> str:
    """Write a relative lift; four digits of the fraction, as in the JSON twin.

    Examples
    --------
    >>> percent(0.3061).split(), percent(0.0).split()
    (['+30.61', '%'], ['0.00', '%'])
    """
    return (f"{100 * value:+.2f}" if round(value, 4) else "0.00") + NO_BREAK + "%"


def headline(result: DemoResult) -> str:
    """One sentence: what the model does to the server's order."""
    lift = result.lift(WITH_EVENTS, SERVER, "ndcg10")
    if lift is None:
        return "The model was not compared with the server's order."
    absolute, relative = lift.lift.absolute, lift.lift.relative
    level = f"{100 * result.replay.level:g}{NO_BREAK}%"
    if relative is not None:
        mean, low, high = (percent(value) for value in (relative.mean, relative.low, relative.high))
    else:
        mean, low, high = (difference(value) for value in (absolute.mean, absolute.low, absolute.high))
    size = f"{mean} ({level} interval over users: {low} to {high})"
    if lift.verdict == BETTER:
        return f"Reordering each list after the user's own events lifts NDCG@10 over the server's order by {size}."
    if lift.verdict == WORSE:
        return f"Reordering each list after the user's own events is worse than the server's order: NDCG@10 {size}."
    return f"These data cannot tell whether the model is better than the server's order: NDCG@10 {size}."


def story_summary(result: DemoResult) -> str:
    """What happened on the story's list, and how usual that is."""
    story, lists = result.story, result.replay.lists
    return (
        f"User {story.user} came on {story.day} with {story.past_events:,} earlier events, all known to the re-ranker."
        f" {story.relevant:,} of the {story.candidates:,} candidates not yet rated turned out relevant. NDCG@10 of this"
        f" list: {fraction(story.ndcg10_server)} in the server's order, {fraction(story.ndcg10_model)} in the model's."
        f" On {story.lists_with_larger_gain:,} of {lists:,} judged lists the model gains more, so take this list as an"
        " example and the tables below as the result."
    )


STORY_NOTE = (
    "Green and bold: the user rated the film 4 or more afterwards. Dashed: it left the first ten. Numbers are places"
    " among the films that the user had not rated yet. Long titles are cut here and whole in the table."
)
POLICIES_NOTE = (
    "Dot: mean over users. Line: interval. Overlapping lines do not make two policies equal: compare them by their"
    " differences on the same lists, below."
)
EVENTS_NOTE = (
    "Dots: means over users; lines: intervals. Later points rest on other, more active users: compare policies at one"
    " point."
)
NO_EVENTS_NOTE = "No number of events has lists of two users or more, so there is nothing to compare."
LATENCY_NOTE = (
    "One warm process, one call at a time; the time of starting Python and of compiling or loading machine code is not"
    " included. The store's queue is empty at each call, as in an app where events come seconds apart. A known list was"
    " reordered before; a new list comes for the first time, and its films are remembered. Checking the request happens"
    " where the app builds it, before the call; features, score and order are parts of the call."
)
REPRODUCIBLE = (
    "Everything but the latencies comes out the same. The figures stand beside this file in a JSON file of the same"
    " name with .json at its end."
)


def definitions() -> tuple[tuple[str, str], ...]:
    """What every term of the report means: (term, text)."""
    server = ServerConfig()
    checkpoints = ", ".join(str(count) for count in CHECKPOINTS[:-1]) + f" and {CHECKPOINTS[-1]}"
    after_hours = RELEVANT_AFTER_MS // 3_600_000
    return (
        (
            "Server lists are constructed",
            "A rating log holds no lists that a server sent. They are built here: alternating least squares on all"
            f" likes before, plus recent popularity, retrained every {server.retrain_days:g} days on everything before;"
            " the user's own past is folded in up to the start of the visit. It sends up to"
            f" {server.list_length} films that the user has not rated, best first. Nobody ever saw these lists.",
        ),
        ("Visit", "What a user did without a pause of more than 30 minutes. The list arrives at its start."),
        (
            "Event",
            f"A rating as it happened: {RELEVANT_RATING:g} or more is a like, 3 a click, less a dislike. Events at one"
            " moment are taken in together.",
        ),
        (
            "Reordering",
            f"After {checkpoints} events of a visit (or the first moment after so many) the list is ordered anew, with"
            " everything known by then.",
        ),
        (
            "Relevant",
            f"A candidate that the user, not having rated it yet, rates {RELEVANT_RATING:g} or more later in the visit"
            f" or within {after_hours} hours after its last event. Everything else counts as not relevant, also films"
            " that the user would have liked and never rated.",
        ),
        (
            "NDCG@10",
            "Gain of the relevant films among the first ten that are still unrated, higher places counting more,"
            " divided by the gain of the best possible order: 1 is perfect, 0 means none of the ten is relevant.",
        ),
        ("MRR", "One divided by the place of the first relevant film: 1 when it stands first, 0.5 when second."),
        ("Recall@10", "Share of the list's relevant films that stand among the first ten that are still unrated."),
        (
            "Mean and interval",
            "Each user counts once: the mean over users of the mean over their lists. Intervals resample users with"
            " replacement (percentile bootstrap, 2,000 resamples, fixed seed). Where many intervals are read, about one"
            " in twenty misses the truth by chance.",
        ),
        (
            "Lift",
            "Difference of two policies on the same lists, resampled together. It is the comparison to trust: intervals"
            " of two policies may overlap while their difference is clear. When the interval of the difference contains"
            " zero, the verdict is “cannot tell”.",
        ),
        (SERVER, "The list as it came."),
        ("popularity", "Most rated films first, as of the newest server snapshot."),
        (WITHOUT_EVENTS, "The model on the device, with the events of a visit kept back until the user's next visit."),
        (
            WITH_EVENTS,
            "The model on the device, each event tracked as it happens. The model itself is never retrained.",
        ),
        (PERSONALISED, "The same, with the user's own last layer learned on the device and kept only where it helps."),
        (
            "Split in time",
            f"Item embeddings are learned on the first {SPLIT.embeddings:.0%} of the ratings, the model is trained on"
            f" lists up to {SPLIT.training:.0%}, training is stopped by lists up to {SPLIT.validation:.0%}, and the"
            " replay is the rest, of which training sees nothing.",
        ),
        (
            "Reason",
            "What one group of features does to the score: the score minus the score with the group at the list's"
            " average (for “your recent events”: with an empty history), compared with the other candidates. Positive"
            " lifts the film. A positive “similar to what you disliked” says: less similar than the others.",
        ),
    )


def limits() -> tuple[str, ...]:
    """What the figures do not show."""
    return (
        "The lists are constructed, so the lift is over this server, not over one that ran in production.",
        "Users rated without seeing these lists. A replay tells whether an order agrees with what they did anyway; what"
        " they would have done with the new order takes a test with real users.",
        "Only visits with enough events reach the later reorderings: along the line of events the users change. Compare"
        " the lines at one point, not one line from point to point.",
        "Users rate films on this site in long runs, one after the other. Other products have fewer and weaker events.",
        "Latencies hold for the machine named beside them, with whatever else it was doing; the 99th percentile shows"
        " that most. Starting Python and compiling or loading machine code are not part of them.",
    )


ATTRIBUTION = (
    "MovieLens data: F. M. Harper and J. A. Konstan, “The MovieLens Datasets: History and Context”, ACM Transactions on"
    " Interactive Intelligent Systems 5(4), 2015. Its terms allow research use and forbid redistribution."
)

REPRODUCE = """\
pip install 'rerank-sdk[simulator]'
rerank demo --report report.html

# The same from Python, here with the bundle that comes with the package:
from rerank_sdk.bundle import Bundle, builtin_bundle
from rerank_simulator.demo import run_demo
from rerank_simulator.logs import load_movielens
from rerank_simulator.report import write_report

write_report(run_demo(load_movielens(), Bundle.read(builtin_bundle())), "report.html")
"""
"""The commands that make this report."""
