"""What each of these methods sends and receives, by the formulas of their papers, in bytes of
float32.
"""

import pytest

from hpcfed.comm import Serial
from tests.contract import toy
from tests.golden.test_averaging import HEAD, MLP

HIDDEN, N, CLASSES_OF_4 = 200, toy.SIZES[4], 4  # client 4 has examples of all classes
PUBLIC = 20 * toy.CLASSES
VALVE = toy.CLASSES * toy.D + 2 * toy.D**2 + 6 * toy.D  # embeddings, and two such layers d -> d
POLICY = 2 * toy.D**2 + 6 * toy.D  # a linear layer d -> 2d and its normalisation
BYTES = {  # claim: (method, flags), (values received, values sent) by client 4 in one round
    "ktpfl: predictions of the drawn public examples": (
        ("ktpfl", "--algorithm.public", "20"),
        (PUBLIC, PUBLIC),
    ),
    "ktpfl: no more of them than there are": (("ktpfl",), (32 * toy.CLASSES, 32 * toy.CLASSES)),
    "ktpfl +weight: models": (("ktpfl", "--algorithm.share", "weights"), (MLP, MLP)),
    "fedgh: the header, and a mean and a label a class": (
        ("fedgh",),
        (HEAD, CLASSES_OF_4 * (toy.D + 1)),
    ),
    "fd: a distribution a class": (("fd",), (toy.CLASSES**2, CLASSES_OF_4 * toy.CLASSES)),
    "fd by samples: and its number of examples": (
        ("fd", "--algorithm.weighting", "samples"),
        (toy.CLASSES**2, CLASSES_OF_4 * (toy.CLASSES + 1)),
    ),
    "ifca: all models, and one with its number": (("ifca",), (3 * MLP, MLP + 1)),
    "ifca: one body and all heads": (
        ("ifca", "--algorithm.share_body", "true"),
        (MLP + 2 * HEAD, MLP + 1),
    ),
    "fesem: models": (("fesem",), (MLP, MLP)),
    "fesem-ma by classes: models, and the number of examples of each class": (
        ("fesemma", "--algorithm.head", "classes"),
        (MLP, MLP + toy.CLASSES),
    ),
    "tkm: models": (("tkm",), (MLP, MLP)),
    "cfl: models": (("cfl",), (MLP, MLP)),
    "fedopt: models": (("fedopt",), (MLP, MLP)),
    "fedrs: models, and no factors": (("fedrs",), (MLP, MLP)),
    "feddist: models": (("feddist",), (MLP, MLP)),
    "fedexp: models, and the norm of the update": (("fedexp",), (MLP, MLP + 1)),
    "mifa: models": (("mifa",), (MLP, MLP)),
    "fedper: bodies": (("fedper",), (MLP - HEAD, MLP - HEAD)),
    "fedala: models": (("fedala",), (MLP, MLP)),
    "fedamp: mixtures, and models": (("fedamp",), (MLP, MLP)),
    "fedpac: models and prototypes; also numbers of examples, and statistics": (
        ("fedpac",),
        (
            MLP + toy.CLASSES * toy.D,
            MLP + CLASSES_OF_4 * (toy.D + 1) + toy.CLASSES * toy.D + 1,
        ),
    ),
    "fedbabu: bodies": (("fedbabu",), (MLP - HEAD, MLP - HEAD)),
    "fedrod: models with one head": (("fedrod",), (MLP, MLP)),
    "apfl: models, and no mixture": (("apfl", "--algorithm.adapt", "steps"), (MLP, MLP)),
    "fedcp: models with one head, and policies": (("fedcp",), (MLP + POLICY, MLP + POLICY)),
    "gpfl: bodies, embeddings and valves": (("gpfl",), (MLP - HEAD + VALVE,) * 2),
    "feddane: models and gradients": (("feddane",), (2 * MLP, 2 * MLP)),
    "cyclic: a model a visit": (("cyclic",), (MLP, MLP)),
    "pfedbayes: means and rhos": (("pfedbayes",), (2 * MLP, 2 * MLP)),
    "fedbe: models": (("fedbe", "--algorithm.server_epochs", "1"), (MLP, MLP)),
    "fedgkt: logits, and features, logits and labels": (
        ("fedgkt",),
        (N * toy.CLASSES, N * (HIDDEN + toy.CLASSES + 1)),
    ),
}


@pytest.mark.parametrize("claim", BYTES)
def test_bytes_of_a_round(claim: str):
    words, (down, up) = BYTES[claim]
    rounds = toy.start(Serial(), toy.job(*words, "--models.mix", "mlp", "--participation", "1"))
    assert set(rounds.fed.clients[4].train.labels.tolist()) == set(range(CLASSES_OF_4))
    outcome = toy.outcome(rounds, [rounds.step()[0]])
    assert (outcome.column("down")[0, 4], outcome.column("up")[0, 4]) == (4 * down, 4 * up)
    assert rounds.algorithm.traffic(rounds.fed, 4) == (4 * down, 4 * up)
