"""Names for things: algorithms, data sets, models, ... each found by the name its file registers."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from polyfed.core.code import check_code
from polyfed.core.errors import BadInput, cut, nearest, shown

T = TypeVar("T")
_registries: list[Registry[Any]] = []


class Registry(Generic[T]):
    """Name -> thing. Importing every module of `package` fills it, so that adding a method is adding a file."""

    def __init__(self, kind: str, *packages: str, own: bool = True, modules: tuple[str, ...] = ()) -> None:
        """packages: whose modules register things when they are imported; modules: single ones elsewhere.

        own: whether a name `package.module:function` imports a user's own; never where names come over a network.
        """
        self.kind, self._own = kind, own
        self._packages, self._modules = packages, modules
        self._things: dict[str, T] = {}
        self._imported: dict[str, T] = {}  # users' own, by 'module:name'
        self._complete = False
        _registries.append(self)

    def __call__(self, name: str) -> Callable[[T], T]:
        """Decorator: `@algorithms("fedavg")`. A taken name is refused, never silently replaced."""

        def add(thing: T) -> T:
            if name in self._things and _home(self._things[name]) != _home(thing):  # a cell or module that is run again
                raise ValueError(f"The {self.kind} {name!r} is registered already; choose another name.")
            self._things[name] = thing
            return thing

        return add

    def __getitem__(self, name: str) -> T:
        """The thing of that name; `package.module:function` imports a user's own."""
        if name not in self._things:
            self._fill()
        if name in self._things:
            return self._things[name]
        if name in self._imported:
            return self._imported[name]
        if self._own and ":" in name:
            thing: T = _import(name, self.kind)
            self._imported[name] = thing
            return thing
        raise BadInput(f"Unknown {self.kind} {shown(name)}.{nearest(name, self._things)}")

    def known(self, name: str) -> T:
        """The thing of that name, if it is registered or was imported here before: for names that come from outside."""
        if name in self._imported:
            return self._imported[name]
        if ":" in name:
            raise BadInput(f"Unknown {self.kind} {shown(name)}; it is not one that this side has imported.")
        return self[name]

    def name_of(self, kind: Any) -> str:
        """The name of a registered class or function, or 'module:name'; from then on it is known by that."""
        for name in self:
            if self._things[name] is kind:
                return name
        name = f"{kind.__module__}:{kind.__qualname__}"
        self._imported[name] = kind
        return name

    def __iter__(self) -> Iterator[str]:
        self._fill()
        return iter(sorted(self._things))

    def __contains__(self, name: object) -> bool:
        self._fill()
        return name in self._things

    def help(self, name: str) -> str:
        """The first line of the thing's docstring."""
        return (inspect.getdoc(self[name]) or "").split("\n")[0]

    def _fill(self) -> None:
        if not self._complete:
            for name in self._packages:
                for module in pkgutil.iter_modules(importlib.import_module(name).__path__):
                    importlib.import_module(f"{name}.{module.name}")
            for name in self._modules:
                importlib.import_module(name)
            self._complete = True


def forget(module: str) -> None:
    """What a user's module registered, which is about to be replaced by another of the same name."""
    for registry in _registries:
        for name, thing in list(registry._things.items()):
            if getattr(getattr(thing, "do", thing), "__module__", None) == module:
                del registry._things[name]
        for name in [name for name in registry._imported if name.partition(":")[0] == module]:
            del registry._imported[name]


def _home(thing: Any) -> tuple[str, str]:
    """Where a thing was defined."""
    made = getattr(thing, "do", thing)
    return str(getattr(made, "__module__", "")), str(getattr(made, "__qualname__", id(made)))


def _import(name: str, kind: str) -> Any:
    check_code(name, kind)
    module, _, attribute = name.partition(":")
    try:
        found = getattr(importlib.import_module(module), attribute)
        if not callable(found):
            raise AttributeError(f"{attribute!r} is {type(found).__name__}, not a function or a class")
        return found
    except Exception as error:  # whatever a user's module does when it is imported
        why = cut(f"{type(error).__name__}: {error}")
        raise BadInput(
            f"The {kind} {shown(name)} cannot be imported ({why}); "
            "write 'module:name', the module a file beside the experiment, without '.py', or on the Python path."
        ) from error
