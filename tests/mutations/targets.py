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


LAWS = "tests/laws"
DIVERGENCES = tuple(
    f"{LAWS}/test_generalised.py::test_{name}"
    for name in (
        "renyi_is_its_integral",
        "fisher_and_total_variation_are_their_integrals",
        "fisher_is_an_average_of_squared_slopes",
        "total_variation_has_the_gradient_of_its_integral",
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
    "losses": Target("losses.py", (f"{LAWS}/test_generalised.py",)),
    "expfam": Target("expfam/*.py", (f"{LAWS}/test_expfam.py", *DIVERGENCES)),
    "updates/ep": Target("pvi/updates/*_ep.py", (f"{LAWS}/test_ep.py",)),
    "updates/local": Target(
        "pvi/updates/[fov]*.py",
        (
            f"{LAWS}/test_local_rules.py",
            f"{LAWS}/test_generalised.py",
            f"{LAWS}/test_federated.py",
            f"{LAWS}/test_networks.py",
        ),
    ),
    "updates/baselines": Target("pvi/updates/baselines.py", (f"{LAWS}/test_baselines.py",)),
    "updates/sampled": Target("pvi/updates/s[an]*.py", (f"{LAWS}/test_snep.py",)),
    "damping": Target("pvi/damping.py", (f"{LAWS}/test_damping.py", f"{LAWS}/test_robust.py")),
    "server_optimisers": Target(
        "pvi/server_optimisers.py", (f"{LAWS}/test_damping.py", f"{LAWS}/test_baselines.py")
    ),
    "privacy": Target(
        "pvi/privacy/*.py",
        (
            f"{LAWS}/test_accountant.py",
            f"{LAWS}/test_private_rules.py",
            f"{LAWS}/test_sums_of_changes.py",
        ),
    ),
    "gp/fit": Target(
        "gp/fit/[bcs]*.py",
        (
            f"{LAWS}/test_local_bounds.py",
            f"{LAWS}/test_exact_limits.py",
            f"{LAWS}/test_contracts.py",
            f"{LAWS}/test_shared_points.py",
            f"{LAWS}/test_prediction.py::test_changing_a_fixed_parameter_changes_predictions",
        ),
    ),
    "gp/evidence": Target(
        "gp/fit/evidence.py", (f"{LAWS}/test_nearest.py", f"{LAWS}/test_hyperparameters.py")
    ),
}
