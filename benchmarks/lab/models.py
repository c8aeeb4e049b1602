"""Gradients of known models, in the order of their registration, with each layer's share of the work.

ResNet-50, VGG-16 (224 x 224 images), BERT-base and GPT-2 small (tied embedding): shapes of the published architectures; the
share of a layer is that of its multiplications. Scaled models keep every layer and shrink every parameter by one factor.
"""

from __future__ import annotations

from dataclasses import dataclass

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Layer:
    """Parameters that become ready together, and the multiplications of their forward."""

    name: str
    shapes: tuple[Shape, ...]
    work: float


def _numel(shape: Shape) -> int:
    count = 1
    for dim in shape:
        count *= dim
    return count


def _conv(name: str, inputs: int, outputs: int, kernel: int, side: int, norm: bool) -> list[Layer]:
    weight = (outputs, inputs, kernel, kernel)
    work = float(_numel(weight) * side * side)
    if not norm:
        return [Layer(name, (weight, (outputs,)), work)]
    return [Layer(name, (weight,), work), Layer(f"{name}.bn", ((outputs,), (outputs,)), 4.0 * outputs * side * side)]


def _linear(name: str, inputs: int, outputs: int, tokens: int = 1) -> Layer:
    return Layer(name, ((outputs, inputs), (outputs,)), float(inputs * outputs * tokens))


def resnet50() -> list[Layer]:
    """25.6 M parameters, 161 gradients."""
    layers = _conv("conv1", 3, 64, 7, 112, True)
    inputs = 64
    for stage, (width, blocks, side) in enumerate([(64, 3, 56), (128, 4, 28), (256, 6, 14), (512, 3, 7)], 1):
        for block in range(blocks):
            name, outputs = f"layer{stage}.{block}", 4 * width
            before = side if stage == 1 or block else 2 * side
            layers += _conv(f"{name}.conv1", inputs, width, 1, before, True)
            layers += _conv(f"{name}.conv2", width, width, 3, side, True)
            layers += _conv(f"{name}.conv3", width, outputs, 1, side, True)
            if block == 0:
                layers += _conv(f"{name}.downsample", inputs, outputs, 1, side, True)
            inputs = outputs
    return [*layers, _linear("fc", 2048, 1000)]


def vgg16() -> list[Layer]:
    """138 M parameters, 32 gradients; the first fully connected layer holds three quarters."""
    layers, inputs, side = [], 3, 224
    for group, (outputs, convolutions) in enumerate([(64, 2), (128, 2), (256, 3), (512, 3), (512, 3)]):
        for index in range(convolutions):
            layers += _conv(f"conv{group}.{index}", inputs, outputs, 3, side, False)
            inputs = outputs
        side //= 2
    return [*layers, _linear("fc0", 512 * 7 * 7, 4096), _linear("fc1", 4096, 4096), _linear("fc2", 4096, 1000)]


def _norm(name: str, width: int, tokens: int) -> Layer:
    return Layer(name, ((width,), (width,)), 8.0 * width * tokens)


def _block(name: str, width: int, tokens: int, fused: bool) -> list[Layer]:
    attention = (
        [_linear(f"{name}.qkv", width, 3 * width, tokens)]
        if fused
        else [_linear(f"{name}.{part}", width, width, tokens) for part in ("query", "key", "value")]
    )
    return [
        _norm(f"{name}.ln1", width, tokens),
        *attention,
        _linear(f"{name}.proj", width, width, tokens),
        _norm(f"{name}.ln2", width, tokens),
        _linear(f"{name}.fc", width, 4 * width, tokens),
        _linear(f"{name}.out", 4 * width, width, tokens),
    ]


def bert_base() -> list[Layer]:
    """109 M parameters; the word embedding, a fifth of the bytes, is ready last."""
    width, tokens = 768, 512
    embeddings = [
        Layer("word", ((30_522, width),), 0.0),
        Layer("position", ((512, width), (2, width)), 0.0),
        _norm("ln", width, tokens),
    ]
    blocks = [layer for index in range(12) for layer in _block(f"layer{index}", width, tokens, fused=False)]
    return [*embeddings, *blocks, _linear("pooler", width, width)]


def gpt2_small() -> list[Layer]:
    """124 M parameters; the tied embedding, 31 % of the bytes, is ready last."""
    width, tokens = 768, 1024
    head = float(50_257 * width * tokens)  # the tied weight is first used in the head, and complete at the very end
    embeddings = [Layer("wte", ((50_257, width),), 0.0), Layer("wpe", ((1024, width),), 0.0)]
    blocks = [layer for index in range(12) for layer in _block(f"h{index}", width, tokens, fused=True)]
    final = _norm("ln_f", width, tokens)
    return [*embeddings, *blocks, Layer(final.name, final.shapes, final.work + head)]


MODELS = {"resnet50": resnet50, "vgg16": vgg16, "bert_base": bert_base, "gpt2_small": gpt2_small}


def total_bytes(layers: list[Layer]) -> int:
    """Bytes of all gradients in float32."""
    return 4 * sum(_numel(shape) for layer in layers for shape in layer.shapes)


def scaled_numels(layers: list[Layer], scale: float) -> list[list[int]]:
    """Elements of each parameter, shrunk by `scale` (at least one)."""
    return [[max(1, round(_numel(shape) * scale)) for shape in layer.shapes] for layer in layers]
