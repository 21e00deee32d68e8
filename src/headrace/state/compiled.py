"""What all compiled kernels share: how they are compiled, and the mixing of 64-bit words.

Kernels release the interpreter lock (but for ``brief`` ones) and keep their machine code beside the source (or in numba's own
cache directory), so that only the first process of a machine compiles.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba import njit, types
from numba.extending import intrinsic

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
U8 = npt.NDArray[np.uint8]
Int: TypeAlias = int | np.int64
Array = TypeVar("Array", bound=npt.NDArray[Any])
Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_27, _30, _31 = np.uint64(27), np.uint64(30), np.uint64(31)
_M1, _M2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


_INDEX = ("choosing", "idling", "keybytes", "keyhash", "layout", "policies", "probing", "registers")
KERNEL_MODULES = (
    "compiled",
    "rowhash",
    *(f"index/{name}" for name in (*_INDEX, "residency")),
    *(f"spill/{name}" for name in ("blocks", "buckets", "rowkernels")),
    "stores/meeting",
)
"""Where kernels, their parts and their constants are written."""


def _digest_of_kernels() -> str | None:
    """A digest of all code that may be part of a kernel; None if it is in an archive."""
    paths = [Path(__file__).parent / f"{name}.py" for name in KERNEL_MODULES]
    if not all(path.exists() for path in paths):
        return None
    return sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()


_DIGEST = _digest_of_kernels()


def compiled(function: Kernel) -> Kernel:
    """The function as machine code, cached on disk; integers wrap, nothing checks bounds."""
    return _as_kernel(function, nogil=True)


def brief(function: Kernel) -> Kernel:
    """The same for what is done in less time than it takes to get the interpreter lock again: it is kept."""
    return _as_kernel(function, nogil=False)


def _as_kernel(function: Kernel, *, nogil: bool) -> Kernel:
    try:
        kernel = njit(cache=True, nogil=nogil, error_model="numpy")(function)
    except RuntimeError:  # no directory to cache in
        return cast(Kernel, njit(nogil=nogil, error_model="numpy")(function))
    # numba would look only at the age of the kernel's own file, not at those of the parts inlined into it
    if _DIGEST:
        kernel._cache._cache_file._source_stamp = _DIGEST
    return cast(Kernel, kernel)


def read_only(array: Array) -> Array:
    """A read-only view in one piece: kernels are compiled for those, whoever owns the memory."""
    view = np.ascontiguousarray(array).view()
    view.flags.writeable = False
    return cast(Array, view)


def inlined(function: Kernel) -> Kernel:
    """A part of kernels, compiled into each of them."""
    return cast(Kernel, njit(forceinline=True, nogil=True, error_model="numpy")(function))


@inlined
def mixed(x: np.uint64) -> np.uint64:
    """The finaliser of splitmix64, one to one on 64-bit words."""
    x = (x ^ (x >> _30)) * _M1
    x = (x ^ (x >> _27)) * _M2
    return x ^ (x >> _31)


def _word_at(typing: Any, data: Any, at: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.bitcast(builder.gep(array.data, [arguments[1]]), ir.IntType(64).as_pointer())
        return builder.load(place, align=1)

    return types.uint64(data, types.int64), emit


word_at: Callable[[U8, Int], np.uint64] = intrinsic(_word_at)
"""Eight bytes from any offset as one word: numpy and numba know only aligned ones."""


def _borrowed(typing: Any, array: Any) -> Any:
    def emit(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        view = context.make_array(array)(context, builder, arguments[0])
        view.meminfo = view.meminfo.type(None)
        return view._getvalue()

    return array(array), emit


borrowed: Callable[[Any], Any] = intrinsic(_borrowed)
"""The array without its owner: numba would count references, atomically, in each inner call per record.

For arrays that the kernel's caller holds on to.
"""
