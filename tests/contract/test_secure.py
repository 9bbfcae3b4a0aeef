"""Secure aggregation changes no bit of a run, fails with too few clients, and counts its bytes."""

from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

import numpy as np
import torch

from hpcfed.algorithms.trial import check_privacy
from hpcfed.comm import Serial
from hpcfed.config.methods import ALGORITHMS
from hpcfed.core.errors import ConfigError, DivergedError
from hpcfed.core.params import Mean, Params
from hpcfed.federation.transforms.secure.attendance import SumFailed
from hpcfed.federation.transforms.secure.sums import Envelope
from hpcfed.federation.upload import Upload
from tests.contract import toy
from tests.threads import spmd

PROTOCOLS = ["secagg", "secagg+", "lightsecagg"]
SHORT = ("--rounds", "2", "--evaluate.every", "100", "--evaluate.before", "false")
BOUND = ("--secure.bound", "100")
ALL = ("--participation", "1")
CLIPPED = (
    *("--privacy.by", "central", "--privacy.clip", "0.5", "--privacy.cap", "10"),
    *("--models.mix", "mlp"),
)
ONLY_WITH_MASKS = ("clients/up", "clients/down", "rounds/virtual_seconds", "rounds/secure_failed")


def secure(method: str, by: str, *flags: str, masks: str = "made"):
    return toy.job(method, *SHORT, "--secure.by", by, "--secure.masks", masks, *flags)


def results(outcome: toy.Outcome) -> toy.Outcome:
    """An outcome without what masks cost."""
    rows = [{n: v for n, v in r.items() if n not in ONLY_WITH_MASKS} for r in outcome.rows]
    return toy.Outcome(outcome.state, outcome.weights, outcome.memory, outcome.scores, rows)


@pytest.mark.parametrize("by", PROTOCOLS)
@pytest.mark.parametrize("method", ["scaffold", "fedproto"])
def test_neither_masks_nor_ranks_nor_a_resumption_change_a_bit(method, by, tmp_path):
    charged = toy.run(Serial(), secure(method, by, *BOUND, *ALL, masks="charged"))
    job = secure(method, by, *BOUND, *ALL)
    for outcome in spmd(2, lambda comm: toy.run(comm, job, rounds=1, save=tmp_path)):
        assert not toy.differences(outcome.rows, charged.rows[:1])
    for outcome in spmd(5, lambda comm: toy.run(comm, job, resume=tmp_path)):
        assert not toy.differences(replace(outcome, rows=charged.rows[:1] + outcome.rows), charged)


@pytest.mark.parametrize("by", PROTOCOLS)
def test_with_the_same_clip_a_run_without_masks_has_the_same_bits(by):
    plain = toy.run(Serial(), toy.job("fedavg", *SHORT, *ALL, *CLIPPED))
    masked = toy.run(Serial(), secure("fedavg", by, *ALL, *CLIPPED))
    assert not toy.differences(results(masked), results(plain))
    assert masked.column("up").min() > plain.column("up").min()


@pytest.mark.parametrize("by", PROTOCOLS)
def test_the_sum_of_those_that_have_sent_survives_drop_outs(by):
    lossy = (*BOUND, *ALL, "--system.dropout", "0.3", "--rounds", "3", "--secure.threshold", "0.3")
    charged = toy.run(Serial(), secure("fedavg", by, *lossy, masks="charged"))
    assert charged.column("lost").any()
    assert not any(row["rounds/secure_failed"] for row in charged.rows)
    for outcome in spmd(2, lambda comm: toy.run(comm, secure("fedavg", by, *lossy))):
        assert not toy.differences(outcome, charged)
    plain = toy.run(
        Serial(), toy.job("fedavg", *SHORT, *ALL, "--system.dropout", "0.3", "--rounds", "3")
    )
    for name, value in plain.state.items():
        torch.testing.assert_close(charged.state[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("threshold", ["0.3", "0.9"], ids=["succeeds", "fails"])
def test_a_lost_client_receives_the_model_and_others_keys_and_shares_once(threshold):
    lossy = ("--system.dropout", "0.5", "--secure.threshold", threshold)
    outcome = toy.run(Serial(), secure("fedavg", "secagg", *BOUND, *ALL, *lossy, masks="charged"))
    assert outcome.rows[0]["rounds/secure_failed"] == (threshold == "0.9")
    lost, down = outcome.column("lost")[0], outcome.column("down")[0]
    model = 4 * sum(value.numel() for value in outcome.state.values())
    keys, shares, list_of_six = 5 * 2 * 32, 5 * (2 * 66 + 16), 1
    assert set(down[lost]) == {model + keys + shares}
    assert set(down[~lost]) == {model + keys + shares + list_of_six}


@pytest.mark.parametrize("masks", ["made", "charged"])
def test_below_the_threshold_the_state_stays_and_bytes_are_counted(masks):
    flags = (*BOUND, *ALL, "--system.dropout", "0.7", "--secure.threshold", "0.9")
    job = secure("fedavg", "secagg", *flags, masks=masks)
    rounds = toy.start(Serial(), job)
    initial = rounds.state.clone()
    messages = []
    rounds.fed.warnings.say = messages.append
    outcome = toy.outcome(rounds, [rounds.step()[0]])
    assert outcome.rows[0]["rounds/secure_failed"] == 1
    assert not toy.differences(rounds.state, initial)
    assert len(messages) == 1
    assert messages[0].startswith("round 1: ")
    assert "needs 6; server and clients stay" in messages[0]
    lost, reports = outcome.column("lost")[0], outcome.column("cohort")[0]
    assert lost.any()
    assert reports.any()
    up = outcome.column("up")[0]
    keys_and_shares = 64 + 5 * (2 * 66 + 16)
    assert set(up[lost]) == {keys_and_shares}
    words = sum(value.numel() for value in initial.values()) + 1
    assert set(up[reports]) == {keys_and_shares + 8 * words}


def test_shares_of_noise_are_masked_in_their_ring():
    noise = ("--privacy.by", "distributed", "--privacy.clip", "0.5", "--privacy.noise", "1")
    model = ("--models.mix", "logistic", "--algorithm.weighting", "uniform")
    flags = (*ALL, *noise, "--privacy.bits", "16", *model)
    charged = toy.run(Serial(), secure("fedavg", "secagg", *flags, masks="charged"))
    for outcome in spmd(2, lambda comm: toy.run(comm, secure("fedavg", "secagg", *flags))):
        assert not toy.differences(outcome, charged)
    open_ = toy.run(Serial(), toy.job("fedavg", *SHORT, *flags))
    assert not toy.differences(results(charged), results(open_))
    keys_shares_answers = 64 + 5 * (2 * 66 + 16) + 6 * 66
    assert (charged.column("up") == open_.column("up") + keys_shares_answers).all()


def test_clients_remember_nothing_of_a_sum_that_failed():
    flags = (*BOUND, *ALL, "--system.dropout", "0.7", "--secure.threshold", "0.9")
    rounds = toy.start(Serial(), secure("scaffold", "secagg", *flags))
    rounds.step()
    assert [client.recall("control") for client in rounds.fed.clients.values()] == [None] * 6
    assert not any(value.any() for value in rounds.state.c.values())


def test_a_job_may_stop_when_a_sum_fails():
    flags = (*BOUND, *ALL, "--system.dropout", "0.7", "--secure.threshold", "0.9")
    job = secure("fedavg", "secagg", *flags, "--secure.on_failure", "stop")
    message = r"round 1: \d of 6 clients have sent masked values.*\n.*--secure.on_failure keep"
    with pytest.raises(SumFailed, match=message):
        toy.run(Serial(), job)


def test_a_sum_of_one_client_is_refused():
    job = secure("fedavg", "secagg", *BOUND, "--participation", "0.1")
    assert toy.run(Serial(), job).rows[0]["rounds/secure_failed"] == 1


@pytest.mark.parametrize("by", PROTOCOLS)
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fedproto"])
def test_announced_bytes_are_those_of_a_full_cohort(method, by):
    toy.check_traffic(secure(method, by, *BOUND))


def test_values_and_weights_beyond_the_bound_are_errors_that_name_client_and_tensor():
    rounds = toy.start(Serial(), secure("fedavg", "secagg", *BOUND))
    client = rounds.fed.clients[3]
    envelope = Envelope(2.0, 10.0)
    values = Params(a=torch.tensor([2.0]), b=torch.tensor([1.0, -2.5]))
    with pytest.raises(
        DivergedError, match=r"client 3 .*its b reaches 2.5 in an upload, beyond secure.b"
    ):
        envelope.upload(rounds.fed, client, Upload(Mean.of(values)))
    with pytest.raises(
        DivergedError, match=r"client 3 .*its weight reaches 11 .*secure.largest_weig"
    ):
        envelope.upload(rounds.fed, client, Upload(Mean.of(values.pick("a".__eq__), 11.0)))
    upload = envelope.upload(rounds.fed, client, Upload(Mean.of(values.pick("a".__eq__), 10.0)))
    assert upload.nbytes == 0


@pytest.mark.parametrize(
    "method, flags, reason",
    [
        ("fedavg", (), "set secure.bound"),
        ("fedavg", (*BOUND, *CLIPPED), "secure.bound = 100 has no effect"),
        ("fedavg", (*BOUND, "--edges.number", "2"), r"remove \[edges\]"),
        ("fedasync", BOUND, "one by one in virtual time"),
        (
            "fedavg",
            (*BOUND, "--participation", "0.4", "--selection.by", "power-of-choice"),
            "reads their losses",
        ),
        ("fedavg", (*BOUND, "--secure.colluding", "0.5"), "secure.colluding = 0.5 has to be"),
        ("local", BOUND, 'secure.by = "lightsecagg" has no effect: nothing is sent'),
        ("central", BOUND, 'secure.by = "lightsecagg" has no effect: nothing is sent'),
    ],
)
def test_impossible_jobs_are_refused_with_the_reason(method, flags, reason):
    with pytest.raises(ConfigError, match=reason):
        secure(method, "lightsecagg", *flags)


def test_seconds_of_the_protocol_are_in_virtual_time():
    flags = (*BOUND, *ALL, "--system.latency", "1")
    slow, fast = (
        toy.run(Serial(), secure("fedavg", "secagg", *flags, "--secure.slowdown", factor))
        for factor in ("1000", "1")
    )
    open_ = toy.run(Serial(), toy.job("fedavg", *SHORT, *ALL, "--system.latency", "1"))
    times = [o.rows[0]["rounds/virtual_seconds"] for o in (open_, fast, slow)]
    assert times[0] + 3 <= times[1] < times[2]


REASONS = (
    "hides what single clients send",
    "one by one",
    "how many examples of each class",
    "nothing is sent",
)


@pytest.mark.parametrize("method", sorted(ALGORITHMS))
def test_each_method_has_the_same_bits_with_masks_or_is_refused(method):
    """With masks some on two ranks, without on one; largest weights are those of partial models."""
    flags = ("--secure.bound", "1000", "--secure.largest_weight", "1e4")
    try:
        rounds = toy.start(Serial(), secure(method, "secagg+", *flags, masks="charged"))
        check_privacy(rounds.fed)
    except ConfigError as error:
        assert any(reason in str(error) for reason in REASONS)
        return
    charged, job = toy.outcome(rounds, [rounds.step()[0]]), secure(method, "secagg+", *flags)
    for outcome in spmd(toy.ranks(method), lambda comm: toy.run(comm, job, rounds=1)):
        assert not toy.differences(outcome, charged)
    assert np.isfinite(charged.rows[0]["rounds/virtual_seconds"])
