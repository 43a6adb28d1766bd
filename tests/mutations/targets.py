"""Which tests hold which files; quick ones first, as the first failure ends a mutant's run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Target:
    """Files and what is held against them.

    :param files: A pattern of files under the package.
    :param tests: Arguments of pytest, in order.
    """

    files: str
    tests: tuple[str, ...]

    def paths(self) -> list[Path]:
        """The files, relative to the repository."""
        found = sorted((ROOT / "streaming_gp").glob(self.files))
        return [path.relative_to(ROOT) for path in found]


UPDATES = "tests/pvi/updates"
DIVERGENCES = tuple(
    f"{UPDATES}/test_generalised.py::test_{name}"
    for name in (
        "renyi_is_its_integral",
        "beta_and_gamma_divergences_are_their_integrals",
        "beta_and_gamma_divergences_tend_to_kl",
        "fisher_rao_is_a_distance_that_grows_with_the_shift",
        "divergences_are_averages_over_draws",
        "renyi_tends_to_both_kl_from_both_sides",
        "renyi_goes_on_through_its_limits_with_one_slope",
        "renyi_has_a_gradient_under_an_improper_cavity",
        "which_divergences_are_defined_under_an_improper_cavity",
        "losses_outside_their_domain_are_refused",
    )
)
TARGETS = {
    "losses": Target("losses.py", ("tests/test_losses.py", f"{UPDATES}/test_generalised.py")),
    "expfam": Target(
        "expfam/*.py", ("tests/expfam/test_gaussians.py", "tests/expfam", *DIVERGENCES)
    ),
    "updates/ep": Target(
        "pvi/updates/ep/*.py", (f"{UPDATES}/test_tied.py", f"{UPDATES}/test_ep.py")
    ),
    "updates/local": Target(
        "pvi/updates/local/*.py",
        (
            f"{UPDATES}/test_local_rules.py",
            f"{UPDATES}/test_optimisers.py",
            f"{UPDATES}/test_plateau.py",
            f"{UPDATES}/test_generalised.py",
            "tests/pvi/test_federated.py",
            "tests/bnn/test_bnn.py",
        ),
    ),
    "updates/baselines": Target(
        "pvi/updates/baselines/*.py",
        (f"{UPDATES}/test_committees.py", f"{UPDATES}/test_baselines.py"),
    ),
    "updates/sampled": Target("pvi/updates/sampled/*.py", (f"{UPDATES}/test_snep.py",)),
    "gp/bounds": Target(
        "gp/bounds/*.py",
        (
            "tests/gp/bounds/test_dense_bounds.py",
            "tests/gp/bounds",
            "tests/gp/strategies/test_conditional_points.py",
            "tests/gp/strategies/test_independent_points.py",
            "tests/gp/test_prediction.py::test_changing_a_fixed_parameter_changes_predictions",
        ),
    ),
}
