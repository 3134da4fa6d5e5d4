"""The ways to write a prompt, and how each becomes token ids."""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from looseleaf.engine.bounds import shown
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
    """The prompts of one call: one alone becomes a list of one.

    Raises:
        RequestError: they are neither a prompt nor several.
    """
    if isinstance(prompts, str | Mapping):
        return [prompts]
    items = _items(prompts)
    if items is None:
        raise RequestError(
            "prompts must be text, a list of token ids, a dictionary, or a list of such, found"
            f" {shown(prompts)}"
        )
    if items and all(isinstance(item, Integral) for item in items):
        return [items]
    return items


def conversations(messages: Sequence[Any]) -> list[Sequence[Mapping[str, Any]]]:
    """The conversations of one call: one alone becomes a list of one.

    Raises:
        RequestError: they are neither a conversation nor several.
    """
    several = None if isinstance(messages, Mapping) else _items(messages)
    if several is None:
        raise RequestError(
            "messages must be a conversation, [{'role': 'user', 'content': …}, …], or a list of several,"
            f" found {shown(messages)}"
        )
    return [several] if several and isinstance(several[0], Mapping) else several


def tokenized(prompt: Prompt, tokenizer: Tokenizer | None) -> TokenPrompt:
    """Turn a prompt into token ids; the tokenizer adds its special tokens to text.

    Raises:
        RequestError: as for :func:`parted`; or the prompt is text and the model has no tokenizer.
    """
    text, token_ids, salt = parted(prompt)
    if token_ids is None:
        assert text is not None, "a prompt has one of the two"
        token_ids = _encode(text, tokenizer, add_special_tokens=True)
    return TokenPrompt(token_ids, text, salt)


def parted(prompt: Prompt) -> tuple[str | None, list[int] | None, str | None]:
    """The text, the token ids and the salt of a prompt, with all checks that need no model.

    Raises:
        RequestError: the prompt has another form, or something that no model takes.
    """
    fields: Mapping[str, Any]
    if isinstance(prompt, str):
        fields = {"prompt": prompt}
    elif isinstance(prompt, Mapping):
        fields = prompt
    elif (items := _items(prompt)) is not None:
        fields = {"prompt_token_ids": items}
    else:
        raise RequestError(f"a prompt must be text, token ids or a dictionary, found {shown(prompt)}")
    unknown = [key for key in fields if key not in _KEYS]
    if unknown:
        raise RequestError(f"a prompt may have the keys {', '.join(_KEYS)}, found {unknown[0]!r}")
    text, token_ids, salt = (fields.get(key) for key in _KEYS)
    if text is None and token_ids is None:
        raise RequestError("a prompt needs one of the keys prompt and prompt_token_ids")
    if text is not None:
        if not isinstance(text, str):
            raise RequestError(f"prompt must be a string, found {shown(text)}")
        refuse_surrogates("prompt", text)
    if salt is not None:
        if not isinstance(salt, str) or not salt:
            raise RequestError(f"cache_salt must be a non-empty string, found {shown(salt)}")
        refuse_surrogates("cache_salt", salt)
    return text, None if token_ids is None else _integers(token_ids), salt


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
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise RequestError(f"a conversation must be a list of one message or more, found {shown(messages)}")
    for index, message in enumerate(messages):
        _check_message(f"messages[{index}]", message)
    from jinja2 import TemplateError  # comes with transformers, and is needed for chats only

    try:
        text = render(list(messages), tokenize=False, **template_arguments)
    except (TemplateError, TypeError, ValueError) as error:
        raise RequestError(f"the chat template refuses the messages: {error}") from error
    refuse_surrogates("the text that the chat template made", text)  # from roles, for example
    # The template wrote the special tokens itself.
    return {"prompt": text, "prompt_token_ids": _encode(text, tokenizer, add_special_tokens=False)}


def _encode(text: str, tokenizer: Tokenizer | None, *, add_special_tokens: bool) -> list[int]:
    if tokenizer is None:
        raise RequestError("the model has no tokenizer: give token ids as prompt_token_ids")
    return tokenizer.encode(text, add_special_tokens=add_special_tokens)


def refuse_surrogates(name: str, text: str) -> None:
    """Refuse text that cannot be written as UTF-8, which is what tokenizers and hashes read.

    Raises:
        RequestError: ``text`` has half of a surrogate pair; the sentence calls it ``name``.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"{name} has half of a surrogate pair at character {error.start} (from 0), {text[error.start]!r},"
            " which stands for nothing: leave it out, or put its other half beside it"
        ) from None


def _check_message(name: str, message: object) -> None:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(
            f"a message must be a dictionary with role and content, found {shown(message)} as {name}"
        )
    content = message.get("content")
    if content is None and message.keys() <= {"role", "content"}:  # one that calls a tool may have none
        raise RequestError(f"{name} has no content; give text, if only the empty string")
    if isinstance(content, str):
        refuse_surrogates(f"the content of {name}", content)
    elif content is not None and not isinstance(content, Sequence):
        raise RequestError(f"the content of {name} must be text, found {shown(content)}")


def _items(value: Any) -> list[Any] | None:
    """The items of a list, an array or the like; None where there are none to take one by one, in order."""
    if isinstance(value, str | bytes | bytearray | Set | Mapping):
        return None
    try:
        return list(value)
    except TypeError:
        return None


def _integers(token_ids: Iterable[Any]) -> list[int]:
    items = _items(token_ids)
    try:
        ids = [operator.index(token) for token in items or ()]
    except TypeError:
        items = None
    # True would pass as token 1, and so would an item of a tensor of truths.
    truths = "bool" in str(getattr(token_ids, "dtype", "")) or bool in map(type, items or ())
    if items is None or truths:
        raise RequestError(f"prompt_token_ids must be a list of integers, found {shown(token_ids)}")
    if (lowest := min(ids, default=0)) < 0:
        raise RequestError(f"prompt_token_ids must be from 0 up, found {shown(lowest)}")
    return ids
