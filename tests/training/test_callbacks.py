"""A callback has any subset of the methods."""

from whet.protocols import Callback
from whet.training.run_loop import notify


class OnlySaves:
    def __init__(self):
        self.seen = []

    def saved(self, step, checkpoint):
        self.seen.append((step, checkpoint))


class Own(Callback):
    def __init__(self):
        self.seen = []

    def stepped(self, report, samples):
        self.seen.append(report)


def test_every_event_reaches_those_who_want_it():
    only, own = OnlySaves(), Own()
    callbacks = [only, own, object()]
    notify(callbacks, "started", {})
    notify(callbacks, "stepped", "report", [])
    notify(callbacks, "evaluated", 1, "eval", {}, 0.1)
    notify(callbacks, "saved", 3, "folder")
    notify(callbacks, "finished", {})
    assert only.seen == [(3, "folder")] and own.seen == ["report"]
