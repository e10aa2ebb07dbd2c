// Products of small integers for few rows, and decoder layers around them. No header of torch is needed.
//
// A weight of 8 bits is a number from -127 to 127 times the scale of its output, or times that of SPAN weights. One of 4
// bits is a number from 0 to 15 times the scale of SPAN weights, plus their offset. Each row of inputs is rounded to
// numbers from -127 to 127 too, with a scale for every GROUP of its values. The sums within a group or span are integers
// and exact; they are added as floats in order, with the same operations for every instruction set below. So a row's
// results depend on nothing beside it, bit for bit. All else here is computed row by row as well.
//
// Weights lie in blocks of BLOCK outputs; within a block, QUAD values of each output's row follow those of the output
// before, then comes the next QUAD. Of 4 bits, two such runs share their bytes: the first has the low halves. Rows are
// filled up with zeros to whole groups, outputs to whole blocks.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <vector>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif
#if defined(__AMX_INT8__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
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

// ---------------------------------------------------------------- floats, LANES at once

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

// ---------------------------------------------------------------- products

struct Matrix {
    const int8_t* numbers;
    const float* scales;     // of outputs; absent where spans have scales
    const uint16_t *span_scales, *span_offsets;  // (blocks, spans, BLOCK); offsets are there with 4 bits only
    const float* bias;       // may be absent
    int32_t outputs, width;
};

inline int groups_of(int width) { return (width + GROUP - 1) / GROUP; }
inline int blocks_of(int outputs) { return (outputs + BLOCK - 1) / BLOCK; }

// Rows of inputs as numbers, in `groups` groups each.
struct Rounded {
    std::vector<Set::Input> values;  // (rows, groups, GROUP)
    std::vector<int8_t> bytes;       // the same, where `values` are wider
    std::vector<float> scales;       // (rows, groups)
    std::vector<int32_t> sums;       // (rows, groups, SPANS)
    std::vector<float> offsets;      // (rows, groups, SPANS): sums times scales
    int groups = 0;

    static constexpr bool WIDER = !std::is_same<Set::Input, int8_t>::value;

    void resize(int rows, int width) {
        groups = groups_of(width);
        const size_t all = size_t(rows) * groups;
        values.resize(all * GROUP);
        if (WIDER) bytes.resize(all * GROUP);
        scales.resize(all);
        sums.resize(all * SPANS);
        offsets.resize(all * SPANS);
    }
    template <class Value>
    const Value* row(int number) const {
        const size_t place = size_t(number) * groups * GROUP;
        if constexpr (std::is_same<Value, Set::Input>::value) return &values[place];
        else return &bytes[place];
    }
    // GROUP values of a row.
    void round(int row, int group, const float* inputs) {
        constexpr int PARTS = GROUP / LANES;
        Wide parts[PARTS];
        Wide most = all(0.f), nothing = all(0.f);
        for (int part = 0; part < PARTS; part++) {
            parts[part] = load(inputs + part * LANES);
            most = higher(magnitude(parts[part]), most);
            nothing = nothing + parts[part] * all(0.f);  // not a number where a value is not finite
        }
        const float peak = largest(most);
        const size_t place = size_t(row) * groups + group;
        scales[place] = peak / LARGEST + total(nothing);
        const Wide factor = all(peak > 0 ? LARGEST / peak : 0.f);
        int32_t sum[SPANS] = {};
        for (int part = 0; part < PARTS; part++) {
            float nearest[LANES];
            store(nearest, parts[part] * factor);
            for (int lane = 0; lane < LANES; lane++) {
                // The nearest whole number, ties to even: all of them are below 2^22.
                const int32_t number = int32_t((nearest[lane] + 12582912.f) - 12582912.f);
                const int32_t bounded = std::min(LARGEST, std::max(-LARGEST, number));
                const size_t at = place * GROUP + part * LANES + lane;
                values[at] = Set::Input(bounded);
                if (WIDER) bytes[at] = int8_t(bounded);
                sum[part * LANES / SPAN] += bounded;
            }
        }
        for (int span = 0; span < SPANS; span++) {
            sums[place * SPANS + span] = sum[span];
            offsets[place * SPANS + span] = float(sum[span]) * scales[place];
        }
    }
    // A whole row, filled up with zeros.
    void round_row(int row, const float* inputs, int width) {
        for (int group = 0; group < groups; group++) {
            const int first = group * GROUP, there = std::min(GROUP, width - first);
            if (there == GROUP) {
                round(row, group, inputs + first);
                continue;
            }
            float filled[GROUP] = {};
            std::memcpy(filled, inputs + first, sizeof(float) * there);
            round(row, group, filled);
        }
    }
};

inline Native floats(NativeInt whole) { return __builtin_convertvector(whole, Native); }

template <int COUNT>
inline void put(const Native (&found)[COUNT], float* into) {
    for (int row = 0; row < COUNT; row++) *reinterpret_cast<Unaligned*>(into + row * BLOCK) = found[row];
}

// The products below are those of COUNT rows from `first` on with the outputs of block `block` from `part` on, as many as
// fill a vector, before scales of outputs: `into` is (rows, BLOCK).

struct ByOutput {
    static constexpr int ROWS = Set::ROWS;
    template <int COUNT>
    static void multiply(const Matrix& matrix, int block, int part, const Rounded& inputs, int first, float* into) {
        const int groups = inputs.groups;
        const int8_t* weights = matrix.numbers + size_t(block) * groups * GROUP * BLOCK + part * QUAD;
        const Set::Input* rows = inputs.row<Set::Input>(first);
        const float* scales = &inputs.scales[size_t(first) * groups];
        const int32_t* sums = &inputs.sums[size_t(first) * groups * SPANS];
        Native found[COUNT] = {};
        for (int group = 0; group < groups; group++) {
            Set::Sums exact[COUNT];
            for (int row = 0; row < COUNT; row++) {
                const int32_t* own = sums + (row * groups + group) * SPANS;
                exact[row] = Set::start(Set::BIAS * (own[0] + own[1]));
            }
            // Rolled up, the sums are copied from register to register.
#pragma GCC unroll 16
            for (int place = 0; place < GROUP; place += QUAD) {
                const Set::Weights numbers = Set::weights(weights + place * BLOCK);
                for (int row = 0; row < COUNT; row++)
                    Set::add(exact[row], numbers, rows + row * groups * GROUP + place);
            }
            weights += GROUP * BLOCK;
            rows += GROUP;
            for (int row = 0; row < COUNT; row++)
                found[row] = fused(floats(Set::whole(exact[row])), Native{} + scales[row * groups + group], found[row]);
        }
        put(found, into);
    }
};

struct BytesBySpan {
    static constexpr int ROWS = Set::ROWS;
    template <int COUNT>
    static void multiply(const Matrix& matrix, int block, int part, const Rounded& inputs, int first, float* into) {
        const int groups = inputs.groups, spans = groups * SPANS;
        const int8_t* weights = matrix.numbers + size_t(block) * groups * GROUP * BLOCK + part * QUAD;
        const uint16_t* span_scales = matrix.span_scales + size_t(block) * spans * BLOCK + part;
        const Set::Input* rows = inputs.row<Set::Input>(first);
        const float* scales = &inputs.scales[size_t(first) * groups];
        const int32_t* sums = &inputs.sums[size_t(first) * spans];
        Native found[COUNT] = {};
        for (int span = 0; span < spans; span++) {
            Set::Sums exact[COUNT];
            for (int row = 0; row < COUNT; row++) exact[row] = Set::start(Set::BIAS * sums[row * spans + span]);
#pragma GCC unroll 8
            for (int place = 0; place < SPAN; place += QUAD) {
                const Set::Weights numbers = Set::weights(weights + place * BLOCK);
                for (int row = 0; row < COUNT; row++)
                    Set::add(exact[row], numbers, rows + row * groups * GROUP + place);
            }
            weights += SPAN * BLOCK;
            rows += SPAN;
            const Native scale = halves(span_scales + span * BLOCK);
            for (int row = 0; row < COUNT; row++)
                found[row] = fused(floats(Set::whole(exact[row])) * scale,
                                   Native{} + scales[row * groups + span / SPANS], found[row]);
        }
        put(found, into);
    }
};

struct NibblesBySpan {
    static constexpr int ROWS = 8;
    template <int COUNT>
    static void multiply(const Matrix& matrix, int block, int part, const Rounded& inputs, int first, float* into) {
        const int groups = inputs.groups, spans = groups * SPANS;
        const int8_t* weights = matrix.numbers + size_t(block) * groups * GROUP / 2 * BLOCK + part * QUAD;
        const uint16_t* span_scales = matrix.span_scales + size_t(block) * spans * BLOCK + part;
        const uint16_t* span_offsets = matrix.span_offsets + size_t(block) * spans * BLOCK + part;
        const int8_t* rows = inputs.row<int8_t>(first);
        const float* scales = &inputs.scales[size_t(first) * groups];
        const float* offsets = &inputs.offsets[size_t(first) * spans];
        Native found[COUNT] = {};
        for (int span = 0; span < spans; span++) {
            Set::NibbleSums exact[COUNT] = {};
#pragma GCC unroll 4
            for (int place = 0; place < SPAN; place += 2 * QUAD) {
                Set::Nibbles low, high;
                Set::nibbles(weights + place / 2 * BLOCK, low, high);
                for (int row = 0; row < COUNT; row++) {
                    Set::add(exact[row], low, rows + row * groups * GROUP + place);
                    Set::add(exact[row], high, rows + row * groups * GROUP + place + QUAD);
                }
            }
            weights += SPAN / 2 * BLOCK;
            rows += SPAN;
            const Native scale = halves(span_scales + span * BLOCK), offset = halves(span_offsets + span * BLOCK);
            for (int row = 0; row < COUNT; row++) {
                found[row] = fused(floats(Set::whole(exact[row])) * scale,
                                   Native{} + scales[row * groups + span / SPANS], found[row]);
                found[row] = fused(offset, Native{} + offsets[row * spans + span], found[row]);
            }
        }
        put(found, into);
    }
};

template <class Kind>
inline void multiply_rows(const Matrix& matrix, int block, const Rounded& inputs, int rows, float* into) {
    for (int part = 0; part < BLOCK; part += NATIVE) {
        for (int first = 0; first < rows; first += Kind::ROWS) {
            float* to = into + first * BLOCK + part;
            switch (std::min(Kind::ROWS, rows - first)) {
                case 1: Kind::template multiply<1>(matrix, block, part, inputs, first, to); break;
                case 2: Kind::template multiply<2>(matrix, block, part, inputs, first, to); break;
                case 3: Kind::template multiply<3>(matrix, block, part, inputs, first, to); break;
                case 4: Kind::template multiply<4>(matrix, block, part, inputs, first, to); break;
                case 5: Kind::template multiply<std::min(5, Kind::ROWS)>(matrix, block, part, inputs, first, to); break;
                case 6: Kind::template multiply<std::min(6, Kind::ROWS)>(matrix, block, part, inputs, first, to); break;
                case 7: Kind::template multiply<std::min(7, Kind::ROWS)>(matrix, block, part, inputs, first, to); break;
                default: Kind::template multiply<Kind::ROWS>(matrix, block, part, inputs, first, to);
            }
        }
    }
}

// The results of block `block` for all rows: `into` is (rows, BLOCK).
inline void multiply_block(const Matrix& matrix, int block, const Rounded& inputs, int rows, float* into) {
    if (matrix.scales) multiply_rows<ByOutput>(matrix, block, inputs, rows, into);
    else if (matrix.span_offsets) multiply_rows<NibblesBySpan>(matrix, block, inputs, rows, into);
    else multiply_rows<BytesBySpan>(matrix, block, inputs, rows, into);
    const int first = block * BLOCK;  // scales and bias are filled up to whole blocks
    const Wide scales = matrix.scales ? load(matrix.scales + first) : all(1.f);
    const Wide bias = matrix.bias ? load(matrix.bias + first) : all(0.f);
    for (int row = 0; row < rows; row++)
        store(into + row * BLOCK, fused(load(into + row * BLOCK), scales, bias));
}

// ---------------------------------------------------------------- a decoder layer

enum Activation : int32_t { SILU = 0, GELU_TANH = 1 };

struct Layer {
    Matrix into_attention, out_of_attention, into_mlp, out_of_mlp;
    const float *before_attention, *before_mlp;
    float before_attention_eps, before_mlp_eps, scale;
    int32_t query_heads, key_heads, width, activation;
};

inline Wide activated(Wide x, int activation) {
    if (activation == SILU) return x / (all(1.f) + exponential(all(0.f) - x));
    // x/2 (1 + tanh(u)), and tanh(u) = 1 - 2 / (1 + exp(2u)).
    const Wide inner = all(0.7978845608f) * fused(all(0.044715f) * x * x, x, x);
    const Wide tanh = all(1.f) - all(2.f) / (all(1.f) + exponential(inner + inner));
    return all(0.5f) * x * (all(1.f) + tanh);
}

// x / sqrt(mean(x^2) + eps) * weight, rounded. Rows of other widths than whole vectors are filled up with zeros.
void norm_row(const float* states, const float* weight, int width, float eps, float* scratch, Rounded& into, int row) {
    Wide squares = all(0.f);
    const int whole = width / LANES * LANES;
    for (int place = 0; place < whole; place += LANES) {
        const Wide part = load(states + place);
        squares = fused(part, part, squares);
    }
    float rest[LANES] = {};
    std::memcpy(rest, states + whole, sizeof(float) * (width - whole));
    squares = fused(load(rest), load(rest), squares);
    const float factor = 1.f / std::sqrt(total(squares) / float(width) + eps);
    for (int place = 0; place < whole; place += LANES)
        store(scratch + place, load(states + place) * all(factor) * load(weight + place));
    for (int place = whole; place < width; place++) scratch[place] = states[place] * factor * weight[place];
    into.round_row(row, scratch, width);
}

inline void turn(float* head, const float* cosines, const float* sines, int width) {
    const int half = width / 2;
    for (int place = 0; place < half; place++) {
        const float a = head[place], b = head[place + half];
        head[place] = a * cosines[place] - b * sines[place];
        head[place + half] = b * cosines[place + half] + a * sines[place + half];
    }
}

// COUNT vectors of the sum of `values` times their weights.
template <int COUNT>
inline void take(const float* values, int width, const int32_t* columns, int count, const std::vector<float>& weights,
                 float factor, float* into) {
    Native even[COUNT] = {}, odd[COUNT] = {};
    const auto add = [&](Native* onto, int place) {
        const float* value = values + size_t(columns ? columns[place] : place) * width;
        const Native weight = Native{} + weights[place];
        for (int at = 0; at < COUNT; at++)
            onto[at] = fused(weight, *reinterpret_cast<const Unaligned*>(value + at * NATIVE), onto[at]);
    };
    int place = 0;
    for (; place + 1 < count; place += 2) {
        add(even, place);
        add(odd, place + 1);
    }
    if (place < count) add(even, place);
    for (int at = 0; at < COUNT; at++)
        *reinterpret_cast<Unaligned*>(into + at * NATIVE) = (even[at] + odd[at]) * factor;
}

// One query over the rows of the cache that it sees, in their order: `columns`, or the first `count`.
void attend(const float* query, const float* keys, const float* values, int width, const int32_t* columns, int count,
            float scale, std::vector<float>& weights, float* into) {
    const auto row = [&](const float* rows, int place) {
        return rows + size_t(columns ? columns[place] : place) * width;
    };
    weights.resize((count + LANES - 1) / LANES * LANES);
    float most = -INFINITY, unknown = 0;
    for (int place = 0; place < count; place++) {
        const float* key = row(keys, place);
        Wide sum = load(query) * load(key);
        for (int part = LANES; part < width; part += LANES) sum = fused(load(query + part), load(key + part), sum);
        const float score = total(sum) * scale;
        weights[place] = score;
        most = std::max(most, score);
        unknown += score * 0.f;
    }
    for (size_t place = count; place < weights.size(); place++) weights[place] = -INFINITY;
    Wide sum = all(0.f);
    for (int place = 0; place < count; place += LANES) {
        const Wide score = load(&weights[place]) - all(most);
        const Wide weight =
            each([](Native x) { return x < Native{} - 87.f ? Native{} : exponential(x); }, score);
        store(&weights[place], weight);
        sum = sum + weight;
    }
    const float factor = 1.f / (total(sum) + unknown);
    // Several vectors at once, and every other row apart, so that no sum waits for the one before.
    int part = 0;
    for (; part + 4 * NATIVE <= width; part += 4 * NATIVE)
        take<4>(values + part, width, columns, count, weights, factor, into + part);
    for (; part < width; part += NATIVE)
        take<1>(values + part, width, columns, count, weights, factor, into + part);
}

struct Scratch {
    Rounded rounded, inner;
    std::vector<float> heads, taken;
};

// What layers of one forward have in common.
struct Step {
    int rows;
    float* states;
    const float *cosines, *sines;
    int capacity, end;
    const int32_t *columns, *counts;
};

// One thread's own.
struct Buffers {
    std::vector<float> normed, scores, products, gates;
};

// A layer, by all threads of a parallel region.
void run_layer(const Layer& layer, const Step& step, float* keys, float* values, Scratch& own, Buffers& buffers) {
    const int hidden = layer.into_attention.width, width = layer.width;
    const int heads = layer.query_heads + 2 * layer.key_heads, inner = layer.out_of_mlp.width;
    const int all_heads = blocks_of(heads * width) * BLOCK, taken = layer.query_heads * width;
    const int rows = step.rows, capacity = step.capacity, end = step.end;
    const float *cosines = step.cosines, *sines = step.sines;
    const int32_t *columns = step.columns, *counts = step.counts;
    float* states = step.states;
    Rounded &rounded = own.rounded, &gated = own.inner;
#pragma omp single
    {
        rounded.resize(rows, std::max(hidden, taken));
        rounded.resize(rows, hidden);
        gated.resize(rows, inner);
        own.heads.resize(size_t(rows) * all_heads);
        own.taken.resize(size_t(rows) * taken);
    }
    std::vector<float>&normed = buffers.normed, &scores = buffers.scores, &products = buffers.products, &gates = buffers.gates;
    normed.resize(hidden);
    products.resize(size_t(rows) * BLOCK);
    gates.resize(size_t(rows) * GROUP);
    const auto onto_states = [&](const Matrix& matrix, const Rounded& inputs) {
        const int blocks = blocks_of(matrix.outputs);
#pragma omp for schedule(static)
        for (int block = 0; block < blocks; block++) {
            multiply_block(matrix, block, inputs, rows, products.data());
            const int first = block * BLOCK, there = std::min(BLOCK, matrix.outputs - first);
            for (int row = 0; row < rows; row++)
                for (int place = 0; place < there; place++)
                    states[size_t(row) * hidden + first + place] += products[row * BLOCK + place];
        }
    };

#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++)
        norm_row(states + size_t(row) * hidden, layer.before_attention, hidden, layer.before_attention_eps,
                 normed.data(), rounded, row);
#pragma omp for schedule(static)
    for (int block = 0; block < all_heads / BLOCK; block++) {
        multiply_block(layer.into_attention, block, rounded, rows, products.data());
        for (int row = 0; row < rows; row++)
            std::memcpy(&own.heads[size_t(row) * all_heads + block * BLOCK], &products[row * BLOCK],
                        sizeof(float) * BLOCK);
    }
#pragma omp for schedule(static)
    for (int task = 0; task < rows * heads; task++) {
        const int row = task / heads, head = task % heads;
        float* at = &own.heads[size_t(row) * all_heads + head * width];
        const int key = head - layer.query_heads, value = key - layer.key_heads;
        if (value < 0) turn(at, cosines + size_t(row) * width, sines + size_t(row) * width, width);
        if (key < 0) continue;
        float* into = (value < 0 ? keys + size_t(key) * capacity * width : values + size_t(value) * capacity * width);
        std::memcpy(into + size_t(end - rows + row) * width, at, sizeof(float) * width);
    }
#pragma omp for schedule(static)
    for (int task = 0; task < rows * layer.query_heads; task++) {
        const int row = task / layer.query_heads, head = task % layer.query_heads;
        const size_t at = size_t(head / (layer.query_heads / layer.key_heads)) * capacity * width;
        attend(&own.heads[size_t(row) * all_heads + head * width], keys + at, values + at, width,
               columns ? columns + size_t(row) * end : nullptr, counts ? counts[row] : end, layer.scale, scores,
               &own.taken[size_t(row) * taken + head * width]);
    }
#pragma omp single
    rounded.resize(rows, taken);
#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++) rounded.round_row(row, &own.taken[size_t(row) * taken], taken);
    onto_states(layer.out_of_attention, rounded);
#pragma omp single
    rounded.resize(rows, hidden);
#pragma omp for schedule(static)
    for (int row = 0; row < rows; row++)
        norm_row(states + size_t(row) * hidden, layer.before_mlp, hidden, layer.before_mlp_eps, normed.data(),
                 rounded, row);
    // Gate and up stand one after the other, in blocks of their own; a group of both is rounded where it is made.
#pragma omp for schedule(static)
    for (int group = 0; group < gated.groups; group++) {
        const int first = group * GROUP, there = std::min(GROUP, inner - first);
        std::fill(gates.begin(), gates.end(), 0.f);
        for (int place = 0; place < there; place += BLOCK) {
            const int block = (first + place) / BLOCK;
            multiply_block(layer.into_mlp, block, rounded, rows, products.data());
            for (int row = 0; row < rows; row++)
                store(&gates[row * GROUP + place], activated(load(&products[row * BLOCK]), layer.activation));
            multiply_block(layer.into_mlp, blocks_of(inner) + block, rounded, rows, products.data());
            for (int row = 0; row < rows; row++)
                store(&gates[row * GROUP + place], load(&gates[row * GROUP + place]) * load(&products[row * BLOCK]));
        }
        for (int row = 0; row < rows; row++) gated.round(row, group, &gates[row * GROUP]);
    }
    onto_states(layer.out_of_mlp, gated);
}

}  // namespace

extern "C" {

// What the program that calls must agree on.
void sequoia_layout(int32_t* group, int32_t* span, int32_t* block, int32_t* quad) {
    *group = GROUP;
    *span = SPAN;
    *block = BLOCK;
    *quad = QUAD;
}

const char* sequoia_instructions() { return Set::NAME; }

int32_t sequoia_has_threads() {
#ifdef _OPENMP
    return 1;
#else
    return 0;
#endif
}

// (rows, width) of inputs to (rows, outputs).
void sequoia_product(const Matrix* matrix, int32_t threads, int32_t rows, const float* inputs, float* results) {
    static thread_local Rounded rounded;
    Rounded& own = rounded;
    own.resize(rows, matrix->width);
    const int blocks = blocks_of(matrix->outputs);
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
        for (int row = 0; row < rows; row++) own.round_row(row, inputs + size_t(row) * matrix->width, matrix->width);
        std::vector<float> products(size_t(rows) * BLOCK);
#pragma omp for schedule(static)
        for (int block = 0; block < blocks; block++) {
            multiply_block(*matrix, block, own, rows, products.data());
            const int first = block * BLOCK, there = std::min(BLOCK, matrix->outputs - first);
            for (int row = 0; row < rows; row++)
                std::memcpy(results + size_t(row) * matrix->outputs + first, &products[row * BLOCK],
                            sizeof(float) * there);
        }
    }
}

// The weights of some outputs as floats: (count, width) for the outputs `ids`.
void sequoia_rows(const Matrix* matrix, int32_t count, const int64_t* ids, float* results) {
    const bool nibbles = matrix->span_offsets != nullptr;
    const int spans = groups_of(matrix->width) * SPANS, per_byte = nibbles ? 2 : 1;
    for (int number = 0; number < count; number++) {
        const int block = int(ids[number] / BLOCK), output = int(ids[number] % BLOCK);
        const int8_t* from = matrix->numbers + size_t(block) * spans * SPAN / per_byte * BLOCK + output * QUAD;
        float* into = results + size_t(number) * matrix->width;
        for (int place = 0; place < matrix->width; place++) {
            const int quad = place / QUAD;
            const int8_t byte = from[quad / per_byte * BLOCK * QUAD + place % QUAD];
            const size_t span = (size_t(block) * spans + place / SPAN) * BLOCK + output;
            if (nibbles)
                into[place] = std::fma(float(quad % 2 ? uint8_t(byte) >> 4 : byte & 15),
                                       half_value(matrix->span_scales[span]), half_value(matrix->span_offsets[span]));
            else
                into[place] = float(byte) * (matrix->scales ? matrix->scales[ids[number]]
                                                            : half_value(matrix->span_scales[span]));
        }
    }
}

// The columns that each row of an additive mask leaves open, in their order, and how many these are.
void sequoia_seen(const float* mask, int32_t stride, int32_t rows, int32_t end, int32_t* columns, int32_t* counts) {
    for (int row = 0; row < rows; row++) {
        const float* from = mask + size_t(row) * stride;
        int32_t *into = columns + size_t(row) * end, count = 0;
        for (int column = 0; column < end; column++) {
            into[count] = column;
            count += from[column] == 0.f;
        }
        counts[row] = count;
    }
}

// Layers over (rows, hidden) states, which are changed in place. `keys[i]` and `values[i]` are those of layer i, (heads,
// capacity, width), and get the new rows before `end`; row r sees counts[r] of them, columns[r * end ...], or all where
// there are no columns. `cosines` and `sines` are (rows, width).
void sequoia_layers(const Layer* layers, int32_t count, int32_t threads, int32_t rows, float* states, const float* cosines,
                    const float* sines, float* const* keys, float* const* values, int32_t capacity, int32_t end,
                    const int32_t* columns, const int32_t* counts) {
    static thread_local Scratch scratch;
    Scratch& own = scratch;
    const Step step = {rows, states, cosines, sines, capacity, end, columns, counts};
#pragma omp parallel num_threads(threads)
    {
        Buffers buffers;
        for (int index = 0; index < count; index++) run_layer(layers[index], step, keys[index], values[index], own, buffers);
    }
}

}  // extern "C"
