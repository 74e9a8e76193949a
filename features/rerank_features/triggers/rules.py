"""The common rules, ready to use, and the default set."""

from __future__ import annotations

from rerank_features.triggers.spec import Action, TriggerRule, TriggerSpec, TriggerStep


def on_click(*, action: Action = "rerank", debounce_s: float = 0.0) -> TriggerRule:
    """Fire at each click.

    Examples
    --------
    >>> on_click().name
    'click'
    """
    return TriggerRule(
        name="click", action=action, steps=(TriggerStep(kinds=("click",)),), debounce_s=debounce_s, priority=10
    )


def on_hide(*, action: Action = "rerank", debounce_s: float = 0.0) -> TriggerRule:
    """Fire when the user hides or dislikes an item.

    Examples
    --------
    >>> on_hide().steps[0].kinds
    ('hide', 'dislike')
    """
    steps = (TriggerStep(kinds=("hide", "dislike")),)
    return TriggerRule(name="hide", action=action, steps=steps, debounce_s=debounce_s, priority=20)


def exposures_without_click(count: int = 5, *, action: Action = "rerank", debounce_s: float = 0.0) -> TriggerRule:
    """Fire after each ``count`` impressions without a click among them.

    Raises
    ------
    SpecError
        ``count`` is out of range.

    Examples
    --------
    >>> exposures_without_click(3).name
    'exposures_without_click_3'
    """
    steps = (TriggerStep(kinds=("impression",), count=count, without=("click",)),)
    return TriggerRule(name=f"exposures_without_click_{count}", action=action, steps=steps, debounce_s=debounce_s)


def dwell_over(dwell_s: float, *, action: Action = "rerank", debounce_s: float = 0.0) -> TriggerRule:
    """Fire when the user stayed with an item for at least ``dwell_s``.

    Raises
    ------
    SpecError
        ``dwell_s`` is no finite number.

    Examples
    --------
    >>> dwell_over(10.0).steps[0].min_value
    10.0
    """
    steps = (TriggerStep(kinds=("dwell",), min_value=dwell_s),)
    return TriggerRule(name=f"dwell_over_{dwell_s}_s", action=action, steps=steps, debounce_s=debounce_s)


def scroll_past(position: int, *, action: Action = "rerank") -> TriggerRule:
    """Fire once a list, when the item at ``position`` or one behind it is shown.

    Raises
    ------
    SpecError
        ``position`` is out of range.

    Examples
    --------
    >>> scroll_past(20).once
    True
    """
    steps = (TriggerStep(kinds=("impression",), min_position=position),)
    return TriggerRule(name=f"scroll_past_{position}", action=action, steps=steps, scope="request", once=True)


def list_used_up(share: float = 0.8) -> TriggerRule:
    """Ask for a fresh list, once a list, when so much of it has been shown.

    The list's length must have been told by :meth:`TriggerMatcher.note_request`.

    Raises
    ------
    SpecError
        ``share`` is not above 0 and at most 1.

    Examples
    --------
    >>> list_used_up().action
    'refresh'
    """
    steps = (TriggerStep(kinds=("impression",), min_share=share),)
    return TriggerRule(name="list_used_up", action="refresh", steps=steps, scope="request", once=True)


def default_triggers() -> TriggerSpec:
    """EdgeRec's three triggers (click, hide, five exposures without a click), and a fresh list at 80 %.

    Examples
    --------
    >>> [rule.name for rule in default_triggers().rules]
    ['click', 'hide', 'exposures_without_click_5', 'list_used_up']
    """
    return TriggerSpec(name="default", rules=(on_click(), on_hide(), exposures_without_click(), list_used_up()))
