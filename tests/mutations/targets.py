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
TARGETS = {
    "losses": Target("losses.py", ("tests/test_losses.py", f"{UPDATES}/test_generalised.py")),
    "expfam": Target("expfam/*.py", ("tests/expfam", f"{UPDATES}/test_generalised.py")),
    "updates/ep": Target("pvi/updates/ep/*.py", (f"{UPDATES}/test_ep.py",)),
    "updates/local": Target(
        "pvi/updates/local/*.py",
        (f"{UPDATES}/test_generalised.py", "tests/pvi/test_federated.py", "tests/bnn/test_bnn.py"),
    ),
    "updates/baselines": Target(
        "pvi/updates/baselines/*.py",
        (f"{UPDATES}/test_committees.py", f"{UPDATES}/test_baselines.py"),
    ),
    "updates/sampled": Target("pvi/updates/sampled/*.py", (f"{UPDATES}/test_snep.py",)),
    "gp/bounds": Target("gp/bounds/*.py", ("tests/gp/bounds",)),
}
