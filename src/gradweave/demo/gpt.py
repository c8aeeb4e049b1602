"""A small GPT.

A decoder-only transformer over bytes: pre-norm blocks, causal attention, and one matrix that is both the embedding and the
output head. It is plain torch.nn code that knows nothing of processes, like any model that a user brings.

    h_0 = E[x] + P;  h_l = h + attn(norm(h)), then h + mlp(norm(h));  logits = norm(h_L) E^T

Source: Radford et al., Language Models are Unsupervised Multitask Learners (2019), without dropout and biases in the norms.
Shapes: B batch, T context, D width, V vocabulary. About 12 L D^2 + V D parameters.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Block(nn.Module):
    """One pre-norm transformer block.

    Args:
        width: D, a multiple of `heads`.
        heads: number of attention heads.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm_attention = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.norm_mlp = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, h_BTD: Tensor) -> Tensor:
        """Map (B, T, D) to (B, T, D)."""
        h_BTD = h_BTD + self._attention(self.norm_attention(h_BTD))
        return h_BTD + self.down(F.gelu(self.up(self.norm_mlp(h_BTD))))

    def _attention(self, h_BTD: Tensor) -> Tensor:
        batch, context, width = h_BTD.shape
        q, k, v = (
            part.view(batch, context, self.heads, width // self.heads).transpose(1, 2)
            for part in self.qkv(h_BTD).chunk(3, dim=-1)
        )
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, context, width))


class GPT(nn.Module):
    """Next-byte prediction.

    Args:
        vocabulary: V, 256 for bytes.
        context: largest T.
        width: D.
        heads: attention heads.
        layers: number of blocks.

    Example:
        >>> model = GPT(context=8, width=16, heads=2, layers=1)
        >>> model(torch.zeros(2, 8, dtype=torch.long)).shape
        torch.Size([2, 8, 256])
    """

    def __init__(self, vocabulary: int = 256, context: int = 128, width: int = 160, heads: int = 5, layers: int = 4) -> None:
        super().__init__()
        self.context = context
        self.embedding = nn.Embedding(vocabulary, width)
        self.position = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.head.weight = self.embedding.weight
        nn.init.normal_(self.embedding.weight, std=0.02)
        nn.init.normal_(self.position, std=0.02)

    def forward(self, x_BT: Tensor) -> Tensor:
        """Map byte values (B, T) to logits (B, T, V)."""
        h_BTD = self.embedding(x_BT) + self.position[: x_BT.shape[1]]
        for block in self.blocks:
            h_BTD = block(h_BTD)
        logits: Tensor = self.head(self.norm(h_BTD))
        return logits


def next_byte_loss(model: nn.Module, tokens: Tensor) -> Tensor:
    """Mean cross-entropy (nats per byte) of predicting `tokens[:, 1:]` from `tokens[:, :-1]`; `tokens` is (B, T + 1)."""
    logits = model(tokens[:, :-1])
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
