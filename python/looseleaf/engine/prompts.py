"""The ways to write a prompt, and how each becomes token ids."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from looseleaf.engine.detokenizer import Tokenizer
from looseleaf.errors import RequestError

Prompt = str | Sequence[int] | Mapping[str, Any]
"""Text, token ids, ``{"prompt": text}`` or ``{"prompt_token_ids": ids}``, with or without ``cache_salt``."""

_KEYS = ("prompt", "prompt_token_ids", "cache_salt")


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """A prompt as the engine takes it.

    Attributes:
        token_ids: what the model sees.
        text: what they were made of, if it is known.
        cache_salt: only prompts with the same salt share cached blocks.
    """

    token_ids: list[int]
    text: str | None = None
    cache_salt: str | None = None


def listed(prompts: Prompt | Sequence[Prompt]) -> list[Prompt]:
    """The prompts of one call: one alone becomes a list of one."""
    if isinstance(prompts, str | Mapping):
        return [prompts]
    items: list[Any] = list(prompts)
    if items and all(isinstance(item, int) for item in items):
        return [items]
    return items


def tokenized(prompt: Prompt, tokenizer: Tokenizer | None) -> TokenPrompt:
    """Turn a prompt into token ids; the tokenizer adds its special tokens to text.

    Raises:
        RequestError: the prompt has another form, or is text and the model has no tokenizer.
    """
    fields: Mapping[str, Any]
    if isinstance(prompt, str):
        fields = {"prompt": prompt}
    elif isinstance(prompt, Mapping):
        fields = prompt
    else:
        fields = {"prompt_token_ids": prompt}
    unknown = [key for key in fields if key not in _KEYS]
    if unknown:
        raise RequestError(f"a prompt may have the keys {', '.join(_KEYS)}, found {unknown[0]!r}")
    text, token_ids, salt = (fields.get(key) for key in _KEYS)
    if text is not None and not isinstance(text, str):
        raise RequestError(f"prompt must be a string, found {text!r}")
    if salt is not None and (not isinstance(salt, str) or not salt):
        raise RequestError(f"cache_salt must be a non-empty string, found {salt!r}")
    if token_ids is not None:
        return TokenPrompt(_integers(token_ids), text, salt)
    if text is None:
        raise RequestError("a prompt needs one of the keys prompt and prompt_token_ids")
    return TokenPrompt(_encode(text, tokenizer, add_special_tokens=True), text, salt)


def rendered(
    messages: Sequence[Mapping[str, Any]], tokenizer: Tokenizer | None, **template_arguments: Any
) -> dict[str, Any]:
    """The prompt that a model's chat template makes of a conversation.

    Args:
        messages: dictionaries with ``role`` and ``content``, oldest first.
        tokenizer: of a chat model.
        template_arguments: for ``apply_chat_template`` of transformers.

    Returns:
        ``{"prompt": text, "prompt_token_ids": ids}``.

    Raises:
        RequestError: the model has no chat template, or its template refuses the messages.
    """
    render = getattr(tokenizer, "apply_chat_template", None)
    if render is None:
        raise RequestError(
            "the model has no tokenizer, and so no chat template: give token ids to generate()"
        )
    if not (template_arguments.get("chat_template") or getattr(tokenizer, "chat_template", None)):
        raise RequestError("the model has no chat template: pass chat_template, or use generate()")
    for message in messages:
        if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
            raise RequestError(f"a message must be a dictionary with role and content, found {message!r}")
    from jinja2 import TemplateError  # comes with transformers, and is needed for chats only

    try:
        text = render(list(messages), tokenize=False, **template_arguments)
    except (TemplateError, TypeError, ValueError) as error:
        raise RequestError(f"the chat template refuses the messages: {error}") from error
    # The template wrote the special tokens itself.
    return {"prompt": text, "prompt_token_ids": _encode(text, tokenizer, add_special_tokens=False)}


def _encode(text: str, tokenizer: Tokenizer | None, *, add_special_tokens: bool) -> list[int]:
    if tokenizer is None:
        raise RequestError("the model has no tokenizer: give token ids as prompt_token_ids")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(f"prompt has half of a surrogate pair at character {error.start}") from None
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)


def _integers(token_ids: Iterable[Any]) -> list[int]:
    try:
        return [operator.index(token) for token in token_ids]
    except TypeError:
        raise RequestError(f"prompt_token_ids must be a list of integers, found {token_ids!r:.80}") from None
