"""Waiting in a browser, for pages whose content policy lets no string become a script."""

import time

READY = "typeof whet !== 'undefined' && whet.lab && whet.lab.stage() && whet.lab.stage().charts.length > 0"
SECONDS = 120


def until(page, expression):
    ends = time.monotonic() + SECONDS
    while not page.evaluate(expression):
        assert time.monotonic() < ends, f"never true: {expression}"
        page.wait_for_timeout(50)


def settle(page):
    """Wait for the charts of the last setting."""
    page.wait_for_timeout(150)
    until(page, "!document.querySelector('.experiment.shown.is-busy')")
