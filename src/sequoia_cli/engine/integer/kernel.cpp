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

#include <vector>

#include "products.h"

namespace {

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
