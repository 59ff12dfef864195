"""How functions are compiled, and where compiled code is kept.

It is kept beside the sources, in ``NUMBA_CACHE_DIR`` or in the user's cache, as numba does it, with three differences.

- It is known by the contents of everything that is compiled together, not by the time of one file. So it survives an
  installation, and a changed function changes those that call it.
- On processors that can run it, it is compiled for a common one, so that machines agree to the bit, and one machine can
  compile for others.
- What a wheel or an image brings (``kernels``, put there by ``deploy/wheel.py``) is taken before anything is compiled.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

from llvmlite import binding as llvm
from numba import config, njit, types
from numba.core import caching
from numba.core.registry import cpu_target

_PACKAGE = Path(__file__).parents[1]
_FOLDERS = ("alerts", "clustering", "divergence", "evidence", "model", "numerics", "runtime")
_FILES = ("account", "calendar", "fields", "scores", "settings")
COMPILED_FROM = (*_FOLDERS, *(f"{name}.py" for name in _FILES))
"""Sources of compiled code and of its constants: where one of these changes, everything is compiled again."""
_COMMON = ("avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe")
"""Features that x86-64-v3, the processors since about 2015, has beyond the first ones with 64 bits."""


def compiled(*, fastmath: Set[str] = frozenset()) -> Callable[[Callable[..., Any]], Any]:
    """For a function of plain arrays that Python calls, or compiled code, or both."""
    return _compiler(fastmath=set(fastmath))


def inner(*, fastmath: Set[str] = frozenset()) -> Callable[[Callable[..., Any]], Any]:
    """For a function that only other compiled functions call.

    It has no wrapper for calls from Python. A wrapper unpacks every array of every argument, and with densities and
    libraries as arguments it took the compiler longer than most of the functions themselves. To call one from Python
    ends the process, so tests go through a function that has a wrapper.
    """
    return _compiler(fastmath=set(fastmath), no_cpython_wrapper=True, no_cfunc_wrapper=True)


def shipped_kernels() -> Path:
    """Where compiled code lies that came with the package, if any did."""
    return Path(os.environ.get("STREAM_CCSD_KERNELS", _PACKAGE / "kernels"))


def ship_kernels(cache: Path, target: Path) -> int:
    """Put code compiled with ``NUMBA_CACHE_DIR=cache`` where a package ships it; returns how many functions."""
    count = 0
    for name in ("stream_ccsd", "replay"):
        top = _PACKAGE.parent / name
        for folder in {path.parent for path in top.rglob("*.py")}:
            source = cache / caching._CacheLocator.get_suitable_cache_subpath(str(folder / "any.py"))
            if source.is_dir():
                place = target / ".".join(folder.relative_to(_PACKAGE.parent).parts)
                shutil.copytree(source, place)
                count += sum(1 for _ in place.glob("*.nbi"))
    return count


def _compiler(**options: Any) -> Callable[[Callable[..., Any]], Any]:
    def compile_later(function: Callable[..., Any]) -> Any:
        with _own_locators():
            made = njit(cache=True, nogil=True, **options)(function)
        return made if config.DISABLE_JIT else _without_literals(made)

    return compile_later


def _without_literals(function: Any) -> Any:
    """A constant as an argument, like the 0 in ``find(keys, 0, count, key)``, is an integer as any other.

    Numba would compile the function, and all that it calls, once more for each of them.
    """
    compile_for = function.get_call_template

    def get_call_template(args: Sequence[Any], kws: Mapping[str, Any]) -> Any:
        by_name = {name: types.unliteral(kind) for name, kind in kws.items()}
        return compile_for(tuple(map(types.unliteral, args)), by_name)

    function.get_call_template = get_call_template
    return function


@contextmanager
def _own_locators() -> Iterator[None]:
    """For the functions of this package only: others in the process stay where numba puts them."""
    before = config.CACHE_LOCATOR_CLASSES
    names = ("Given", "BesideSources", "OfUser")
    config.CACHE_LOCATOR_CLASSES = ",".join(f"{__name__}.{name}" for name in names)
    try:
        yield
    finally:
        config.CACHE_LOCATOR_CLASSES = before


def contents(file: str) -> str:
    """A hash of all that is compiled together, and of that file, which may be of another package."""
    return hashlib.sha256(_everything() + Path(file).read_bytes()).hexdigest()


@cache
def _everything() -> bytes:
    """Read once, for all functions."""
    digest = hashlib.sha256()
    for name in COMPILED_FROM:
        place = _PACKAGE / name
        for path in sorted(place.rglob("*.py")) if place.is_dir() else [place]:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.digest()


class _ByContents:
    """Added to numba's own locators: see the module."""

    _py_file: str

    def get_source_stamp(self) -> str:
        return contents(self._py_file)

    @classmethod
    def from_function(cls, function: Any, file: str) -> Any:
        located = super().from_function(function, file)  # type: ignore[misc]
        if located is not None:
            _bring_shipped(function, Path(located.get_cache_path()))
        return located


class Given(_ByContents, caching.UserProvidedCacheLocator):  # type: ignore[misc]
    """In the folder that ``NUMBA_CACHE_DIR`` names."""


class BesideSources(_ByContents, caching.InTreeCacheLocator):  # type: ignore[misc]
    """In ``__pycache__``."""


class OfUser(_ByContents, caching.UserWideCacheLocator):  # type: ignore[misc]
    """In the user's own cache, where the others cannot be written to."""


def _bring_shipped(function: Any, target: Path) -> None:
    """Copy code that came with the package to where numba looks, unless that is newer."""
    package, _, module = function.__module__.rpartition(".")
    shipped = shipped_kernels() / package
    # As numba names its files; the star is a line.
    names = f"{module}.{function.__qualname__}-*.py{sys.version_info[0]}{sys.version_info[1]}*"
    found = sorted(shipped.glob(names)) if shipped.is_dir() else []  # data before the index that names it
    index = target / found[-1].name if found else None
    if index is None or (index.exists() and index.stat().st_mtime >= found[-1].stat().st_mtime):
        return
    with suppress(OSError):  # a full disk: then it is compiled
        for source in found:
            temporary = target / f"{source.name}.{os.getpid()}"
            shutil.copyfile(source, temporary)
            temporary.replace(target / source.name)


def _prefer_common_processor() -> None:
    """Compile for x86-64-v3, unless told otherwise, the processor is older, or numba has compiled already."""
    begun = "_toplevel_target_context" in vars(cpu_target)
    if not begun and config.CPU_NAME is None and config.CPU_FEATURES is None:
        features = llvm.get_host_cpu_features()
        if all(features.get(name) for name in _COMMON):
            config.CPU_NAME, config.CPU_FEATURES = "x86-64-v3", ""


_prefer_common_processor()
