"""Converts protobuf messages into dataclasses with the same fields."""

from __future__ import annotations

import collections.abc
import dataclasses
import enum
import functools
from typing import Any, Callable, Hashable, Tuple, Type, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from google.protobuf.message import Message

T = TypeVar("T")


def convert(cls: Type[T], message: Message) -> T:
    """Returns the message as this dataclass. An absent field becomes None if its type allows that."""
    values = {}
    for name, optional, make in _plan(cast(Hashable, cls)):
        missing = optional and not message.HasField(name)
        values[name] = None if missing else make(getattr(message, name))
    return cls(**values)


@functools.lru_cache(maxsize=None)
def _plan(cls: Hashable) -> Tuple[Tuple[str, bool, Callable[[Any], Any]], ...]:
    """Returns for each field of the dataclass: its name, whether it may be None, and its converter."""
    hints = get_type_hints(cast(Any, cls))
    plan = []
    for field in dataclasses.fields(cast(Any, cls)):
        hint, optional = hints[field.name], False
        if get_origin(hint) is Union:
            (hint,), optional = [one for one in get_args(hint) if one is not type(None)], True
        plan.append((field.name, optional, _maker(hint)))
    return tuple(plan)


def _maker(hint: Any) -> Callable[[Any], Any]:
    origin = get_origin(hint)
    if origin is tuple:
        make = _maker(get_args(hint)[0])
        return lambda values: tuple(make(value) for value in values)
    if origin is collections.abc.Mapping:
        return dict
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return functools.partial(convert, hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint
    return lambda value: value
