"""Scenes of ranks that meet, played by one rank: `python rank_group_scenes.py SCENE`. What it has to say is printed."""

from __future__ import annotations

import os
import sys
import time

from whet.reward.user_code import user_code
from whet.training.distributed import rank_group as crews
from whet.training.distributed.launch import launched
from whet.training.distributed.rank_group import OtherRankEnded, meet
from whet.types import WhetError

LAUNCH = launched()


def agreeing() -> None:
    """Two runs of one process, one after the other; then one in which the ranks do not agree, and one that fails."""
    for number in range(2):
        crew = meet(LAUNCH, 60)
        print("given", crew.hand_out("word", f"run {number}" if crew.is_first else ""))
        print("given", crew.exchange("names", f"rank {LAUNCH.rank}"))
        crew.finish()
        crew.leave()
    crew = meet(LAUNCH, 60)
    try:
        crew.agree("config", {"seed": str(LAUNCH.rank), "steps": "3"}, "give the same")
    except WhetError as error:
        print("raised", error)
    crew.leave()
    crews.package_versions = lambda: {"torch": f"2.{LAUNCH.rank}"}
    crew = meet(LAUNCH, 60)
    try:
        crew.agree_on_packages()
    except WhetError as error:
        print("raised", error)
    crew.leave()
    crew = meet(LAUNCH, 60)
    if LAUNCH.rank == 1:
        crew.fail("the tape is torn")
    else:
        try:
            crew.hand_out("nothing") if not crew.is_first else crew.exchange("word", "")
        except OtherRankEnded as error:
            print("raised", error)
    crew.leave()


def standing_still() -> None:
    """Rank 1 is gone while the main thread of rank 0 is in a call that nothing interrupts.

    It is a reward, during which nobody may end the process; and the last words never end.
    """
    crew = meet(LAUNCH, 2)
    crew.exchange("names", "")
    crew.note("in step 7")
    time.sleep(1)
    if LAUNCH.rank == 1:
        os._exit(9)
    crew.heart.last_words = lambda cause: (print("last words:", cause, flush=True), time.sleep(300))
    with user_code("a reward"):
        time.sleep(300)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
    sys.stdout.flush()
