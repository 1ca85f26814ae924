/* Conversions of f16 and bf16, which compilers call where the CPU has no instruction for them.
 *
 * Host code converts the scalars that a kernel takes as f16 or bf16. Compilers define these functions in
 * libraries of their own, of which nothing is linked in. Their names and arguments are those of LLVM's
 * compiler-rt (https://compiler-rt.llvm.org). */

#include <stdint.h>
#include <string.h>

enum { F16_EXPONENT_BITS = 5, BF16_EXPONENT_BITS = 8 };

/* A number in 16 bits: to the nearest, and of two as near to the even one. A float is a double, so that this
 * rounds once. */
static uint16_t narrow(double value, int exponent_bits)
{
    const int fraction_bits = 15 - exponent_bits;
    const int infinite = (1 << exponent_bits) - 1;
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint16_t sign = (uint16_t)(bits >> 48 & 0x8000);
    const int given_exponent = (int)(bits >> 52 & 0x7ff);
    int exponent = given_exponent - 1023 + infinite / 2;
    uint64_t fraction = bits & ((UINT64_C(1) << 52) - 1);
    int dropped = 52 - fraction_bits;
    if (given_exponent == 0x7ff && fraction != 0) { /* Not a number, and quiet. */
        return (uint16_t)(sign | infinite << fraction_bits | 1 << (fraction_bits - 1) | fraction >> dropped);
    }
    if (exponent >= infinite) {
        return (uint16_t)(sign | infinite << fraction_bits);
    }
    if (exponent <= 0) { /* Subnormal, or zero: the leading one is part of the fraction. */
        fraction |= UINT64_C(1) << 52;
        dropped += 1 - exponent;
        exponent = 0;
        if (dropped > 53) {
            return sign;
        }
    }
    const uint64_t rest = fraction & ((UINT64_C(1) << dropped) - 1);
    const uint64_t half = UINT64_C(1) << (dropped - 1);
    uint64_t kept = ((uint64_t)exponent << fraction_bits) + (fraction >> dropped);
    kept += rest > half || (rest == half && (kept & 1));
    return (uint16_t)(sign | kept);
}

static _Float16 to_f16(double value)
{
    const uint16_t bits = narrow(value, F16_EXPONENT_BITS);
    _Float16 result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

static __bf16 to_bf16(double value)
{
    const uint16_t bits = narrow(value, BF16_EXPONENT_BITS);
    __bf16 result;
    memcpy(&result, &bits, sizeof result);
    return result;
}

_Float16 __truncsfhf2(float value) { return to_f16(value); }
_Float16 __truncdfhf2(double value) { return to_f16(value); }
__bf16 __truncsfbf2(float value) { return to_bf16(value); }
__bf16 __truncdfbf2(double value) { return to_bf16(value); }

float __extendhfsf2(_Float16 value)
{
    uint16_t bits;
    memcpy(&bits, &value, sizeof bits);
    const uint32_t sign = (uint32_t)(bits & 0x8000) << 16, exponent = bits >> 10 & 0x1f, fraction = bits & 0x3ff;
    float result;
    if (exponent == 0) {
        result = (float)fraction * 0x1p-24f;
        return sign ? -result : result;
    }
    const uint32_t wide = sign | (exponent == 0x1f ? 0xff : exponent + 112) << 23 | fraction << 13;
    memcpy(&result, &wide, sizeof result);
    return result;
}
