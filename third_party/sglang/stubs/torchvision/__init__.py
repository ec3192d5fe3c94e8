"""Stands in for torchvision, which SGLang imports for pictures: any submodule and any name exist and do nothing."""

import importlib.abc
import importlib.machinery
import sys

__version__ = "0.28.0"
__path__ = []


class _Placeholder(type):
    """Makes classes whose every attribute is another such class."""

    def __getattr__(cls, name):
        return _placeholder(name)


def _placeholder(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return _Placeholder(name, (), {})


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule."""

    def find_spec(self, fullname, path, target=None):
        """Returns a package for names below torchvision."""
        if fullname.startswith(f"{__name__}."):
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec):
        """Leaves it to Python."""
        return None

    def exec_module(self, module):
        """Gives it names."""
        module.__path__ = []
        module.__getattr__ = _placeholder


sys.meta_path.append(_Submodules())
__getattr__ = _placeholder
