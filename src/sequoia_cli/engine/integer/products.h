// Products of rounded rows with each kind of weights, a block of outputs at once.

#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "floats.h"

namespace {

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

// Adds the products of LENGTH bytes of weights with COUNT rows that are `width` apart.
template <int LENGTH, int COUNT>
inline void add_bytes(Set::Sums (&sums)[COUNT], const int8_t* weights, const Set::Input* rows, int width) {
    // Rolled up, the sums are copied from register to register.
#pragma GCC unroll 16
    for (int place = 0; place < LENGTH; place += QUAD) {
        const Set::Weights numbers = Set::weights(weights + place * BLOCK);
        for (int row = 0; row < COUNT; row++) Set::add(sums[row], numbers, rows + row * width + place);
    }
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
            add_bytes<GROUP>(exact, weights, rows, groups * GROUP);
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
            add_bytes<SPAN>(exact, weights, rows, groups * GROUP);
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

}  // namespace
