"""Rounds in which the coordinator of Flower sees the sum of what places say, and nothing else."""

import sys

import numpy as np
import pytest

from streaming_gp import engines, pvi, serialization
from streaming_gp.errors import InvalidDataError, NoAnswerError
from streaming_gp.pvi.privacy.sums import KIND, SiteRecord
from tests.oracles import sums_of_tests
from tests.oracles.flower_world import World
from tests.oracles.reference import assert_same
from tests.oracles.sums_of_tests import PLACES

pytest.importorskip("flwr", reason="the flower extra is not installed")
pytestmark = [pytest.mark.flower, pytest.mark.xdist_group("sums")]


class Places(World):
    """Four places at work, each a SuperNode and a process that stays."""

    def __init__(self, folder):
        super().__init__(folder, PLACES)
        for number, place in enumerate(PLACES):
            self.begin_site(number, place)

    def begin_site(self, number, place):
        module = [sys.executable, "-m", "tests.oracles.sums_of_tests", str(number)]
        secret = self.file(f"{place}.secret")
        return self.run(place, [*module, str(self.folder), self.address(place), secret])

    def engine(self, **options):
        keys = {place: self.file(f"{place}.pub") for place in PLACES}
        address, secret = f"localhost:{self.ports['link']}", self.file("link.secret")
        return engines.Flower(address, secret, self.file("ca.pem"), keys, **options)

    def server(self, **options):
        sites = [sums_of_tests.site(number, str(self.folder), **options) for number in range(4)]
        return pvi.Server(sites[0].model.prior(), sites)

    def notes(self, kind, *names):
        return [self.folder / f"{kind}-{name}" for name in names]

    def kept(self, name):
        classes = serialization.registered_classes()
        return serialization.read(self.folder / "kept" / f"{name}.npz", KIND, classes, SiteRecord)


@pytest.fixture(scope="module")
def places(tmp_path_factory):
    found = Places(tmp_path_factory.mktemp("places"))
    yield found
    found.end()


@pytest.fixture
def failing(places):
    """Places that fail for the time of a test."""
    notes = []

    def begin(*names):
        for note in places.notes("fails", *names):
            note.touch()
            notes.append(note)

    yield begin
    for note in notes:
        note.unlink()


def here(rounds, names=("s0", "s1", "s2", "s3")):
    """The run of one process that has all data, and asks these."""
    rule = pvi.VariationalUpdate(batch_size=None, optimiser=pvi.LBFGS())
    shards = {name: sums_of_tests.shard(int(name[1:])) for name in names}
    model = sums_of_tests.model()
    server = pvi.Server(model.prior(), pvi.make_clients(model, shards, rule))
    pvi.fit(server, pvi.Synchronous(damping=1.0 / len(PLACES)), rounds)
    return server


def far(a, b):
    """The largest difference of two posteriors' natural parameters."""
    pairs = zip(a.natural, b.natural, strict=True)
    return max(float(np.max(np.abs(x - y))) for x, y in pairs)


@pytest.fixture
def heard(monkeypatch):
    """All that the coordinator gets from places: the real messages, as they come."""
    from flwr.superlink.grid import HttpGrid

    messages, pull = [], HttpGrid.pull_messages

    def noted(self, identities):
        found = list(pull(self, identities))
        messages.extend(found)
        return found

    monkeypatch.setattr(HttpGrid, "pull_messages", noted)
    return messages


def masked_numbers(message):
    """What a place sends in the step of masked numbers; None in the others."""
    from flwr.common import bytes_to_ndarray
    from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key

    record = message.content.config_records[RECORD_KEY_CONFIGS]
    if Key.MASKED_PARAMETERS not in record:
        return None
    weight, *arrays = (bytes_to_ndarray(one) for one in record[Key.MASKED_PARAMETERS])
    assert weight.shape == (1,)
    return np.concatenate([one.ravel() for one in arrays])


def test_a_run_is_that_of_one_process_to_the_resolution(places):
    server = places.server()
    history = pvi.fit(server, pvi.Synchronous(), 3, places.engine())
    assert not any(one.failed or one.refused for one in history)
    resolution = sums_of_tests.rule("").resolution
    assert far(server.posterior, here(3).posterior) < 20 * resolution
    own = [places.kept(f"s{number}") for number in range(4)]
    factors = [one.change if one.own is None else one.own * one.change for one in own]
    assert_same(server.posterior, server.prior.times(factors), 1e-12)


def test_the_coordinator_never_sees_the_change_of_one_place(places, heard):
    rule, server = sums_of_tests.rule(""), places.server()
    pvi.fit(server, pvi.Synchronous(), 1, places.engine())
    whole = [flat(places.kept(name).change) for name in server.clients]
    steps = [np.round((one + rule.limit) / rule.resolution).astype(np.int64) for one in whole]
    seen = [found for one in heard if (found := masked_numbers(one)) is not None]
    assert len(seen) == len(PLACES)
    for masked in seen:
        for change, step in zip(whole, steps, strict=True):
            assert abs(np.corrcoef(masked, change)[0, 1]) < 0.4  # of 156 numbers: five sigma
            assert np.mean(masked == step) < 0.05
    everything = b"".join(
        part
        for message in heard
        for record in message.content.config_records.values()
        for values in record.values()
        for part in (values if isinstance(values, list) else [values])
        if isinstance(part, bytes)
    )
    assert not any(pieces_of(everything, one) for one in [*whole, *steps])
    assert pieces_of(everything, seen[0])  # the search finds what is there
    assert not any(record for message in heard for record in message.content.array_records.values())
    found = flat(server.posterior / server.prior)
    np.testing.assert_allclose(found, np.sum(whole, axis=0), atol=1e-9)


def flat(factor):
    return np.concatenate([np.ravel(eta) for eta in factor.natural])


def pieces_of(record, numbers):
    """How many stretches of four numbers stand in a record as they stand in memory."""
    kinds = [np.float32, np.float64, np.int32, np.int64]
    stretches = [numbers[k : k + 4].astype(kind) for k in range(0, 40, 4) for kind in kinds]
    return sum(one.tobytes() in record for one in stretches if np.any(one))


def test_without_a_place_that_does_not_answer_the_others_are_summed(places, failing):
    failing("s1")
    server = places.server()
    one = pvi.fit(server, pvi.Synchronous(), 1, places.engine())[-1]
    assert one.accepted == 3
    assert list(one.failed) == ["s1"]
    assert "does not say why" in one.failed["s1"]
    assert "patient" not in one.failed["s1"]
    assert "patient 7" in places.log("clinic-b")
    resolution = sums_of_tests.rule("").resolution
    others = here(1, ["s0", "s2", "s3"])
    assert far(server.posterior, others.posterior) < 20 * resolution


def test_below_the_threshold_there_is_no_sum_and_one_error(places, failing):
    failing("s1", "s2")
    server = places.server()
    before = server.posterior
    with (
        pytest.warns(UserWarning, match="no answer was accepted"),
        pytest.raises(NoAnswerError, match="no sum of 2 sites: it takes at least 3"),
    ):
        pvi.fit(server, pvi.Synchronous(), 1, places.engine())
    assert server.posterior is before
    assert not server.factors


@pytest.mark.slow
def test_a_place_killed_in_its_fit_drops_out_and_comes_back(places):
    (note,) = places.notes("killed", "s3")
    note.touch()
    server = places.server()

    def restart(one):
        if one.round == 1:
            places.running["clinic-d"].wait()
            places.begin_site(3, "clinic-d")

    history = pvi.fit(server, pvi.Synchronous(), 2, places.engine(), callback=restart)
    assert [list(one.failed) for one in history] == [["s3"], []]
    assert [one.accepted for one in history] == [3, 4]


def test_places_refuse_a_sum_on_other_terms(places):
    server = places.server(limit=2.0)
    with pytest.warns(UserWarning, match="has not agreed to a sum"), pytest.raises(NoAnswerError):
        pvi.fit(server, pvi.Synchronous(), 1, places.engine())
    assert "has not agreed to a sum" in places.log("clinic-a")


def test_places_do_not_answer_by_themselves(places):
    sites = places.server().clients
    plain = [pvi.Site(n, s.model, pvi.AnalyticUpdate(), s.num_data, place=s.place)
             for n, s in sites.items()]  # fmt: skip
    server = pvi.Server(plain[0].model.prior(), plain)
    with pytest.warns(UserWarning, match="within sums only"), pytest.raises(NoAnswerError):
        pvi.fit(server, pvi.Synchronous(), 1, places.engine())


def test_two_sites_of_one_place_are_in_no_sum(places):
    one, other, *_ = places.server().clients.values()
    twice = pvi.Site("twice", other.model, other.update, other.num_data, place=one.place)
    server = pvi.Server(one.model.prior(), [one, twice])
    with pytest.raises(InvalidDataError, match="one site at each place"):
        pvi.fit(server, engine=places.engine())


def test_flower_adds_up_what_was_rounded_without_an_error(rng):
    from flwr.common.secure_aggregation.quantization import dequantize, quantize

    rule = sums_of_tests.rule("")
    numbers = rng.integers(0, rule.levels, 10_000, endpoint=True)
    changes = numbers * rule.resolution - rule.limit
    (found,) = quantize([changes], rule.limit, rule.levels)
    np.testing.assert_array_equal(found, numbers)
    np.testing.assert_array_equal(dequantize([found], rule.limit, rule.levels)[0], changes)
