"""float32 to fp16 and back, for numba, which knows no float16 on the CPU: a word, or sixteen words at a time.

Arithmetic on the bits, which every processor has. Compilers make vectors of such loops only where they can tell that
the arrays do not overlap; here they are vectors from the beginning.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .stream import LINE_BYTES, past_the_caches

HALF_LINE = LINE_BYTES // 4
"""Words at a time: as many float32 as a cache line holds."""


@intrinsic
def half(typingctx, bits):
    """`half(bits)`: of a float32 (as uint32) the nearest fp16 (as uint16), ties to even.

    Beyond 65504 it is infinite, NaN stays NaN.
    """
    return types.uint16(types.uint32), lambda context, builder, signature, args: _half(builder, args[0])


@intrinsic
def whole(typingctx, half):
    """`whole(half)`: the float32 (as uint32) that an fp16 (as uint16) is."""
    return types.uint32(types.uint16), lambda context, builder, signature, args: _whole(builder, args[0])


@intrinsic
def halve_line(typingctx, source, at, target, to):
    """`halve_line(source, at, target, to)`: `HALF_LINE` words from `source[at]` on; 1-D of uint32, 1-D of uint16."""
    return _line(source, target, _half, 32, 16, past=False)


@intrinsic
def whole_line(typingctx, source, at, target, to):
    """The way back: `HALF_LINE` words, 1-D of uint16, 1-D of uint32."""
    return _line(source, target, _whole, 16, 32, past=False)


@intrinsic
def round_line(typingctx, source, at, target, to):
    """There and back: `HALF_LINE` words, both 1-D of uint32."""
    return _line(source, target, _round, 32, 32, past=False)


@intrinsic
def stream_whole_line(typingctx, source, at, target, to):
    """`whole_line` past the caches, see `stream.stream_line`: `target[to]` must lie at a multiple of 64 bytes."""
    return _line(source, target, _whole, 16, 32, past=True)


@intrinsic
def stream_round_line(typingctx, source, at, target, to):
    """`round_line` past the caches, see `stream.stream_line`: `target[to]` must lie at a multiple of 64 bytes."""
    return _line(source, target, _round, 32, 32, past=True)


def _line(source: Any, target: Any, convert: Callable[..., Any], read: int, written: int, past: bool) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        def place(array_type: Any, array: Any, at: Any, bits: int) -> Any:
            data = context.make_array(array_type)(context, builder, array).data
            return builder.bitcast(builder.gep(data, [at]), ir.VectorType(ir.IntType(bits), HALF_LINE).as_pointer())

        words = builder.load(place(signature.args[0], args[0], args[1], read), align=1)
        out = place(signature.args[2], args[2], args[3], written)
        store = builder.store(convert(builder, words), out, align=LINE_BYTES if past else 1)
        if past:
            past_the_caches(builder, store)
        return context.get_dummy_value()

    return types.void(source, types.int64, target, types.int64), codegen


def _like(words: Any, element: ir.Type) -> ir.Type:
    return ir.VectorType(element, words.type.count) if isinstance(words.type, ir.VectorType) else element


def _constant(words: Any, value: Any, element: ir.Type | None = None) -> ir.Constant:
    """The number, as often as there are words."""
    if isinstance(words.type, ir.VectorType):
        return ir.Constant(_like(words, element or words.type.element), [value] * words.type.count)
    return ir.Constant(element or words.type, value)


def _half(builder: Any, bits: Any) -> Any:
    def number(value: int) -> ir.Constant:
        return _constant(bits, value)

    floats = _like(bits, ir.FloatType())
    sign, size = builder.and_(bits, number(0x80000000)), builder.and_(bits, number(0x7FFFFFFF))
    # At 0.5 the last bit of a float32 is worth 2**-24, as that of a subnormal fp16: the addition rounds.
    added = builder.fadd(builder.bitcast(size, floats), _constant(bits, 0.5, ir.FloatType()))
    small = builder.sub(builder.bitcast(added, bits.type), number(0x3F000000))
    odd = builder.and_(builder.lshr(size, number(13)), number(1))
    # Exponents of float32 are biased by 127, those of fp16 by 15.
    normal = builder.lshr(builder.add(builder.sub(size, number(0x38000000 - 0xFFF)), odd), number(13))
    above = builder.icmp_unsigned(">", size, number(0x7F800000))
    large = builder.select(above, number(0x7E00), number(0x7C00))
    found = builder.select(builder.icmp_unsigned("<", size, number(0x38800000)), small, normal)
    found = builder.select(builder.icmp_unsigned(">=", size, number(0x47800000)), large, found)
    return builder.trunc(builder.or_(found, builder.lshr(sign, number(16))), _like(bits, ir.IntType(16)))


def _whole(builder: Any, halves: Any) -> Any:
    wide = builder.zext(halves, _like(halves, ir.IntType(32)))

    def number(value: int) -> ir.Constant:
        return _constant(wide, value)

    floats = _like(wide, ir.FloatType())
    sign = builder.shl(builder.and_(wide, number(0x8000)), number(16))
    size = builder.shl(builder.and_(wide, number(0x7FFF)), number(13))
    # For the bias of the exponent: times 2**112.
    scaled = builder.fmul(builder.bitcast(size, floats), builder.bitcast(number(0x77800000), floats))
    bits = builder.bitcast(scaled, wide.type)
    beyond = builder.icmp_unsigned(">=", size, number(0x0F800000))
    bits = builder.select(beyond, builder.or_(bits, number(0x7F800000)), bits)
    return builder.or_(bits, sign)


def _round(builder: Any, bits: Any) -> Any:
    return _whole(builder, _half(builder, bits))
