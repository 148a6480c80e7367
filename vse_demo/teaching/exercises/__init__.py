"""The checks of all exercises, a module per lesson; importing this package registers them."""

from importlib import import_module
from pkgutil import iter_modules

for found in iter_modules(__path__):
    import_module(f"{__name__}.{found.name}")
