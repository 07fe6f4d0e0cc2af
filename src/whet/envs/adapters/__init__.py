"""Environments that were written for other packages, as they are: one file per interface.

    trl            a class with `reset(**row)`, whose other public methods are tools, and `get_reward()` if it wants
    skyrl          SkyRL-Gym's `BaseTextEnv`: `init(prompt)` and `step(text)`
    gym            Gymnasium's `reset(seed=...)` and `step(action)`, and the same interface without the package
    gem            the games of gem
    textarena      the games of TextArena
    attempts       several attempts at one question, judged by a reward
    bfcl           the multi-turn tasks of the Berkeley function-calling leaderboard, with its simulators
    verifiers      environments and tasksets of verifiers, which play by themselves behind the endpoint

Each but the last turns one foreign object into a `whet.protocols.Environment`. `kinds.as_environment` finds out which
one a class of your own needs.
"""
