"""Objects of Python by their place, as in `package.module:Name`: how the command line takes somebody's own parts."""

import importlib
import inspect
import os
import sys
from types import ModuleType
from typing import Any


def is_reference(name: object) -> bool:
    """Whether a name has the form `package.module:Name`.

    >>> is_reference("my_project.poolings:PowerMean"), is_reference("adpool"), is_reference("C:/models")
    (True, False, False)
    """
    if not isinstance(name, str) or name.count(":") != 1:
        return False
    return all(part.isidentifier() for part in name.replace(":", ".").split("."))


def import_object(reference: str) -> Any:
    """The object that `package.module:Name` stands for. Modules in the current folder are found too.

    Raises:
        ValueError: If there is no such module, it cannot be imported, or it has no such name.

    >>> import_object("collections:Counter")("aab")["a"]
    2
    """
    module_name, _, name = reference.partition(":")
    module = import_module(module_name)
    try:
        return getattr(module, name)
    except AttributeError:
        raise ValueError(f"{reference}: {module_name} has no {name}") from None


def import_module(name: str) -> ModuleType:
    """Import a module, also from the current folder, where a program that was installed does not look by itself.

    Raises:
        ValueError: If it cannot be imported.
    """
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ValueError(f"{name} cannot be imported: {error}") from error


def reference_of(thing: Any) -> str:
    """`package.module:Name` of a class or function; a string is returned as it is.

    Raises:
        ValueError: If it has no such place, as what is defined inside a function has none.

    >>> from collections import Counter
    >>> reference_of(Counter), reference_of("adpool")
    ('collections:Counter', 'adpool')
    """
    if isinstance(thing, str):
        return thing
    module, name = getattr(thing, "__module__", None), getattr(thing, "__qualname__", "")
    if not module or not name.isidentifier():
        raise ValueError(f"{thing!r} is not a class or function at the top of a module, where it can be found again")
    return f"{module}:{name}"


def stored_class(reference: str, base: type) -> type:
    """The class that a stored file names. Files may come from anywhere, so nothing is imported for them.

    Args:
        reference: As in `package.module:Name`.
        base: What it must be a subclass of.

    Raises:
        ValueError: If its module has not been imported by this program already, or it is no such class.
    """
    module_name, _, name = reference.partition(":")
    if module_name not in sys.modules:
        raise ValueError(
            f"{reference} is not of this package: import {module_name} first, "
            f"on the command line by --import {module_name}"
        )
    found = getattr(sys.modules[module_name], name, None)
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ValueError(f"{reference} is not a class of {base.__module__}.{base.__name__}")
    return found


def call_with(factory: Any, known: dict[str, Any], options: dict[str, Any]) -> Any:
    """Call a class or function with its options, and with those of the known values that its signature names.

    >>> call_with(lambda dim, scale=1: dim * scale, {"dim": 2, "modality": "image"}, {"scale": 3})
    6
    """
    names = inspect.signature(factory).parameters
    return factory(**{name: value for name, value in known.items() if name in names}, **options)
