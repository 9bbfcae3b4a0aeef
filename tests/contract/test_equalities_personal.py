"""Personal methods and SCAFFOLD: what they become in neutral settings, and what must hold in every
round.
"""

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from hpcfed.algorithms.common_head.fedclassavg import FedClassAvg
from hpcfed.algorithms.personal import perfedavg
from hpcfed.comm import Serial
from hpcfed.core.params import Params
from hpcfed.training import evaluate
from hpcfed.training.infer import class_sums, represent
from hpcfed.training.local import LocalSteps
from tests.contract import toy
from tests.contract.test_equalities import PLAIN, SGD, near, run

BN_FREE = ("--models.mix", "mlp,fedhenn-3,cnn,fedhenn-1")
UNIFORM = ("--algorithm.weighting", "uniform")

EQUAL = {  # claim: (method, flags), (method that it must equal, flags)
    "lgfedavg is fedclassavg without its losses": (("lgfedavg",), ("fedclassavg", *PLAIN)),
    "fedrep without a personal part is fedavg": (
        ("fedrep", "--algorithm.personal", "none", "--algorithm.head_epochs", "0"),
        ("fedavg",),
    ),
    "fedproto without its term is local": (
        ("fedproto", "--algorithm.lam", "0", "--algorithm.inference", "head"),
        ("local",),
    ),
    "perfedavg without a personal step is fedavg of equal weights": (
        ("perfedavg", "--algorithm.alpha", "0"),
        ("fedavg", *UNIFORM),
    ),
}


@pytest.mark.parametrize("claim", EQUAL)
def test_equal_to_the_bit(claim: str):
    ours, theirs = (run(*words) for words in EQUAL[claim])
    for part in ("weights", "memory", "scores"):
        assert toy.differences(getattr(ours, part), getattr(theirs, part)) == [], part
    for column in ("train_loss", "accuracy", "loss", "examples"):
        assert toy.differences(ours.column(column), theirs.column(column)) == [], column


def test_fedclassavgs_clients_train_alone_once_before_their_own_first_round(monkeypatch):
    phases: dict[int, list[str]] = {k: [] for k in range(6)}
    train = FedClassAvg.train

    def watched(self, fed, client, received, t, **how):
        phases[client.id].append(how.get("phase", "train"))
        return train(self, fed, client, received, t, **how)

    monkeypatch.setattr(FedClassAvg, "train", watched)
    rounds = toy.start(Serial(), toy.job("fedclassavg", "--algorithm.pretrain_epochs", "1"))
    cohorts = [rounds.step()[0]["clients/cohort"] for _ in range(2)]
    numbers = np.sum(cohorts, 0, dtype=int)
    assert {*numbers} >= {0, 2}
    want = {k: ["pretrain"] * (n > 0) + ["train"] * n for k, n in enumerate(numbers.tolist())}
    assert phases == want


def split(outcome: toy.Outcome, method: str, flags: tuple[str, ...]) -> list[Params]:
    """The tensors of each client's weights by name."""
    rounds = toy.start(Serial(), toy.job(method, *flags))
    layouts = [
        rounds.fed.store.initial(a, k).layout for k, a in enumerate(rounds.fed.architectures)
    ]
    return [
        Params(layouts[k].views(flat)) for k, flat in outcome.weights.items() if flat is not None
    ]


def test_fml_without_mutual_learning_is_local_training_beside_fedavg():
    sgd = ("--local.optimiser", "sgd", "--local.lr", "0.1")
    flags = (*sgd, *BN_FREE)
    alone = ("--algorithm.alpha", "1", "--algorithm.beta", "1")
    both, personal = run("fml", *flags, *alone), run("local", *flags)
    pairs = zip(split(both, "fml", flags), split(personal, "local", flags), strict=True)
    assert [toy.differences(pair.under("own."), single) for pair, single in pairs] == [
        []
    ] * 5  # one is never drawn
    rounds = toy.start(Serial(), toy.job("fedavg", *sgd, "--models.mix", "mlp"))
    rounds.state = toy.start(Serial(), toy.job("fml", *flags)).state.under("proxy.")
    for _ in range(3):
        rounds.step()
    assert toy.differences(Params(both.state).under("proxy."), rounds.state) == []


def test_scaffolds_first_round_is_fedavgs_with_equal_weights():
    flags = (*SGD, "--rounds", "1")
    assert near(
        Params(run("scaffold", *flags).state["x"]), run("fedavg", *flags, *UNIFORM).state, 1e-6
    )


@pytest.mark.parametrize("control", ["steps", "gradient"])
def test_scaffolds_server_variate_is_the_mean_of_all_clients_variates(control: str):
    outcome = run(
        "scaffold", *SGD, "--algorithm.control", control, "--participation", "0.5", "--rounds", "4"
    )
    c, zero = Params(outcome.state["c"]), Params(outcome.state["c"]) * 0
    controls = [Params(memory.get("control", zero)) for memory in outcome.memory.values()]
    mean = (1 / len(controls)) * sum(controls[1:], controls[0])
    assert near(c, mean, 1e-5) and any(v.abs().max() > 1e-3 for v in c.values())


def test_scaffolds_gradient_at_the_received_model_leaves_that_model_as_it_is():
    flags = (*SGD, "--models.mix", "small", "--rounds", "1")
    ours = Params(run("scaffold", *flags, "--algorithm.control", "gradient").state["x"])
    assert near(
        ours, run("fedavg", *flags, *UNIFORM).state, 1e-6
    )  # statistics of batch normalisation too


def test_scaffolds_server_step_is_not_for_batch_statistics():
    flags = (*SGD, "--models.mix", "small", "--rounds", "1", "--algorithm.eta_g")
    one, three = (Params(run("scaffold", *flags, step).state["x"]) for step in ("1", "3"))
    running = lambda name: "running" in name  # noqa: E731
    assert near(one.pick(running), three.pick(running), 0) and not near(one, three, 1e-3)


def test_scaffold_needs_plain_sgd():
    with pytest.raises(
        Exception, match=r"scaffold needs plain SGD.*\n  use .*local.optimiser = 'sgd'"
    ):
        toy.job("scaffold", "--local.optimiser", "adam")


def test_fedrep_leaves_the_other_part_as_it_is_in_each_phase():
    rounds = toy.start(Serial(), toy.job("fedrep", "--models.mix", "mlp"))
    fed, client = rounds.fed, rounds.fed.clients[4]
    fed.participants.begin(0, [4], False)
    before = client.params()
    rounds.algorithm.train_head(fed, client, rounds.state, 0, 2, "head")
    changed = {
        name.split(".")[0]
        for name, v in client.params().items()
        if not torch.equal(v, before[name])
    }
    assert changed == {"head"}


def test_fedreps_last_head_training_is_recorded_apart_and_reaches_all_clients():
    rounds = toy.start(Serial(), toy.job("fedrep", "--rounds", "1"))
    rounds.step()
    bodies = rounds.state.clone()
    final = rounds.finish()
    pooled = {"accuracy_pooled", "accuracy_received_pooled"}
    values = ("accuracy", "loss", "one_class")
    both = {f"{name}{phase}" for name in values for phase in ("", "_received")}
    assert set(final) == both | pooled
    assert np.isfinite(final["loss"][:5]).all() and toy.differences(rounds.state, bodies) == []


def test_a_prototype_is_the_mean_representation_of_its_class_over_all_examples():
    rounds = toy.start(Serial(), toy.job("fedproto", "--participation", "1", "--rounds", "1"))
    rounds.step()
    fed, sums, counts = rounds.fed, 0, 0
    for client in fed.clients.values():
        s, n = class_sums(represent(fed, client, client.train), client.train.labels, fed.classes)
        sums, counts = sums + s, counts + n
    assert torch.allclose(rounds.state["proto"].double(), sums / counts[:, None], atol=1e-6)


def test_a_class_without_examples_has_no_prototype_and_is_never_predicted():
    rounds = toy.start(Serial(), toy.job("fedproto", "--models.mix", "mlp"))
    fed, method = rounds.fed, rounds.algorithm
    fed.participants.begin(0, [1], False)  # client 1 has class 2 alone
    state = method.round(fed, rounds.state, [1], 0)
    assert state["proto"].isnan().all(1).tolist() == [True, True, False, True]
    x = fed.prepare(fed.clients[4].train.batch(np.arange(9))[0])
    answer = method.predictor(fed, fed.clients[4], state)
    assert answer(x).argmax(1).tolist() == [2] * 9


def test_perfedavgs_common_model_is_evaluated_without_a_personal_step(
    monkeypatch: pytest.MonkeyPatch,
):
    flags = ("--evaluate.common", "true", "--algorithm.alpha", "0.5", "--models.mix", "mlp")
    rounds, adapted = toy.start(Serial(), toy.job("perfedavg", *flags)), set()
    taken = perfedavg.gradient

    def noted(fed, client, *rest, **how):
        adapted.add(client.id)
        return taken(fed, client, *rest, **how)

    monkeypatch.setattr(perfedavg, "gradient", noted)
    row, _ = rounds.step()
    assert adapted and rounds.fed.K not in adapted
    pooled = rounds.fed.pooled()
    pooled.load(rounds.state)
    assert row["rounds/accuracy_common"] == evaluate.common(rounds.fed, pooled.model)


def test_perfedavgs_gradient_is_taken_after_a_personal_step():
    rounds = toy.start(
        Serial(), toy.job("perfedavg", "--algorithm.alpha", "0.3", "--models.mix", "mlp")
    )
    fed, client = rounds.fed, rounds.fed.clients[4]
    fed.participants.begin(0, [4], False)

    def grad(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        steps.backward(F.cross_entropy(client.model(x), y))
        return client.skeleton.grad.clone()

    with LocalSteps(fed, client, 0) as steps:
        batch, second = next(iter(steps)), steps.others("second")
        inner, w = next(steps.others("second")), client.skeleton.flat.clone()
        rounds.algorithm.outer(
            steps, lambda m, x, y: F.cross_entropy(m(x), y), batch, second, second
        )
        got = client.skeleton.grad.clone()
        assert torch.equal(client.skeleton.flat, w)
        client.skeleton.flat[: len(got)] -= 0.3 * grad(*inner)
        assert torch.equal(got, grad(*batch)) and not torch.equal(got, grad(*inner))


def test_perfedavgs_hessian_product_is_exact_for_a_quadratic():
    rounds = toy.start(Serial(), toy.job("perfedavg", "--models.mix", "logistic"))
    fed, client = rounds.fed, rounds.fed.clients[4]
    fed.participants.begin(0, [4], False)
    quadratic = lambda model, x, y: 1.5 * sum(p.square().sum() for p in model.parameters())  # noqa: E731
    with LocalSteps(fed, client, 0) as steps:
        next(iter(steps))
        w, g = client.skeleton.flat.clone(), torch.zeros_like(client.skeleton.grad)
        for i, view in enumerate(client.skeleton.layout.views(g).values()):
            view += torch.linspace(-1, 1 + i, view.numel()).view(view.shape)
        product = rounds.algorithm.hessian_times(steps, quadratic, (None, None), w, g)
    assert torch.allclose(product, 3 * g, atol=1e-3)


def test_perfedavgs_hessian_product_is_taken_with_one_dropout_mask():
    rounds = toy.start(Serial(), toy.job("perfedavg", "--models.mix", "small"))
    fed, client = rounds.fed, rounds.fed.clients[5]
    fed.participants.begin(0, [5], False)
    loss = lambda model, x, y: F.cross_entropy(model(x), y)  # noqa: E731
    with LocalSteps(fed, client, 0) as steps:
        batch, w = next(iter(steps)), client.skeleton.flat[: len(client.skeleton.grad)].clone()
        assert not rounds.algorithm.hessian_times(steps, loss, batch, w, torch.zeros_like(w)).any()


@pytest.mark.parametrize(
    "flags, passes", [(("fo",), 2), (("hf",), 4), (("fo", "--algorithm.alpha", "0"), 1)]
)
def test_perfedavgs_work_is_that_of_all_its_gradients(flags: tuple[str, ...], passes: int):
    outcome = run("perfedavg", "--algorithm.variant", *flags, "--models.mix", "mlp")
    assert outcome.column("work").tolist() == (passes * outcome.column("examples")).tolist()


def test_prototypes_collected_during_training_add_no_work():
    outcome = run("fedproto", "--algorithm.prototypes", "during", "--models.mix", "mlp")
    assert outcome.column("work").tolist() == outcome.column("examples").tolist()


def test_prototypes_that_are_taken_during_training_are_the_same_with_every_engine():
    flags = ("--models.mix", "mlp", "--training.engine")
    during = ("fedproto", "--algorithm.prototypes", "during", *flags)
    eager, traced, graphed = (run(*during, engine) for engine in ("eager", "traced", "graphed"))
    assert toy.differences(eager, traced) == [] and toy.differences(eager, graphed) == []
    after = run("fedproto", *flags, "eager").state
    assert (eager.state["proto"] - after["proto"]).abs().nan_to_num().max() > 1e-3


def test_pfedmes_server_may_step_beyond_the_mean():
    flags = ("--models.mix", "small", "--rounds", "1", "--algorithm.beta")
    start = toy.start(Serial(), toy.job("pfedme", *flags, "1")).state
    mean, beyond = (Params(run("pfedme", *flags, beta).state) for beta in ("1", "2"))
    trained, running = (lambda name: "running" not in name), (lambda name: "running" in name)
    assert near(beyond.pick(trained), (2 * mean - start).pick(trained), 1e-6) and not near(
        beyond, mean, 1e-4
    )
    assert near(beyond.pick(running), mean.pick(running), 0)  # for a variance could become negative


def test_pfedmes_common_model_does_not_move_without_the_pull_or_without_the_mean():
    start = toy.start(Serial(), toy.job("pfedme", "--models.mix", "mlp")).state
    for still in (("--algorithm.lam", "0"), ("--algorithm.beta", "0")):
        assert toy.differences(run("pfedme", *still, "--models.mix", "mlp").state, start) == []


def test_pfedmes_common_model_follows_the_personal_one_by_eta_lam():
    flags = ("--models.mix", "mlp", "--clients", "1", "--data.train_limit", "16", "--rounds", "1")
    job = toy.job(
        "pfedme", *flags, "--algorithm.lam", "2", "--algorithm.eta", "0.2"
    )  # one batch, one client
    w = toy.start(Serial(), job).state
    outcome = toy.run(Serial(), job)
    theta = split(outcome, "pfedme", flags)[0]
    assert near(Params(outcome.state), 0.6 * w + 0.4 * theta, 1e-6) and not near(theta, w, 1e-3)


def test_pfedme_refuses_a_pull_that_oversteps():
    with pytest.raises(Exception, match="must be < 1"):
        toy.job("pfedme", "--algorithm.lam", "15", "--algorithm.eta", "0.1")
