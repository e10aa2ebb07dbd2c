// Floats row by row: the same operations in the same order with every set of instructions.

#pragma once

#include <cmath>
#include <cstdint>

#include "instructions.h"

namespace {

// LANES floats in as many vectors as this processor needs for them, so that every sum has the same order everywhere.
constexpr int LANES = 16;
typedef float Quarter __attribute__((vector_size(4 * LANES / 4)));

struct Wide {
    static constexpr int PARTS = LANES / NATIVE;
    Native part[PARTS];
};

// `compute` for each vector of the arguments.
template <class Compute, class... Arguments>
inline Wide each(Compute compute, const Arguments&... arguments) {
    Wide found;
    for (int part = 0; part < Wide::PARTS; part++) found.part[part] = compute(arguments.part[part]...);
    return found;
}

inline Wide load(const float* at) {
    Wide found;
    for (int part = 0; part < Wide::PARTS; part++)
        found.part[part] = *reinterpret_cast<const Unaligned*>(at + part * NATIVE);
    return found;
}
inline void store(float* at, const Wide& values) {
    for (int part = 0; part < Wide::PARTS; part++)
        *reinterpret_cast<Unaligned*>(at + part * NATIVE) = values.part[part];
}
inline Wide all(float value) {
    Wide found;
    for (Native& part : found.part) part = Native{} + value;
    return found;
}
inline Wide operator+(const Wide& a, const Wide& b) {
    return each([](Native x, Native y) { return x + y; }, a, b);
}
inline Wide operator-(const Wide& a, const Wide& b) {
    return each([](Native x, Native y) { return x - y; }, a, b);
}
inline Wide operator*(const Wide& a, const Wide& b) {
    return each([](Native x, Native y) { return x * y; }, a, b);
}
inline Wide operator/(const Wide& a, const Wide& b) {
    return each([](Native x, Native y) { return x / y; }, a, b);
}
inline Wide higher(const Wide& a, const Wide& b) {
    return each([](Native x, Native y) { return x > y ? x : y; }, a, b);
}
inline Wide magnitude(const Wide& a) {
    return each([](Native x) { return (Native)((NativeInt)x & (NativeInt{} + 0x7fffffff)); }, a);
}

// Nothing here is contracted by the compiler (see the flags), so that a row is computed the same wherever it stands.
inline Native fused(Native a, Native b, Native c) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
    return (Native)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX2__) && defined(__FMA__)
    return (Native)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
#elif defined(__ARM_NEON) && defined(__ARM_FEATURE_FMA)
    return (Native)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
#else
    Native found;
    for (int lane = 0; lane < NATIVE; lane++) found[lane] = std::fma(a[lane], b[lane], c[lane]);
    return found;
#endif
}
inline Wide fused(const Wide& a, const Wide& b, const Wide& c) {
    return each([](Native x, Native y, Native z) { return fused(x, y, z); }, a, b, c);
}

// One of all lanes: they are folded in half, again and again.
template <class Fold>
inline float folded(const Wide& values, Fold fold) {
    Quarter quarters[4];
    for (int quarter = 0; quarter < 4; quarter++) {
        const Native& part = values.part[quarter * 4 / NATIVE];
        const int first = quarter * 4 % NATIVE;
        quarters[quarter] = Quarter{part[first], part[first + 1], part[first + 2], part[first + 3]};
    }
    const Quarter four = fold(fold(quarters[0], quarters[2]), fold(quarters[1], quarters[3]));
    const Quarter two = fold(four, Quarter{four[2], four[3], four[0], four[1]});
    return fold(two, Quarter{two[1], two[0], two[3], two[2]})[0];
}
inline float total(const Wide& values) {
    return folded(values, [](Quarter a, Quarter b) { return a + b; });
}
inline float largest(const Wide& values) {
    return folded(values, [](Quarter a, Quarter b) { return a > b ? a : b; });
}

// e to the power of x to about 1e-7 of it: 2^n times a polynomial in what is left, within ln(2)/2 (Cephes' degrees).
inline Native exponential(Native x) {
    const Native none = {}, low = none - 87.f, high = none + 88.f, round = none + 12582912.f;
    Native bounded = x < low ? low : x;
    bounded = bounded > high ? high : bounded;
    const Native shifted = fused(bounded, none + 1.44269504f, round);  // rounds to a whole number
    const Native whole = shifted - round;
    Native rest = fused(whole, none - 0.693359375f, bounded);
    rest = fused(whole, none + 2.12194440e-4f, rest);
    Native power = none + 1.9875691500e-4f;
    power = fused(power, rest, none + 1.3981999507e-3f);
    power = fused(power, rest, none + 8.3334519073e-3f);
    power = fused(power, rest, none + 4.1665795894e-2f);
    power = fused(power, rest, none + 1.6666665459e-1f);
    power = fused(power, rest, none + 5.0000001201e-1f);
    power = fused(power, rest * rest, rest) + 1.f;
    const NativeInt exponent = ((NativeInt)shifted - (NativeInt)round) << 23;
    const Native found = (Native)((NativeInt)power + exponent);
    return x != x ? x : found;
}
inline Wide exponential(const Wide& x) {
    return each([](Native part) { return exponential(part); }, x);
}

}  // namespace
