// GGUF formats with scales in their blocks, as threads of dequantize decode them.
//
// A format has VALUES in the BYTES of a block. A thread decodes a unit of SPAN values at a time: those that share bytes
// of codes. decode() calls put(place in the block, value) for each eight neighbours among them, and value(i) is one of
// the eight. If a block has SLOTS, its threads fill them first with scale(block, slot): the scales of its parts, in the
// order in which units need them.
#pragma once

#include "dequantize.cuh"

namespace dequantize {

// Eight bytes, processed four at a time.
struct Eight {
    uint32_t words[2];

    // Returns the lowest bits of each byte, shifted right.
    __device__ __forceinline__ Eight bits(int shift, uint32_t mask) const {
        return {{words[0] >> shift & mask * 0x01010101, words[1] >> shift & mask * 0x01010101}};
    }

    // Moves bits of each byte of `others`, `mask` from bit `from` on, to bit `to`, and adds them.
    __device__ __forceinline__ Eight with(Eight others, int from, uint32_t mask, int to) const {
        const auto moved = [=](uint32_t word) {
            return (to > from ? word << (to - from) : word >> (from - to)) & (mask << to) * 0x01010101;
        };
        return {{words[0] | moved(others.words[0]), words[1] | moved(others.words[1])}};
    }

    // Converts signed bytes to unsigned ones that are 128 larger.
    __device__ __forceinline__ Eight plus_128() const { return {{words[0] ^ 0x80808080, words[1] ^ 0x80808080}}; }

    // Returns byte i as a number, minus a constant. A byte in the low bits of 2^23 is 2^23 plus that byte.
    template <int LESS>
    __device__ __forceinline__ float number(int i) const {
        return sub(__uint_as_float(__byte_perm(words[i / 4], 0x4b000000, 0x7540 | i % 4)), 8388608.0f + LESS);
    }
};

// A block in shared memory, `at` bytes into the tile. Reads begin at multiples of ALIGN.
template <int ALIGN>
struct Block {
    const uint32_t* tile;
    int at;

    __device__ __forceinline__ uint32_t byte(int place) const {
        return reinterpret_cast<const uint8_t*>(tile)[at + place];
    }

    __device__ __forceinline__ uint32_t pair(int place) const {
        return reinterpret_cast<const uint16_t*>(tile)[(at + place) / 2];
    }

    __device__ __forceinline__ float half(int place) const {
        return __half2float(__ushort_as_half(uint16_t(pair(place))));
    }

    __device__ __forceinline__ Eight eight(int place) const {
        const uint32_t* words = tile + (at + place) / 4;
        if constexpr (ALIGN >= 8) {
            const uint2 both = *reinterpret_cast<const uint2*>(words);
            return {{both.x, both.y}};
        } else if constexpr (ALIGN == 4) {
            return {{words[0], words[1]}};
        } else {
            const uint32_t order = (at + place) % 4 == 0 ? 0x3210 : 0x5432, middle = words[1];
            return {{__byte_perm(words[0], middle, order), __byte_perm(middle, words[2], order)}};
        }
    }
};

// Blocks of 32 values, with scales that are read directly.
struct Small {
    static constexpr int VALUES = 32, SLOTS = 0;
    typedef float Scale;
};

struct Q8_0 : Small {
    static constexpr int BYTES = 34, ALIGN = 2, SPAN = 8;
    template <class Put>
    __device__ __forceinline__ static void decode(Block<ALIGN> block, int unit, const Scale*, Put put) {
        const Eight q = block.eight(2 + unit * 8).plus_128();
        const float d = block.half(0);
        put(unit * 8, [&](int i) { return mul(d, q.number<128>(i)); });
    }
};

// Codes of 4 bits: values 0 to 15 in the low halves of 16 bytes, 16 to 31 in the high halves. FIFTH bits, if any, are
// in four bytes before them.
template <int BYTES_OF_BLOCK, int ALIGN_OF_BLOCK, bool FIFTH>
struct Nibbles : Small {
    static constexpr int BYTES = BYTES_OF_BLOCK, ALIGN = ALIGN_OF_BLOCK, SPAN = 16;
    // run(place, its eight codes)
    template <class Run>
    __device__ __forceinline__ static void runs(Block<ALIGN> block, int unit, Run run) {
        // Spreads bits 0 to 3 to one byte each.
        const auto spread = [](uint32_t bits) { return (bits & 15) * 0x00204081 & 0x01010101; };
        const Eight both = block.eight(BYTES - 16 + unit * 8);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            Eight codes = both.bits(half * 4, 15);
            if constexpr (FIFTH) {
                const uint32_t bits = block.byte(BYTES - 20 + half * 2 + unit);
                codes = codes.with({{spread(bits), spread(bits >> 4)}}, 0, 1, 4);
            }
            run(half * 16 + unit * 8, codes);
        }
    }
};

// d (n - LESS)
template <int BYTES_OF_BLOCK, bool FIFTH, int LESS>
struct NibblesLess : Nibbles<BYTES_OF_BLOCK, 2, FIFTH> {
    template <class Put>
    __device__ __forceinline__ static void decode(Block<2> block, int unit, const float*, Put put) {
        const float d = block.half(0);
        NibblesLess::runs(block, unit, [&](int place, Eight codes) {
            put(place, [&](int i) { return mul(d, codes.number<LESS>(i)); });
        });
    }
};

// d n + m
template <int BYTES_OF_BLOCK, int ALIGN_OF_BLOCK, bool FIFTH>
struct NibblesPlus : Nibbles<BYTES_OF_BLOCK, ALIGN_OF_BLOCK, FIFTH> {
    template <class Put>
    __device__ __forceinline__ static void decode(Block<ALIGN_OF_BLOCK> block, int unit, const float*, Put put) {
        const float d = block.half(0), m = block.half(2);
        NibblesPlus::runs(block, unit, [&](int place, Eight codes) {
            put(place, [&](int i) { return add(mul(d, codes.number<0>(i)), m); });
        });
    }
};

typedef NibblesLess<18, false, 8> Q4_0;
typedef NibblesLess<22, true, 16> Q5_0;
typedef NibblesPlus<20, 4, false> Q4_1;
typedef NibblesPlus<24, 8, true> Q5_1;

// Codes of IQ4: eight values in the low halves of 16 bytes, and eight in their high halves.
template <class Put>
__device__ __forceinline__ void iq4(Eight codes, float scale, int place, Put put) {
    // Looks up the table's value plus 128 for each of the lowest four codes of a word: `places` are codes without their
    // highest bits, and `halves` selects one half of the table or the other.
    const auto look_up = [](uint32_t places, uint32_t halves) {
        return __byte_perm(__byte_perm(0x3f2d1801, 0x766a5d4f, places), __byte_perm(0xa6998d81, 0xf1d9c5b5, places),
                           halves);
    };
    Eight values[2];
#pragma unroll
    for (int k = 0; k < 2; k++) {
        const uint32_t word = codes.words[k], places = word & 0x77777777, halves = word >> 1 & 0x44444444 | 0x32103210;
        values[k] = {{look_up(places, halves), look_up(places >> 16, halves >> 16)}};
    }
#pragma unroll
    for (int half = 0; half < 2; half++)
        put(place + half * 16, [&](int i) { return mul(scale, values[i / 4].number<128>(i % 4 * 2 + half)); });
}

struct Iq4Nl : Small {
    static constexpr int BYTES = 18, ALIGN = 2, SPAN = 16;
    template <class Put>
    __device__ __forceinline__ static void decode(Block<ALIGN> block, int unit, const Scale*, Put put) {
        iq4(block.eight(2 + unit * 8), block.half(0), unit * 8, put);
    }
};

struct Iq4Xs {
    static constexpr int VALUES = 256, BYTES = 136, ALIGN = 8, SPAN = 16, SLOTS = 8;
    typedef float Scale;
    __device__ __forceinline__ static Scale scale(Block<ALIGN> block, int part) {
        const uint32_t low = block.byte(4 + part / 2) >> (part % 2 * 4) & 15, high = block.pair(2) >> (2 * part) & 3;
        return mul(block.half(0), float(int(low | high << 4) - 32));
    }
    template <class Put>
    __device__ __forceinline__ static void decode(Block<ALIGN> block, int unit, const Scale* scales, Put put) {
        iq4(block.eight(8 + unit * 8), scales[unit / 2], unit / 2 * 32 + unit % 2 * 8, put);
    }
};

// K-quants: a byte holds values that are 32 apart, and a unit is eight values of each of four such runs.
struct KQuant {
    static constexpr int VALUES = 256, SPAN = 32;
    // The half of the block of a unit, and its place in each run of that half.
    __device__ __forceinline__ static int half(int unit) { return unit / 4; }
    __device__ __forceinline__ static int place(int unit) { return unit % 4 * 8; }
    // Calls put with value(run)(i), each value of a unit.
    template <class Put, class Value>
    __device__ __forceinline__ static void put_runs(int unit, Put put, Value value) {
#pragma unroll
        for (int run = 0; run < 4; run++) put(half(unit) * 128 + run * 32 + place(unit), value(run));
    }
};

// 16 parts of 16 values. The scales of a unit are in consecutive slots.
struct KQuant16 : KQuant {
    static constexpr int SLOTS = 16;
    __device__ __forceinline__ static int part(int slot) { return slot / 8 * 8 + slot % 4 * 2 + slot / 4 % 2; }
    __device__ __forceinline__ static int slot(int unit) { return unit / 2 * 4; }
};

struct Q2K : KQuant16 {
    static constexpr int BYTES = 84, ALIGN = 4;
    typedef float2 Scale;
    __device__ __forceinline__ static Scale scale(Block<ALIGN> block, int slot) {
        const uint32_t packed = block.byte(part(slot));
        return {mul(block.half(80), float(packed & 15)), mul(block.half(82), float(packed >> 4))};
    }
    template <class Put>
    __device__ __forceinline__ static void decode(Block<ALIGN> block, int unit, const Scale* scales, Put put) {
        const Eight low = block.eight(16 + half(unit) * 32 + place(unit));
        put_runs(unit, put, [&](int run) {
            const Eight codes = low.bits(run * 2, 3);
            const Scale s = scales[slot(unit) + run];
            return [=](int i) { return sub(mul(s.x, codes.number<0>(i)), s.y); };
        });
    }
};

struct Q3K : KQuant16 {
    static constexpr int BYTES = 110, ALIGN = 2;
    typedef float Scale;
    __device__ __forceinline__ static Scale scale(Block<ALIGN> block, int slot) {
        const int j = part(slot);
        const uint32_t low = block.byte(96 + j % 8) >> (j / 8 * 4) & 15,
                       high = block.byte(104 + j % 4) >> (j / 4 * 2) & 3;
        return mul(block.half(108), float(int(low | high << 4) - 32));
    }
    template <class Put>
    __device__ __forceinline__ static void decode(Block<ALIGN> block, int unit, const Scale* scales, Put put) {
        const Eight low = block.eight(32 + half(unit) * 32 + place(unit));
        const Eight third = block.eight(place(unit)).bits(half(unit) * 4, 15);
        put_runs(unit, put, [&](int run) {
            const Eight codes = low.bits(run * 2, 3).with(third, run, 1, 2);
            const Scale s = scales[slot(unit) + run];
            return [=](int i) { return mul(s, codes.number<4>(i)); };
        });
    }
};

// `d s` and `dmin m` of 8 parts of 32 values. FIFTH bits, if any, are before the others.
template <bool FIFTH>
struct KQuant8 : KQuant {
    static constexpr int CODES = FIFTH ? 48 : 16, BYTES = CODES + 128, ALIGN = 8, SLOTS = 8;
    typedef float2 Scale;
    __device__ __forceinline__ static Scale scale(Block<ALIGN> block, int part) {
        uint32_t s, m;
        if (part < 4) {
            s = block.byte(4 + part) & 63, m = block.byte(8 + part) & 63;
        } else {
            const uint32_t low = block.byte(8 + part);
            s = low & 15 | block.byte(part) >> 6 << 4, m = low >> 4 | block.byte(4 + part) >> 6 << 4;
        }
        return {mul(block.half(0), float(s)), mul(block.half(2), float(m))};
    }
    template <class Put>
    __device__ __forceinline__ static void decode(Block<ALIGN> block, int unit, const Scale* scales, Put put) {
        const int at = CODES + half(unit) * 64 + place(unit);
        const Eight low[2] = {block.eight(at), block.eight(at + 32)};
        const Eight fifth = FIFTH ? block.eight(16 + place(unit)).bits(half(unit) * 4, 15) : Eight{};
        put_runs(unit, put, [&](int run) {
            Eight codes = low[run / 2].bits(run % 2 * 4, 15);
            if constexpr (FIFTH) codes = codes.with(fifth, run, 1, 4);
            const Scale s = scales[half(unit) * 4 + run];
            return [=](int i) { return sub(mul(s.x, codes.number<0>(i)), s.y); };
        });
    }
};

typedef KQuant8<false> Q4K;
typedef KQuant8<true> Q5K;

struct Q6K : KQuant16 {
    static constexpr int BYTES = 210, ALIGN = 2;
    typedef float Scale;
    __device__ __forceinline__ static Scale scale(Block<ALIGN> block, int slot) {
        return mul(block.half(208), float(int8_t(block.byte(192 + part(slot)))));
    }
    template <class Put>
    __device__ __forceinline__ static void decode(Block<ALIGN> block, int unit, const Scale* scales, Put put) {
        const int at = half(unit) * 64 + place(unit);
        const Eight low[2] = {block.eight(at), block.eight(at + 32)};
        const Eight high = block.eight(128 + half(unit) * 32 + place(unit));
        put_runs(unit, put, [&](int run) {
            const Eight codes = low[run % 2].bits(run / 2 * 4, 15).with(high, run * 2, 3, 4);
            const Scale s = scales[slot(unit) + run];
            return [=](int i) { return mul(s, codes.number<32>(i)); };
        });
    }
};

}  // namespace dequantize
