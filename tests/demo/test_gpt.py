"""The demo's model: causal, tied, of the stated size, and able to learn."""

from __future__ import annotations

import math

import pytest
import torch

from gradweave.demo.gpt import GPT, next_byte_loss


@pytest.fixture
def model() -> GPT:
    torch.manual_seed(0)
    return GPT(vocabulary=32, context=8, width=16, heads=2, layers=2)


def tokens(batch: int = 2, length: int = 8) -> torch.Tensor:
    return torch.randint(32, (batch, length), generator=torch.Generator().manual_seed(1))


def test_logits_have_one_value_a_byte_and_position(model: GPT) -> None:
    assert model(tokens()).shape == (2, 8, 32)
    assert model(tokens(length=3)).shape == (2, 3, 32)


def test_a_position_knows_nothing_of_later_ones(model: GPT) -> None:
    one, other = tokens(), tokens()
    other[:, 5:] = (other[:, 5:] + 1) % 32
    first, second = model(one), model(other)
    torch.testing.assert_close(first[:, :5], second[:, :5])
    assert not torch.allclose(first[:, 5:], second[:, 5:])


def test_a_position_knows_earlier_ones(model: GPT) -> None:
    one, other = tokens(), tokens()
    other[:, 0] = (other[:, 0] + 1) % 32
    assert not torch.allclose(model(one)[:, -1], model(other)[:, -1])


def test_embedding_and_head_are_one_matrix(model: GPT) -> None:
    assert model.head.weight is model.embedding.weight
    assert len(dict(model.named_parameters())) == len(dict(model.named_parameters(remove_duplicate=False))) - 1


def test_the_number_of_parameters_is_about_12_l_d2_plus_v_d() -> None:
    width, layers, vocabulary = 64, 3, 256
    count = sum(p.numel() for p in GPT(vocabulary, context=16, width=width, heads=4, layers=layers).parameters())
    assert count == pytest.approx(12 * layers * width**2 + vocabulary * width, rel=0.03)


def test_the_loss_of_a_new_model_is_about_that_of_a_guess(model: GPT) -> None:
    assert next_byte_loss(model, tokens(16, 9)).item() == pytest.approx(math.log(32), rel=0.05)


def test_the_loss_is_of_the_byte_that_follows() -> None:
    class Knows(torch.nn.Module):
        """Predicts that every byte is followed by the next one."""

        def forward(self, x_BT: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.one_hot((x_BT + 1) % 32, 32) * 100.0

    ascending = torch.arange(9).expand(2, 9)
    assert float(next_byte_loss(Knows(), ascending)) < 1e-6
    assert float(next_byte_loss(Knows(), ascending.flip(1))) > 1


def test_it_learns_a_text_by_heart(model: GPT) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    text = tokens(2, 9)
    for _ in range(60):
        optimizer.zero_grad()
        loss = next_byte_loss(model, text)
        loss.backward()
        optimizer.step()
    assert loss.item() < 0.5
