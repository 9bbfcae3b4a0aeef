"""FedHeNN's models for text: Makhija et al., ICML 2022, arXiv:2202.07757, section 4.1.

One or two LSTM layers and two fully connected layers, the second of which is the head. The paper
leaves open, and these are chosen here: word vectors of 100 values, learnt with the other weights,
and 100 units a layer, as LEAF's model for the same data (arXiv:1812.01097), whose word vectors are
pretrained; a ReLU after the first fully connected layer.
Deviations: none.
"""

from functools import partial

import torch
from torch import Tensor, nn

WORD = 100  # values of a word's vector
CHARACTER = 8  # values of a character's vector in LEAF's model
HIDDEN = 100  # units of an LSTM layer


class Lstm(nn.Module):
    """An LSTM for texts: tokens [n, L], int64, 0 for padding -> representation [n, d], >= 0.

    The representation is made of the state after the last token that is not padding, so padding at
    the end changes nothing. A text without any token is read as one token of padding, whose vector
    is always 0.
    """

    def __init__(self, shape: tuple[int, ...], d: int, vocabulary: int, layers: int):
        super().__init__()
        self.words = nn.Embedding(vocabulary, WORD, padding_idx=0)
        self.lstm = nn.LSTM(WORD, HIDDEN, layers, batch_first=True)
        self.first = nn.Linear(HIDDEN, d)

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.lstm(self.words(x))  # [n, L, HIDDEN]
        places = torch.arange(x.shape[1], device=x.device)
        last = torch.where(x > 0, places, 0).amax(1)
        return self.first(states[torch.arange(x.shape[0], device=x.device), last]).relu()


class CharLstm(nn.Module):
    """An LSTM for characters [n, L], int64, 0 for an unknown one -> the last state [n, d].

    LEAF's model for Shakespeare: Caldas et al., arXiv:1812.01097, and its stacked_lstm.py: vectors
    of 8 values, two LSTM layers; models.d = 256 gives theirs.
    Deviations: torch's LSTM has two biases for each gate, which are added; theirs has one.
    """

    def __init__(self, shape: tuple[int, ...], d: int, vocabulary: int):
        super().__init__()
        self.characters = nn.Embedding(vocabulary, CHARACTER)
        self.lstm = nn.LSTM(CHARACTER, d, 2, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(self.characters(x))[0][:, -1]


lstm_1 = partial(Lstm, layers=1)
lstm_2 = partial(Lstm, layers=2)
