"""Single instructions that numba has no name for."""

from __future__ import annotations

from numba import types
from numba.extending import intrinsic


@intrinsic
def count_bits(typingctx, word):
    """`count_bits(word)`: how many bits of a uint64 are set."""

    def codegen(context, builder, signature, args):
        return builder.ctpop(args[0])

    return types.uint64(types.uint64), codegen


@intrinsic
def atomic_add(typingctx, array, at, value):
    """`atomic_add(array, at, value)`: `array[at] += value`, nothing lost when others do the same; 1-D of uint32.

    Others are threads, and processes that map the same memory.
    """

    def codegen(context, builder, signature, args):
        pointer = context.make_array(signature.args[0])(context, builder, args[0]).data
        builder.atomic_rmw("add", builder.gep(pointer, [args[1]]), args[2], "monotonic")
        return context.get_dummy_value()

    return types.void(array, types.int64, types.uint32), codegen
