"""What is asked for by name and is not there: why, and what comes nearest."""

LEFT_OUT = {
    "power_dl": "of Rashidinejad et al. 2024 (arXiv 2412.09544) the drifting labels and the eta term could not be "
    "verified; power has the reward alone",
    "pg_dpo": "no paper of that name with a preference loss was found; dpop protects the chosen completion's "
    "likelihood",
    "flowrl": "FlowRL (arXiv 2509.15207) learns log Z(x), a number for each prompt, by a head of its own, which no "
    "component here trains; pmd_mean is the regression with the group's mean in its place",
    "otb": "the optimal token baseline (arXiv 2602.07078) weighs tokens by SUM_v pi_v^2 of the policy that wrote them, "
    "which the pass before the updates does not compute (preference losses have it, as log_square), and which a "
    "batch has no field for; opo weighs completions by their length",
}
