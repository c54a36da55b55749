"""Writes options given by name into the fields of a request."""

from __future__ import annotations

import json
from typing import Any, Dict, Iterable, Mapping, Optional, Union

from google.protobuf.message import Message


def text_of(name: str, value: Any) -> str:
    """Returns the text of a call.

    Raises TypeError for a value that is not a `str`, None included.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, found {type(value).__name__}")
    return value


def fill(request: Message, options: Mapping[str, Any], submessages: Mapping[str, str]) -> None:
    """Sets the request's fields. `submessages` names the submessage of each option, "" for the request itself.

    Raises TypeError for an unknown option or a value of the wrong type, and ValueError for a number that the field
    cannot hold. The server checks its own limits.
    """
    for name, value in options.items():
        if name not in submessages:
            raise TypeError(f"unknown option {name!r}; available: {', '.join(sorted(submessages))}")
        if value is None:
            continue
        message = getattr(request, submessages[name]) if submessages[name] else request
        try:
            _set(message, name, value)
        except (AttributeError, TypeError, ValueError) as error:
            kind = ValueError if isinstance(error, ValueError) else TypeError
            raise kind(f"{name}: {error}") from None


def _set(message: Message, name: str, value: Any) -> None:
    field = getattr(message, name)
    if not hasattr(field, "extend"):
        setattr(message, name, value)
    elif isinstance(value, str) or not isinstance(value, Iterable):
        # A str is iterable, but not a list of its characters.
        raise TypeError(f"expected a list, found {type(value).__name__}")
    else:
        field.extend(value)


def fill_biases(request: Any, biases: Optional[Mapping[Union[str, int], float]]) -> None:
    """Sets `sampling.logit_bias` for symbols identified by text or by id."""
    for symbol, bias in (biases or {}).items():
        entry = request.sampling.logit_bias.add(bias=bias)
        if isinstance(symbol, str):
            entry.text = symbol
        else:
            entry.id = symbol


def fill_form(request: Any, options: Dict[str, Any]) -> None:
    """Sets the form of the text to the texts of `choice`, and turns `json_schema` into its text.

    Raises ValueError for more than one form, and TypeError for a `choice` that is no list of texts.
    """
    forms = ("regex", "choice", "json_schema", "json_object", "grammar")
    given = [name for name in forms if options.get(name) is not None]
    if len(given) > 1:
        raise ValueError(f"{given[0]} and {given[1]} exclude each other: give one")
    schema = options.get("json_schema")
    if schema is not None and not isinstance(schema, str):
        options["json_schema"] = json.dumps(schema)
    choice = options.pop("choice", None)
    if isinstance(choice, str):
        raise TypeError("choice: expected a list, found str")
    if choice is not None:
        request.constraint.choice.SetInParent()
        request.constraint.choice.texts.extend(choice)
