"""Synthetic health records with the statistics of FedCovid's, which are not public.

Wang et al., "Towards federated covid-19 vaccine side effect prediction", ECML-PKDD 2022, tables 1
and 2: 29 states, 6,526 patients, of which 1,097 had a side effect (879 of 5,006 in training, 218 of
1,520 in tests), 1,761 men and 4,765 women, three brands, 803 diagnosis codes. The records have
exactly these numbers. The sizes of the states are as skewed as in the paper: ten have most
patients.
All else is an assumption. The use of codes is proportional to 1 / rank. Each patient has some of 24
conditions, a condition makes a group of codes likely, and states differ in how common conditions
are. The side effect depends on three conditions, on two pairs of conditions, on age and brand, and
on noise.
All draws come from one fixed stream. A state is a natural client, with test examples of its own.
"""

import numpy as np

from hpcfed.core.rng import stream
from hpcfed.data.dataset import DataSet, Split, several
from hpcfed.data.sampling import apportion
from hpcfed.tasks.binary import Binary

STATES, CODES, LENGTH = 29, 803, 50  # LENGTH: number of a patient's last codes
TRAIN, TEST = (4127, 879), (1302, 218)  # patients without and with a side effect
PATIENTS, POSITIVE = sum(TRAIN) + sum(TEST), TRAIN[1] + TEST[1]
MEN, BRANDS = 1761, (3355, 2159, 1012)  # Moderna, Pfizer-BioNTech, Janssen
CONDITIONS, GROUP = 24, 30  # GROUP: codes that a condition makes likely
LEAST = 20  # minimum patients of a state
SPECIAL = 0.6  # share of a patient's codes that come from its conditions
NOISE = 0.8  # standard deviation of the noise in the score of the side effect


def load(name: str, *_: object) -> DataSet:
    """Load synthetic records of 5,006 training and 1,520 test patients.

    Modalities: age, [1], years; person, [5], gender and brand as 0 and 1; visits, [50], the last
    codes, 1..803, padded with 0 on the left. A state is a natural client, with test examples of its
    own. Folder and download have no effect.
    Wang et al. (FedCovid), ECML-PKDD 2022, tables 1 and 2, for the statistics.
    """
    x, y, state = make()
    train, test = share_out(y, state)
    both = Split(x, y, state)
    return several(
        name,
        both.take(train),
        both.take(test),
        ("no side effect", "side effect"),
        {"visits": CODES + 1},
        task=Binary(),
        own_tests=True,
    )


def make() -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return inputs, labels and states of all patients."""
    g = stream(0, "health records")
    weight = 1 / (1 + np.arange(STATES)) ** 1.3
    sizes = LEAST + apportion(PATIENTS - LEAST * STATES, weight)
    state = np.repeat(np.arange(STATES), sizes)[g.permutation(PATIENTS)]
    common = g.dirichlet(np.full(CONDITIONS, 0.5), STATES)  # [states, conditions]
    usage = 1 / (1 + g.permutation(CODES))
    usage /= usage.sum()
    groups = [g.choice(CODES, GROUP, replace=False) for _ in range(CONDITIONS)]
    age = np.clip(g.normal(55, 16, PATIENTS).round(), 18, 95)
    man = exact(g, PATIENTS, [PATIENTS - MEN, MEN])
    brand = exact(g, PATIENTS, BRANDS)
    lengths = np.clip(g.lognormal(2.8, 0.7, PATIENTS), 3, LENGTH).astype(np.int64)
    plain = g.choice(CODES, (PATIENTS, LENGTH), p=usage)
    visits, has = np.zeros((PATIENTS, LENGTH), np.int32), np.zeros((PATIENTS, CONDITIONS), bool)
    for i in range(PATIENTS):
        p = 0.5 * common[state[i]] + 0.5 / CONDITIONS
        has[i, g.choice(CONDITIONS, g.integers(1, 4), replace=False, p=p)] = True
        n = lengths[i]
        codes = np.concatenate([groups[c] for c in np.flatnonzero(has[i])])
        visits[i, -n:] = 1 + np.where(g.random(n) < SPECIAL, g.choice(codes, n), plain[i, :n])
    score = has[:, :3] @ np.array([2.2, 1.6, 1.2]) + 0.5 * (brand == 2) - 0.012 * (age - 55)
    for one, second in ((3, 4), (5, 6)):
        score += 1.5 * (has[:, one] & has[:, second])
    score += g.normal(0, NOISE, PATIENTS)
    y = np.zeros(PATIENTS, np.int64)
    y[np.argsort(-score, kind="stable")[:POSITIVE]] = 1
    person = np.concatenate([np.eye(2)[man], np.eye(3)[brand]], 1)
    x = {"age": age[:, None], "person": person, "visits": visits}
    return {m: v if m == "visits" else v.astype(np.float32) for m, v in x.items()}, y, state


def exact(g: np.random.Generator, n: int, counts: tuple[int, ...] | list[int]) -> np.ndarray:
    """Return kinds 0, 1, ... of n patients, counts[i] of kind i, in random order."""
    return g.permutation(np.repeat(np.arange(len(counts)), counts))


def share_out(y: np.ndarray, state: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of the training and of the test patients.

    About the same share of each state is for tests. The numbers of both labels are those of table
    2.
    """
    g, test = stream(0, "health records", "test"), np.zeros(len(y), bool)
    for label, wanted in enumerate(TEST):
        of_state = np.bincount(state[y == label], minlength=STATES)
        for k, n in enumerate(apportion(wanted, of_state)):
            rows = np.flatnonzero((y == label) & (state == k))
            test[g.choice(rows, n, replace=False)] = True
    return np.flatnonzero(~test), np.flatnonzero(test)
