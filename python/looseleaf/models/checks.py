"""What the paged cache would compute wrongly, refused when a model is loaded.

None of these fails on its own: a model that is let through answers, with other tokens than it should.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence

from transformers import PretrainedConfig, PreTrainedModel

from looseleaf.errors import UnsupportedModelError
from looseleaf.models.attention_layers import LayerAttention
from looseleaf.models.paged_forward import CACHE_KEYWORDS

# "dynamic" and "longrope" choose their frequencies by the largest position in the whole batch: a row's logits
# would depend on its neighbours.
ROPE_TYPES = frozenset({"default", "linear", "llama3", "yarn"})
# The other kinds keep a state, or say what a token sees in their mask alone.
LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


def check_config(config: PretrainedConfig) -> None:
    """Refuse what a configuration says about its attention; needs no weights.

    Args:
        config: a model's configuration; of a multimodal one, the part for text counts.

    Raises:
        UnsupportedModelError: naming what was found and what is allowed.
    """
    text = config.get_text_config(decoder=True)
    kind = text.model_type
    if config.is_encoder_decoder or getattr(text, "add_cross_attention", None):
        raise UnsupportedModelError(f"{kind} has cross-attention; only self-attention is paged")
    if (
        getattr(text, "use_bidirectional_attention", None) in (True, "all")
        or getattr(text, "is_causal", None) is False
    ):
        raise UnsupportedModelError(f"{kind} lets tokens see later ones; only causal attention is paged")
    if getattr(text, "is_heterogeneous", False):
        raise UnsupportedModelError(
            f"{kind} has settings of their own for some layers; all must have the same"
        )
    if shared := getattr(text, "num_kv_shared_layers", None):
        raise UnsupportedModelError(
            f"{kind} has num_kv_shared_layers={shared}; every layer must have keys and values of its own (0)"
        )
    _check_names(kind, "layer_types", getattr(text, "layer_types", None) or (), LAYER_TYPES)
    _check_names(kind, "rope_type", _rope_types(getattr(text, "rope_parameters", None)), ROPE_TYPES)


def check_class(model_class: type[PreTrainedModel]) -> None:
    """Refuse what a model's class cannot do, whatever its configuration.

    Raises:
        UnsupportedModelError: naming what was found and what is allowed.
    """
    name = model_class.__name__
    if getattr(model_class, "_is_stateful", False):
        raise UnsupportedModelError(f"{name} keeps a recurrent state; only keys and values are paged")
    # Without the flag, setting an attention implementation warns and changes nothing.
    if not getattr(model_class, "_supports_attention_backend", False):
        raise UnsupportedModelError(
            f"{name} computes attention in its own code; a model must take its attention function from "
            "transformers' AttentionInterface"
        )
    parameters = inspect.signature(model_class.forward).parameters
    missing = [keyword for keyword in ("position_ids", "logits_to_keep") if keyword not in parameters]
    if not any(keyword in parameters for keyword in CACHE_KEYWORDS):
        missing.append(CACHE_KEYWORDS[0])
    if missing:
        raise UnsupportedModelError(
            f"{name}.forward takes no {' and no '.join(missing)}; a packed batch needs position_ids, "
            f"logits_to_keep and {' or '.join(CACHE_KEYWORDS)}"
        )


def check_layers(config: PretrainedConfig, layers: Sequence[LayerAttention]) -> None:
    """Refuse a model whose traced layers differ from its configuration or in shape.

    Args:
        config: the model's configuration.
        layers: what one token met, from :func:`looseleaf.models.attention_layers.trace_layers`.

    Raises:
        UnsupportedModelError: naming what was found and what is allowed.
    """
    text = config.get_text_config(decoder=True)
    kind = text.model_type
    if len(layers) != text.num_hidden_layers:
        raise UnsupportedModelError(
            f"{kind} attends in {len(layers)} of its {text.num_hidden_layers} layers; all must use the paged "
            "cache"
        )
    shapes = sorted({(layer.num_kv_heads, layer.head_size) for layer in layers})
    if len(shapes) > 1:
        raise UnsupportedModelError(
            f"{kind} has layers of different shapes {shapes} [kv heads, head size]; all must be the same"
        )
    # A window that only a model's mask knows would be lost with the mask.
    for index, (layer, window) in enumerate(zip(layers, _windows(text), strict=True)):
        if layer.sliding_window != window:
            raise UnsupportedModelError(
                f"{kind} attends with sliding_window={layer.sliding_window} in layer {index}, and its "
                f"configuration says {window}; they must agree"
            )


def _check_names(kind: str, field: str, found: Sequence[str], allowed: frozenset[str]) -> None:
    unknown = sorted(set(found) - allowed)
    if unknown:
        raise UnsupportedModelError(
            f"{kind} has {field} {', '.join(map(repr, unknown))}; allowed: {', '.join(sorted(allowed))}"
        )


def _rope_types(parameters: object) -> list[str]:
    """All rope types in ``rope_parameters``, which is one dictionary or one for each kind of layer."""
    if not isinstance(parameters, Mapping):
        return []
    nested = [value for value in parameters.values() if isinstance(value, Mapping)]
    return [str(part["rope_type"]) for part in (parameters, *nested) if part.get("rope_type") is not None]


def _windows(text: PretrainedConfig) -> Iterator[int | None]:
    """The window each layer should have by the configuration."""
    # A configuration keeps whatever its file says, also words that its model has never heard of.
    declared = "sliding_window" in inspect.signature(type(text)).parameters
    window: int | None = getattr(text, "sliding_window", None) if declared else None
    layer_types = getattr(text, "layer_types", None)
    for index in range(text.num_hidden_layers):
        slides = layer_types is None or layer_types[index] == "sliding_attention"
        yield window if slides else None
