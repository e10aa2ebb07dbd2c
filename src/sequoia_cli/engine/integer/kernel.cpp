// Products of 8-bit integers for few rows, and a decoder layer around them. No header of torch is needed.
//
// A weight is a number from -127 to 127 times the scale of its output. Each row of inputs is rounded to such numbers
// too, with a scale for every GROUP of its values. The sums within a group are integers and exact; groups are added in
// order, one fused multiplication and addition each. So a row's results depend on nothing beside it, bit for bit, and
// are the same with every instruction set below. All else here is computed row by row as well.
//
// Weights lie in blocks of BLOCK outputs; within a block, QUAD values of each output's row follow those of the output
// before, then comes the next QUAD. Rows are filled up with zeros to whole groups, outputs to whole blocks.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if defined(__AVX2__) || defined(__AVX512F__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace {

constexpr int GROUP = 64, BLOCK = 16, QUAD = 4;
constexpr int LARGEST = 127;

// ---------------------------------------------------------------- sets of instructions
// Each has OUTPUTS per vector, the number of ROWS that fit into its registers, the type Input in which it wants inputs,
// Weights (QUAD values of OUTPUTS rows), and Sums of a group, which begin at BIAS times the sum of the inputs.

#if defined(__AVX512VNNI__) && defined(__AVX512BW__)

struct Set {
    static constexpr const char* NAME = "AVX-512 VNNI";
    static constexpr int OUTPUTS = 16, ROWS = 8, BIAS = -128;
    using Input = int8_t;
    using Weights = __m512i;
    using Sums = __m512i;
    using Floats = __m512;
    // The instruction takes one factor without sign: the weights plus 128.
    static Weights weights(const int8_t* at) {
        return _mm512_xor_si512(_mm512_loadu_si512(at), _mm512_set1_epi8(-128));
    }
    static Sums start(int sum) { return _mm512_set1_epi32(sum); }
    static void add(Sums& sums, Weights weights, const Input* inputs) {
        int quad;
        std::memcpy(&quad, inputs, sizeof quad);
        sums = _mm512_dpbusd_epi32(sums, weights, _mm512_set1_epi32(quad));
    }
    static Floats zero() { return _mm512_setzero_ps(); }
    static Floats scaled(Sums sums, float scale, Floats onto) {
        return _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), _mm512_set1_ps(scale), onto);
    }
    static void store(float* at, Floats values) { _mm512_storeu_ps(at, values); }
};

#elif defined(__AVX2__) && defined(__FMA__)

struct Set {
    static constexpr const char* NAME = "AVX2";
    static constexpr int OUTPUTS = 8, ROWS = 4, BIAS = 0;
    using Input = int16_t;  // no product of 16 bits overflows 32, while pairs of products of 8 bits overflow 16
    struct Weights { __m256i first, second; };
    struct Sums { __m256i first, second; };  // each output has two lanes
    using Floats = __m256;
    static Weights weights(const int8_t* at) {
        return {_mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at))),
                _mm256_cvtepi8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + 16)))};
    }
    static Sums start(int) { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
    static void add(Sums& sums, Weights weights, const Input* inputs) {
        long long bits;
        std::memcpy(&bits, inputs, sizeof bits);
        const __m256i quad = _mm256_set1_epi64x(bits);
        sums.first = _mm256_add_epi32(sums.first, _mm256_madd_epi16(weights.first, quad));
        sums.second = _mm256_add_epi32(sums.second, _mm256_madd_epi16(weights.second, quad));
    }
    static Floats zero() { return _mm256_setzero_ps(); }
    static Floats scaled(Sums sums, float scale, Floats onto) {
        const __m256i paired = _mm256_hadd_epi32(sums.first, sums.second);
        const __m256i ordered = _mm256_permute4x64_epi64(paired, 0b11011000);
        return _mm256_fmadd_ps(_mm256_cvtepi32_ps(ordered), _mm256_set1_ps(scale), onto);
    }
    static void store(float* at, Floats values) { _mm256_storeu_ps(at, values); }
};

#elif defined(__ARM_FEATURE_DOTPROD)

struct Set {
    static constexpr const char* NAME = "NEON with dot products";
    static constexpr int OUTPUTS = 4, ROWS = 8, BIAS = 0;
    using Input = int8_t;
    using Weights = int8x16_t;
    using Sums = int32x4_t;
    using Floats = float32x4_t;
    static Weights weights(const int8_t* at) { return vld1q_s8(at); }
    static Sums start(int) { return vdupq_n_s32(0); }
    static void add(Sums& sums, Weights weights, const Input* inputs) {
        int32_t quad;
        std::memcpy(&quad, inputs, sizeof quad);
        sums = vdotq_s32(sums, weights, vreinterpretq_s8_s32(vdupq_n_s32(quad)));
    }
    static Floats zero() { return vdupq_n_f32(0); }
    static Floats scaled(Sums sums, float scale, Floats onto) {
        return vfmaq_n_f32(onto, vcvtq_f32_s32(sums), scale);
    }
    static void store(float* at, Floats values) { vst1q_f32(at, values); }
};

#else

struct Set {
    static constexpr const char* NAME = "no vector instructions of its own";
    static constexpr int OUTPUTS = 4, ROWS = 4, BIAS = 0;
    using Input = int8_t;
    struct Weights { int8_t values[OUTPUTS * QUAD]; };
    struct Sums { int32_t values[OUTPUTS]; };
    struct Floats { float values[OUTPUTS]; };
    static Weights weights(const int8_t* at) {
        Weights found;
        std::memcpy(found.values, at, sizeof found.values);
        return found;
    }
    static Sums start(int) { return {}; }
    static void add(Sums& sums, const Weights& weights, const Input* inputs) {
        for (int output = 0; output < OUTPUTS; output++)
            for (int place = 0; place < QUAD; place++)
                sums.values[output] += weights.values[output * QUAD + place] * inputs[place];
    }
    static Floats zero() { return {}; }
    static Floats scaled(const Sums& sums, float scale, Floats onto) {
        for (int output = 0; output < OUTPUTS; output++)
            onto.values[output] = std::fma(float(sums.values[output]), scale, onto.values[output]);
        return onto;
    }
    static void store(float* at, const Floats& values) { std::memcpy(at, values.values, sizeof values.values); }
};

#endif

// ---------------------------------------------------------------- floats, LANES at once

// LANES floats in as many vectors as this processor needs for them, so that every sum has the same order everywhere.
constexpr int LANES = 16;
#if defined(__AVX512F__)
constexpr int NATIVE = 16;
#elif defined(__AVX__)
constexpr int NATIVE = 8;
#else
constexpr int NATIVE = 4;
#endif
typedef float Native __attribute__((vector_size(4 * NATIVE)));
typedef float Unaligned __attribute__((vector_size(4 * NATIVE), aligned(4), may_alias));
typedef int32_t NativeInt __attribute__((vector_size(4 * NATIVE)));
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
#if defined(__AVX512F__)
    return (Native)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#elif defined(__AVX__) && defined(__FMA__)
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
    const float* scales;
    const float* bias;  // may be absent
    int32_t outputs, width;
};

inline int groups_of(int width) { return (width + GROUP - 1) / GROUP; }
inline int blocks_of(int outputs) { return (outputs + BLOCK - 1) / BLOCK; }

// Rows of inputs as numbers: `values` (rows, groups * GROUP), `scales` and `sums` (rows, groups).
struct Rounded {
    std::vector<Set::Input> values;
    std::vector<float> scales;
    std::vector<int32_t> sums;
    int groups = 0;

    void resize(int rows, int width) {
        groups = groups_of(width);
        values.resize(size_t(rows) * groups * GROUP);
        scales.resize(size_t(rows) * groups);
        sums.resize(size_t(rows) * groups);
    }
    // GROUP values of a row.
    void round(int row, int group, const float* inputs) {
        const Wide parts[4] = {load(inputs), load(inputs + 16), load(inputs + 32), load(inputs + 48)};
        static_assert(GROUP == 4 * LANES, "a group is four vectors");
        Wide most = all(0.f), nothing = all(0.f);
        for (const Wide& part : parts) {
            most = higher(magnitude(part), most);
            nothing = nothing + part * all(0.f);  // not a number where a value is not finite
        }
        const float peak = largest(most);
        const size_t place = size_t(row) * groups + group;
        scales[place] = peak / LARGEST + total(nothing);
        const Wide factor = all(peak > 0 ? LARGEST / peak : 0.f);
        Set::Input* into = &values[place * GROUP];
        int32_t sum = 0;
        for (int part = 0; part < 4; part++) {
            float nearest[LANES];
            store(nearest, parts[part] * factor);
            for (int lane = 0; lane < LANES; lane++) {
                // The nearest whole number, ties to even: all of them are below 2^22.
                const int32_t number = int32_t((nearest[lane] + 12582912.f) - 12582912.f);
                const int32_t bounded = std::min(LARGEST, std::max(-LARGEST, number));
                into[part * LANES + lane] = Set::Input(bounded);
                sum += bounded;
            }
        }
        sums[place] = Set::BIAS * sum;
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

// Products of COUNT rows with one vector of outputs, before the outputs' scales: `into` is (rows, BLOCK).
template <int COUNT>
inline void multiply(const int8_t* weights, const Rounded& inputs, int first, float* into) {
    const int groups = inputs.groups;
    const size_t width = size_t(groups) * GROUP;
    const Set::Input* rows = &inputs.values[first * width];
    const float* scales = &inputs.scales[size_t(first) * groups];
    const int32_t* sums = &inputs.sums[size_t(first) * groups];
    Set::Floats found[COUNT];
    for (int row = 0; row < COUNT; row++) found[row] = Set::zero();
    for (int group = 0; group < groups; group++) {
        Set::Sums exact[COUNT];
        for (int row = 0; row < COUNT; row++) exact[row] = Set::start(sums[row * groups + group]);
        // Rolled up, the sums are copied from register to register.
#pragma GCC unroll 16
        for (int place = 0; place < GROUP; place += QUAD) {
            const Set::Weights numbers = Set::weights(weights + place * BLOCK);
            for (int row = 0; row < COUNT; row++) Set::add(exact[row], numbers, rows + row * width + place);
        }
        weights += GROUP * BLOCK;
        rows += GROUP;
        for (int row = 0; row < COUNT; row++)
            found[row] = Set::scaled(exact[row], scales[row * groups + group], found[row]);
    }
    for (int row = 0; row < COUNT; row++) Set::store(into + row * BLOCK, found[row]);
}

// The results of block `block` for all rows: `into` is (rows, BLOCK).
inline void multiply_block(const Matrix& matrix, int block, const Rounded& inputs, int rows, float* into) {
    const int8_t* weights = matrix.numbers + size_t(block) * inputs.groups * GROUP * BLOCK;
    for (int part = 0; part < BLOCK; part += Set::OUTPUTS) {
        const int8_t* at = weights + part * QUAD;
        for (int first = 0; first < rows; first += Set::ROWS) {
            float* to = into + first * BLOCK + part;
            switch (std::min(Set::ROWS, rows - first)) {
                case 1: multiply<1>(at, inputs, first, to); break;
                case 2: multiply<2>(at, inputs, first, to); break;
                case 3: multiply<3>(at, inputs, first, to); break;
                case 4: multiply<4>(at, inputs, first, to); break;
                case 5: multiply<std::min(5, Set::ROWS)>(at, inputs, first, to); break;
                case 6: multiply<std::min(6, Set::ROWS)>(at, inputs, first, to); break;
                case 7: multiply<std::min(7, Set::ROWS)>(at, inputs, first, to); break;
                default: multiply<Set::ROWS>(at, inputs, first, to);
            }
        }
    }
    const int first = block * BLOCK;
    const Wide scales = load(matrix.scales + first);  // filled up to whole blocks, as the bias is
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
void sequoia_layout(int32_t* group, int32_t* block, int32_t* quad) {
    *group = GROUP;
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
    const size_t row = size_t(groups_of(matrix->width)) * GROUP;
    for (int number = 0; number < count; number++) {
        const int64_t id = ids[number];
        const int8_t* from = matrix->numbers + id / BLOCK * BLOCK * row + id % BLOCK * QUAD;
        const float scale = matrix->scales[id];
        float* into = results + size_t(number) * matrix->width;
        for (int place = 0; place < matrix->width; place++)
            into[place] = float(from[place / QUAD * BLOCK * QUAD + place % QUAD]) * scale;
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
