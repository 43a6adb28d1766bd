"""All methods by name, each with its source and what its setting is."""

from __future__ import annotations

from dataclasses import replace

from experiments.benchmarks.methods.learner import (
    Held,
    Hyperparameters,
    Learner,
    Method,
    Prediction,
    Setup,
)

__all__ = ["METHODS", "Held", "Hyperparameters", "Learner", "Method", "Prediction", "Setup"]

FIXED = {
    "block-cholesky": Method(
        "exact_gp:block_cholesky", "exact GP, block Cholesky", "Rasmussen & Williams 2006, A.3"
    ),
    **{
        f"window-{size}": Method(
            "exact_gp:window", "exact GP, sliding window", "the newest points alone", (size,)
        )
        for size in (500, 1500)
    },
    **{
        f"features-{number}{'-scaled' * scaled}": Method(
            "features:random_features",
            f"{number} random features",
            "Rahimi & Recht 2007; Gijsberts & Metta 2013",
            (number, scaled),
            is_random=True,
        )
        for number in (500, 2000)
        for scaled in (0, 1)
    },
    **{
        f"local-gps-{most}": Method(
            "local_gps:local_gps",
            "local GPs (LoG-GP)",
            "Lederer et al. 2021",
            (most,),
            is_random=True,
        )
        for most in (100, 400)
    },
}
"""Rivals that cannot learn hyperparameters on the way."""

LEARNING = {
    **{
        f"bui2017-{points}": Method(
            "shared_2017:shared",
            "shared points of 2017",
            "Bui, Nguyen & Turner 2017",
            (points,),
            is_random=True,
        )
        for points in (120, 240)
    },
    **{
        f"svgp-newest-{steps}": Method(
            "svgp:newest",
            "SVGP on the newest batch",
            "Hensman, Fusi & Lawrence 2013",
            (steps,),
            is_random=True,
            labels=True,
        )
        for steps in (50, 200)
    },
    **{
        f"svgp-replay-{steps}": Method(
            "svgp:replay",
            "SVGP with replay of 1,000",
            "Hensman, Fusi & Lawrence 2013",
            (steps,),
            is_random=True,
            labels=True,
        )
        for steps in (50, 200)
    },
    **{
        f"river-linear-{rate}": Method(
            "linear:linear",
            "linear model (river)",
            "Montiel et al. 2021",
            (rate,),
            group="floor",
            labels=True,
            needs="river",
        )
        for rate in (1, 10)
    },
}
"""Rivals that learn all they learn batch by batch."""

AT_ONCE = {
    name: Method(
        f"svgp:{kind.lower()}_at_once",
        f"{kind} on all data, {number} points",
        source,
        (number,),
        group="limit",
        tuned="all data",
        is_random=True,
        labels=kind == "SVGP",
        at_once=True,
    )
    for name, kind, number, source in (
        ("sgpr", "SGPR", 240, "Titsias 2009"),
        ("sgpr-1000", "SGPR", 1000, "Titsias 2009"),
        ("svgp", "SVGP", 240, "Hensman, Fusi & Lawrence 2013"),
    )
}
NEAREST = {
    **{
        f"gpboost{'-two-threads' * (threads - 1)}": Method(
            "vecchia:gpboost",
            f"GPBoost's Vecchia GP on all data{', two threads' * (threads - 1)}",
            "Sigrist 2022; 20 neighbours",
            (threads,),
            group="limit",
            labels=True,
            needs="gpboost",
            at_once=True,
        )
        for threads in (1, 2)
    },
    "gpboost-refitted": Method(
        "vecchia:gpboost",
        "GPBoost's Vecchia GP, fitted at each tenth",
        "Sigrist 2022; 20 neighbours",
        (1,),
        labels=True,
        needs="gpboost",
    ),
    "vnngp": Method(
        "vecchia:vnngp",
        "GPyTorch's VNNGP on all data",
        "Wu, Pleiss & Cunningham 2022; 32 neighbours",
        group="limit",
        is_random=True,
        needs="gpytorch",
        at_once=True,
    ),
}
"""Rivals that condition on what is near."""

OURS = {
    name: Method("ours:streaming_gp", title, "this package", (name,), group="ours", labels=True)
    for name, title in (
        ("default", "the default"),
        ("dense", "a point at every input, dense"),
        ("nearest", "a point at every input, nearest neighbours"),
        ("private", "private points"),
        ("shared", "shared points"),
        ("conditional", "conditional points"),
        ("default-fading", "the default, fading"),
        ("default-window", "the default, a sliding window"),
        ("private-fading", "private points, fading"),
    )
}
LIMITS = {
    f"{name}@all": replace(method, group="limit", tuned="all data")
    for name, method in FIXED.items()
}
METHODS = {
    **OURS,
    **NEAREST,
    **{name: replace(method, tuned="first batches") for name, method in FIXED.items()},
    **LEARNING,
    **AT_ONCE,
    **LIMITS,
}
