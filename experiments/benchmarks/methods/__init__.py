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
    "wiski": Method("features:interpolation", "WISKI", "Stanton et al. 2021"),
    "gpytorch-exact": Method(
        "fantasies:exact", "GPyTorch fantasies, exact GP", "Gardner et al. 2018", needs="gpytorch"
    ),
    "gpytorch-ovc": Method(
        "fantasies:variational",
        "GPyTorch fantasies, variational GP (OVC)",
        "Maddox, Stanton & Wilson 2021",
        is_random=True,
        needs="gpytorch",
    ),
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
POINTS = {
    "private": "private points",
    "shared": "shared points",
    "conditional": "conditional points",
    "automatic": "automatic private points",
    "every input": "a point at every input",
    "1000 inputs": "points at up to 1,000 inputs",
    "2000 inputs": "points at up to 2,000 inputs",
}


def _our(points: str, variant: str, *settings: str) -> tuple[str, Method]:
    """Name and method of a strategy with what :func:`.ours.streaming_gp` takes after its points."""
    name = f"{points.replace(' ', '-')}-{variant}".removesuffix("-default")
    title = f"{POINTS[points]}, {variant}"
    arguments = (points, *settings)
    return name, Method(
        "ours:streaming_gp", title, "this package", arguments, group="ours", labels=True
    )


def _ours(hyperparameters: str) -> dict[str, Method]:
    return dict(_our(points, hyperparameters, hyperparameters) for points in POINTS)


FORGETFUL = dict(
    _our(points, forgets, "forgetting", forgets)
    for points, forgets in (("private", "fading"), ("every input", "window"))
)
"""Ours for functions that change with time."""

SETTLED = dict(
    _our(points, "settled", "default", "nothing", "settled")
    for points in ("every input", "1000 inputs")
)
"""Ours where batches are only absorbed once ε hardly moves."""

LIMITS = {
    f"{name}@all": replace(method, group="limit", tuned="all data")
    for name, method in FIXED.items()
}
METHODS = {
    **_ours("default"),
    **{name: replace(method, tuned="first batches") for name, method in FIXED.items()},
    **LEARNING,
    **AT_ONCE,
    **_ours("forgetting"),
    **_ours("point"),
    **_ours("newest"),
    **FORGETFUL,
    **SETTLED,
    **LIMITS,
}
