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
    """Returns the message as an instance of `cls`. An absent field becomes None if its type is Optional."""
    values = {}
    for name, optional, converter in _plan(cast(Hashable, cls)):
        missing = optional and not message.HasField(name)
        values[name] = None if missing else converter(getattr(message, name))
    return cls(**values)


@functools.lru_cache(maxsize=None)
def _plan(cls: Hashable) -> Tuple[Tuple[str, bool, Callable[[Any], Any]], ...]:
    """Returns the name of each field of the dataclass, whether it may be None, and its converter."""
    hints = get_type_hints(cast(Any, cls))
    plan = []
    for field in dataclasses.fields(cast(Any, cls)):
        hint = hints[field.name]
        optional = get_origin(hint) is Union
        if optional:
            (hint,) = [member for member in get_args(hint) if member is not type(None)]
        plan.append((field.name, optional, _converter(hint)))
    return tuple(plan)


def _converter(hint: Any) -> Callable[[Any], Any]:
    origin = get_origin(hint)
    if origin is tuple:
        convert_item = _converter(get_args(hint)[0])
        return lambda values: tuple(convert_item(value) for value in values)
    if origin is collections.abc.Mapping:
        return dict
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return functools.partial(convert, hint)
    if isinstance(hint, type) and issubclass(hint, enum.Enum):
        return hint
    return lambda value: value
