"""Losses on preferences: pairs, labelled completions, ranked answers and step labels. Pure functions on tensors.

`PairObjective` is the contract; the methods are in `whet.objective.presets.preference`, their axes and components in
`whet.objective.axes`.
"""
