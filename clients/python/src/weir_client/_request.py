"""Options given by name, put into the request's fields."""

from __future__ import annotations

from typing import Any, Mapping, Optional, Union

from google.protobuf.message import Message


def text_of(name: str, value: Any) -> str:
    """The text of a call.

    Raises TypeError for anything else, None included: an empty text must be meant.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name}: expected a str, found {type(value).__name__}")
    return value


def fill(request: Message, options: Mapping[str, Any], places: Mapping[str, str]) -> None:
    """Sets the request's fields. `places` tells the submessage of each option, "" for the request itself.

    Raises TypeError for a name that is no option, or a value of the wrong kind, and ValueError for a number that the field
    cannot hold. What the server's bounds are is the server's to say.
    """
    for name, value in options.items():
        if name not in places:
            raise TypeError(f"{name!r} is no option; there are {', '.join(sorted(places))}")
        if value is None:
            continue
        message = getattr(request, places[name]) if places[name] else request
        try:
            if isinstance(value, (list, tuple)):
                getattr(message, name).extend(value)
            else:
                setattr(message, name, value)
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from None


def fill_biases(request: Any, biases: Optional[Mapping[Union[str, int], float]]) -> None:
    """Sets `sampling.logit_bias`: of symbols as text, or by their ids."""
    for symbol, bias in (biases or {}).items():
        entry = request.sampling.logit_bias.add(bias=bias)
        if isinstance(symbol, str):
            entry.text = symbol
        else:
            entry.id = symbol
