"""pFedKnow: what it becomes in neutral settings, its pruning and its weights by hand."""

from collections.abc import Mapping

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from hpcfed.algorithms.personal import pfedknow
from hpcfed.algorithms.personal.slimming import Slimming, peer_weights, similarity
from hpcfed.comm import Serial
from hpcfed.core.errors import ConfigError, DataError
from hpcfed.core.params import Params
from hpcfed.engine.rounds import Rounds
from hpcfed.models import build
from hpcfed.models.widths import units
from hpcfed.training.infer import logits
from tests.contract import toy

WHOLE = ("--algorithm.rate", "0")


def begun(*flags: str) -> Rounds:
    rounds = toy.start(Serial(), toy.job("pfedknow", *flags))
    rounds.fed.participants.open(0)
    return rounds


def of(name: str) -> tuple[nn.Module, Slimming]:
    """A model with random scales, so that they differ."""
    torch.manual_seed(0)
    model = build(name, (1, 8, 8), 4, 16)
    for m in model.modules():
        if isinstance(m, nn.BatchNorm2d):
            nn.init.uniform_(m.weight, 0.5, 1.5)
            nn.init.uniform_(m.bias)
    return model, Slimming.of(model, units(model, (1, 8, 8)))


# Slimming


def test_the_channels_of_least_scale_are_dropped_over_all_layers_and_each_layer_keeps_one():
    model, slim = of("small")  # layers of 8 and 16 channels
    params = dict(model.state_dict())
    assert slim.channels == 24 and slim.scales == ("body.1.weight", "body.6.weight")
    params["body.1.weight"] = torch.arange(8.0) - 2.5  # 2.5 1.5 .5 .5 1.5 2.5 3.5 4.5
    params["body.6.weight"] = torch.full((16,), 9.0)
    mask = slim.prune(params, slim.all_channels(), 0.125)  # 3 of 24
    assert [place for place, left in enumerate(mask) if not left] == [1, 2, 3]
    again = slim.prune(params, mask, 0.1)  # 2 of 21
    assert [place for place, left in enumerate(again) if not left] == [0, 1, 2, 3, 4]
    assert slim.prune(params, slim.all_channels(), 0.5)[:8].tolist() == [False] * 7 + [True]
    assert slim.prune(params, again, 0.0).equal(again)


@pytest.mark.parametrize("name", ["small", "resnet8"])
def test_a_model_without_its_dropped_channels_is_the_one_in_which_they_are_0(name: str):
    model, slim = of(name)
    mask = slim.prune(model.state_dict(), slim.all_channels(), 0.4)
    left = slim.remaining(Params(model.named_parameters()), mask)
    some = {n: v * left[n] for n, v in model.named_parameters()}
    tensors = {**dict(model.state_dict()), **some}
    sent = slim.pack(tensors, mask)
    assert sum(v.numel() for v in sent.values()) < 0.8 * sum(v.numel() for v in tensors.values())
    smaller = cut(model, sent)
    x = torch.randn(5, 1, 8, 8)
    full = functional_call(model.eval(), tensors, (x,))
    assert torch.allclose(smaller.eval()(x), full, atol=1e-5)


def cut(model: nn.Module, sent: Mapping[str, Tensor]) -> nn.Module:
    """The same layers with these smaller tensors."""
    import copy

    new = copy.deepcopy(model)
    for path, module in new.named_modules():
        for name, old in [*module.named_parameters(recurse=False)]:
            setattr(module, name, nn.Parameter(sent[f"{path}.{name}"].clone()))
            assert old.dim() == sent[f"{path}.{name}"].dim()
        for name, old in [*module.named_buffers(recurse=False)]:
            if old.is_floating_point():
                setattr(module, name, sent[f"{path}.{name}"].clone())
    return new


def test_similarity_of_masks_by_hand():
    a, b = torch.tensor([True, True, False, True]), torch.tensor([True, False, True, False])
    assert similarity(a, a) == 1.0
    assert similarity(a, b) == pytest.approx(1 / 6**0.5)


# pFedKnow


def test_peers_weigh_by_the_similarity_of_their_masks_and_without_pruning_equally():
    masks = {
        2: torch.tensor([True, True, True, True]),
        4: torch.tensor([True, False, False, False]),  # cosine to 2: 1/2
        7: torch.tensor([True, True, True, True]),  # 1
    }
    weights = peer_weights(masks, 2)
    assert weights == {4: pytest.approx(1 / 3), 7: pytest.approx(2 / 3)}
    assert sum(peer_weights(masks, 4).values()) == pytest.approx(1)
    nothing = dict.fromkeys((0, 1, 5), torch.ones(0, dtype=torch.bool))
    assert peer_weights(nothing, 1) == {0: 0.5, 5: 0.5}
    assert peer_weights({3: masks[2]}, 3) == {}  # nobody else: no such KL


def test_uncertainty_by_hand_and_all_examples_are_taken_if_none_is_certain():
    z = torch.tensor([[6.0, -1.0, 0.0, 0.0], [-1.0, -2.0, -3.0, -4.0]])
    assert pfedknow.uncertainty(z).tolist() == pytest.approx([0.4, 1.0])
    client = begun().fed.clients[1]  # of nine examples
    z = z[[0, 1, 1, 0, 1, 1, 1, 1, 1]]
    some = pfedknow.choose(client, z, 0.7)
    assert some.rows.tolist() == client.train.rows[[0, 3]].tolist()
    assert some.targets(np.array([0, 1])).tolist() == [0, 0]  # what the model predicts
    assert len(pfedknow.choose(client, z, 0.0)) == len(client.train)


def test_no_label_of_a_client_is_learnt():
    rounds, other = begun(), begun()
    for client in other.fed.clients.values():
        client.train.labels = (client.train.labels + 1) % 4
    want, other_outcome = (toy.outcome(r, [r.step()[0]]) for r in (rounds, other))
    assert toy.differences(other_outcome.weights, want.weights) == []


def test_without_pruning_masks_are_full_and_bytes_exact():
    toy.check_traffic(toy.job("pfedknow", *WHOLE))
    rounds = begun(*WHOLE)
    rounds.step()
    assert all(len(c.memory.get("mask", [])) == 0 for c in rounds.fed.clients.values())


def test_a_pruned_client_sends_and_receives_as_much_less_and_stays_pruned():
    flags = ("--participation", "1", "--algorithm.prunings", "2", "--algorithm.rate", "0.25")
    rounds = begun(*flags)
    fed, slim = rounds.fed, pfedknow.slimming(rounds.fed)
    nbytes, first_model, left = fed.shapes().nbytes, fed.shapes().nbytes, []
    for _ in range(3):
        row = rounds.step()[0]
        client = fed.clients[5]
        mask, model = client.memory["mask"], client.params()
        sent = slim.pack(model, mask).nbytes
        assert row["clients/down"][5] == first_model + sent and row["clients/up"][5] == sent + 3
        gone = slim.remaining(model, mask).map(lambda v: 1 - v)
        assert all(not (v * gone[n]).any() for n, v in model.items())
        left.append(int(mask.sum()))
        first_model = 0
    assert left == [18, 14, 14] and sent < nbytes  # of 24 channels, twice a quarter


def test_the_server_teaches_by_labels_peers_and_its_large_model():
    rounds = begun("--algorithm.server_epochs", "20", "--algorithm.lam", "0")
    fed, method = rounds.fed, rounds.algorithm
    state = pfedknow.State(*method.begin(fed, rounds.state))
    client = fed.clients[5]
    sent = {k: method.local(fed, fed.clients[k], state, 0) for k in (2, 5)}
    models = {k: pfedknow.slimming(fed).received(masks) for k, masks in sent.items()}
    peers = {k: pfedknow.answers(fed, k, received) for k, received in models.items()}
    assert toy.differences(peers[5]["logits"], logits(fed, client, fed.public)) == []
    p = method.consensus(peers, 5)
    assert torch.allclose(p, F.softmax(peers[2]["logits"] / 2, 1))
    assert torch.allclose(p.sum(1), torch.ones(len(p)))

    def missed() -> float:
        z = logits(fed, client, fed.public)
        return float(F.cross_entropy(z, torch.from_numpy(fed.public.labels)))

    before = missed()
    client.load(method.teach(fed, state, peers, 5, models[5], 0))
    assert missed() < before


def test_models_without_scales_and_labels_of_other_classes_are_refused():
    with pytest.raises(ConfigError, match="mlp has none\n.* or set algorithm.rate = 0"):
        begun("--models.mix", "mlp")
    rounds = begun()
    rounds.fed.public.labels[0] = 7
    with pytest.raises(DataError, match="one is 7, and the clients have 4 classes"):
        rounds.algorithm.init(rounds.fed)
