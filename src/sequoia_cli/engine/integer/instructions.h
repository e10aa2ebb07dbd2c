// Vectors, and the sets of instructions that multiply small integers (see kernel.cpp).

#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace {

constexpr int GROUP = 64, SPAN = 32, SPANS = GROUP / SPAN, BLOCK = 16, QUAD = 4;
constexpr int LARGEST = 127;

// ---------------------------------------------------------------- vectors

// NATIVE values of 32 bits fill a vector of the widest instructions used.
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
constexpr int NATIVE = 16;
#elif defined(__AVX2__) && defined(__FMA__)
constexpr int NATIVE = 8;
#else
constexpr int NATIVE = 4;
#endif
typedef float Native __attribute__((vector_size(4 * NATIVE)));
typedef float Unaligned __attribute__((vector_size(4 * NATIVE), aligned(4), may_alias));
typedef int32_t NativeInt __attribute__((vector_size(4 * NATIVE)));

// ---------------------------------------------------------------- sets of instructions
// Each has the number of ROWS that fit into its registers and the type Input in which it wants inputs. Weights are QUAD
// values of NATIVE outputs, of which `add` adds the products to Sums; these begin at BIAS times the sum of the inputs.
// Nibbles are weights of 4 bits, whose inputs are bytes and whose sums are NibbleSums of SPAN products, from 0.

template <class Value>
inline Value read(const void* at) {
    Value found;
    std::memcpy(&found, at, sizeof found);
    return found;
}

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

struct Set {
    static constexpr const char* NAME = "AVX-512 VNNI";
    static constexpr int ROWS = 8, BIAS = -128;
    using Input = int8_t;
    using Weights = __m512i;
    using Nibbles = __m512i;
    struct Sums { __m512i lanes; };
    struct NibbleSums { __m512i lanes; };
    // The instruction takes one factor without sign: the weights plus 128.
    static Weights weights(const int8_t* at) {
        return _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_set1_epi8(-128));
    }
    static void nibbles(const int8_t* at, Nibbles& first, Nibbles& second) {
        const __m512i both = _mm512_loadu_si512(at), low = _mm512_set1_epi8(15);
        first = _mm512_and_si512(both, low);
        second = _mm512_and_si512(_mm512_srli_epi16(both, 4), low);
    }
    static Sums start(int sum) { return {_mm512_set1_epi32(sum)}; }
    template <class AnySums>
    static void add(AnySums& sums, __m512i weights, const int8_t* inputs) {
        sums.lanes = _mm512_dpbusd_epi32(sums.lanes, weights, _mm512_set1_epi32(read<int>(inputs)));
    }
    template <class AnySums>
    static NativeInt whole(const AnySums& sums) { return (NativeInt)sums.lanes; }
};

#elif defined(__AVX2__) && defined(__FMA__)

struct NibblesOfAvx2 {
    using Nibbles = __m256i;
    static void nibbles(const int8_t* at, Nibbles& first, Nibbles& second) {
        const __m256i both = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), low = _mm256_set1_epi8(15);
        first = _mm256_and_si256(both, low);
        second = _mm256_and_si256(_mm256_srli_epi16(both, 4), low);
    }
};

#if defined(__AVXVNNI__)

struct Set : NibblesOfAvx2 {
    static constexpr const char* NAME = "AVX-VNNI";
    static constexpr int ROWS = 8, BIAS = -128;
    using Input = int8_t;
    using Weights = __m256i;
    struct Sums { __m256i lanes; };
    struct NibbleSums { __m256i lanes; };
    static Weights weights(const int8_t* at) {
        return _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)), _mm256_set1_epi8(-128));
    }
    static Sums start(int sum) { return {_mm256_set1_epi32(sum)}; }
    template <class AnySums>
    static void add(AnySums& sums, __m256i weights, const int8_t* inputs) {
        sums.lanes = _mm256_dpbusd_avx_epi32(sums.lanes, weights, _mm256_set1_epi32(read<int>(inputs)));
    }
    template <class AnySums>
    static NativeInt whole(const AnySums& sums) { return (NativeInt)sums.lanes; }
};

#else

struct Set : NibblesOfAvx2 {
    static constexpr const char* NAME = "AVX2";
    static constexpr int ROWS = 4, BIAS = 0;
    using Input = int16_t;  // no product of 16 bits overflows 32, while pairs of products of 8 bits overflow 16
    struct Weights { __m256i first, second; };
    struct Sums { __m256i first, second; };  // each output has two lanes
    // Each output has two lanes of 16 bits. SPAN products make at most 16 * 15 * 127 in each, so that none overflows.
    struct NibbleSums { __m256i lanes; };
    static Weights weights(const int8_t* at) {
        return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16)))};
    }
    static Sums start(int) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static void add(Sums& sums, Weights weights, const Input* inputs) {
        const __m256i quad = _mm256_set1_epi64x(read<long long>(inputs));
        sums.first = _mm256_add_epi32(sums.first, _mm256_madd_epi16(weights.first, quad));
        sums.second = _mm256_add_epi32(sums.second, _mm256_madd_epi16(weights.second, quad));
    }
    static void add(NibbleSums& sums, Nibbles weights, const int8_t* inputs) {
        const __m256i quad = _mm256_set1_epi32(read<int>(inputs));
        sums.lanes = _mm256_add_epi16(sums.lanes, _mm256_maddubs_epi16(weights, quad));
    }
    static NativeInt whole(const Sums& sums) {
        const __m256i paired = _mm256_hadd_epi32(sums.first, sums.second);
        return (NativeInt)_mm256_permute4x64_epi64(paired, 0b11011000);
    }
    static NativeInt whole(const NibbleSums& sums) {
        return (NativeInt)_mm256_madd_epi16(sums.lanes, _mm256_set1_epi16(1));
    }
};

#endif

#elif defined(__ARM_FEATURE_DOTPROD)

struct Set {
    static constexpr const char* NAME = "NEON with dot products";
    static constexpr int ROWS = 8, BIAS = 0;
    using Input = int8_t;
    using Weights = int8x16_t;
    using Nibbles = int8x16_t;
    struct Sums { int32x4_t lanes; };
    struct NibbleSums { int32x4_t lanes; };
    static Weights weights(const int8_t* at) { return vld1q_s8(at); }
    static void nibbles(const int8_t* at, Nibbles& first, Nibbles& second) {
        const uint8x16_t both = vreinterpretq_u8_s8(vld1q_s8(at));
        first = vreinterpretq_s8_u8(vandq_u8(both, vdupq_n_u8(15)));
        second = vreinterpretq_s8_u8(vshrq_n_u8(both, 4));
    }
    static Sums start(int) { return {vdupq_n_s32(0)}; }
    template <class AnySums>
    static void add(AnySums& sums, int8x16_t weights, const int8_t* inputs) {
        sums.lanes = vdotq_s32(sums.lanes, weights, vreinterpretq_s8_s32(vdupq_n_s32(read<int32_t>(inputs))));
    }
    template <class AnySums>
    static NativeInt whole(const AnySums& sums) { return (NativeInt)sums.lanes; }
};

#else

struct Set {
    static constexpr const char* NAME = "no vector instructions of its own";
    static constexpr int ROWS = 4, BIAS = 0;
    using Input = int8_t;
    struct Weights { int8_t values[NATIVE * QUAD]; };
    using Nibbles = Weights;
    struct Sums { NativeInt lanes; };
    struct NibbleSums { NativeInt lanes; };
    static Weights weights(const int8_t* at) { return read<Weights>(at); }
    static void nibbles(const int8_t* at, Nibbles& first, Nibbles& second) {
        for (int place = 0; place < NATIVE * QUAD; place++) {
            first.values[place] = at[place] & 15;
            second.values[place] = uint8_t(at[place]) >> 4;
        }
    }
    static Sums start(int) { return {NativeInt{}}; }
    template <class AnySums>
    static void add(AnySums& sums, const Weights& weights, const int8_t* inputs) {
        for (int output = 0; output < NATIVE; output++)
            for (int place = 0; place < QUAD; place++)
                sums.lanes[output] += weights.values[output * QUAD + place] * inputs[place];
    }
    template <class AnySums>
    static NativeInt whole(const AnySums& sums) { return sums.lanes; }
};

#endif

// A float of 16 bits, which is finite.
inline float half_value(uint16_t bits) {
    const uint32_t size = uint32_t(bits & 0x7fff) << 13, sign = uint32_t(bits & 0x8000) << 16;
    const float found = read<float>(&size) * 0x1p112f;  // exact, for the smallest numbers too
    return sign ? -found : found;
}

// NATIVE of them.
inline Native halves(const uint16_t* at) {
#if defined(__AVX512VNNI__) && defined(__AVX512BW__)
    return (Native)_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(at)));
#elif defined(__F16C__) && defined(__AVX2__) && defined(__FMA__)
    return (Native)_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
#else
    Native found;
    for (int lane = 0; lane < NATIVE; lane++) found[lane] = half_value(at[lane]);
    return found;
#endif
}

}  // namespace
