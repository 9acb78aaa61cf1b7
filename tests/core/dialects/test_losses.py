"""The account of what is not carried."""

from antiphon.core.dialects.losses import Losses


def test_ignored_paths_lose_their_indices_and_come_once():
    losses = Losses(ignored=("metadata",))
    losses.ignore("messages.3.content.10.cache_control")
    losses.ignore("messages.4.content.0.cache_control")
    losses.ignore("system.0")
    assert losses.ignored == ("metadata", "messages.*.content.*.cache_control", "system.*")
    assert losses.degraded == ()


def test_degraded_paths_stay_exact():
    losses = Losses(degraded=("container",))
    losses.degrade("tools.2")
    losses.degrade("tools.2")
    losses.degrade("tools.12")
    assert losses.degraded == ("container", "tools.2", "tools.12")


def test_a_digit_in_a_name_is_no_index():
    losses = Losses()
    losses.ignore("v2.x1.3b")
    assert losses.ignored == ("v2.x1.3b",)
