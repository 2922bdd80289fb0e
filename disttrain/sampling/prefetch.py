"""The processor's prefetch instruction, for numba: ask for a place in memory before it is needed."""

from __future__ import annotations

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


@intrinsic
def prefetch(typingctx, array, index):
    """`prefetch(array, index)`: bring the cache line of `array[index]` (1-D) nearer. Changes nothing else.

    The index need not be in range: the instruction does not fault.
    """

    def codegen(context, builder, signature, args):
        array_type = signature.args[0]
        view = context.make_array(array_type)(context, builder, args[0])
        place = cgutils.get_item_pointer2(
            context,
            builder,
            view.data,
            cgutils.unpack_tuple(builder, view.shape, 1),
            cgutils.unpack_tuple(builder, view.strides, 1),
            array_type.layout,
            [args[1]],
        )
        byte_pointer, int32 = ir.IntType(8).as_pointer(), ir.IntType(32)
        function = cgutils.get_or_insert_function(
            builder.module,
            ir.FunctionType(ir.VoidType(), [byte_pointer, int32, int32, int32]),
            "llvm.prefetch.p0i8",
        )
        # Arguments: for reading, to be kept in all cache levels, data.
        builder.call(function, [builder.bitcast(place, byte_pointer), int32(0), int32(3), int32(1)])
        return context.get_dummy_value()

    return types.void(array, types.int64), codegen
