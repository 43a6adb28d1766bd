"""The command of a site: it shows that its data can be learned from, and answers a coordinator."""

from __future__ import annotations

import argparse
import runpy
from pathlib import Path
from typing import Any

from streaming_gp import engines, pvi
from streaming_gp.errors import InvalidDataError
from streaming_gp.pvi.privacy import begin_record


def site(options: argparse.Namespace, plan: None) -> dict[str, Any]:
    """Check the sites of a program, or serve them until the process is ended.

    :raises InvalidDataError: if the program has no sites, or their data cannot be read.
    """
    sites = sites_of(options.program)
    if options.begin_record:
        for one in sites:
            begin_record(_record_of(one), one.client_id)
    if options.check:
        rows = {one.client_id: one.at_work().num_data for one in sites}
        if not options.json:
            for name, number in rows.items():
                print(f"{name}: {number} rows that its model takes")
        return {"rows": rows}
    pvi.serve(sites, _engine(options))
    return {"served": [one.client_id for one in sites]}


def sites_of(program: Path) -> list[pvi.Site]:
    """What a Python file calls ``site`` or ``sites``.

    :raises InvalidDataError: if it has neither.
    """
    names = runpy.run_path(str(program))
    given: Any = names.get("sites", names.get("site"))
    sites: list[Any] = list(given) if isinstance(given, (list, tuple)) else [given]
    if not sites or not all(isinstance(one, pvi.Site) for one in sites):
        raise InvalidDataError(f"{program} must define site, a pvi.Site, or sites, several of them")
    return sites


def _record_of(one: pvi.Site) -> str:
    record = getattr(one.update, "record", None)
    if record is None:
        raise InvalidDataError(f"the rule of site {one.client_id!r} keeps no record")
    return str(record)


def _engine(options: argparse.Namespace) -> Any:
    if options.nvflare is not None:
        return engines.NVFlare(options.nvflare, address=options.address, inbox=options.inbox)
    return engines.Flower(options.flower, options.secret, options.certificate, inbox=options.inbox)
