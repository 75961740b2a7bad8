// The main loop of kernels for Hopper. The producer, a thread or a warp, fetches operands by TMA into rings of stages
// in shared memory. Consumers, which are warpgroups, multiply the operands. An epilogue stores the sums: consumers from
// registers, or other warps through shared memory, while the next tile is multiplied. A scheduler passes the tiles of a
// block to all of them in one order, and each counts stages by itself. Schedulers and epilogues belong to the kernels.

#pragma once
#include "common.cuh"
#include "multiply_sm90a.cuh"

namespace hopper {

// The bytes of a row of an operand in a stage.
constexpr int STEP_BYTES = 128;

// Iterates over the stages of a ring: `stage`, and the parity of the number of passes.
template <int STAGES>
struct Cursor {
    int stage = 0;
    uint32_t phase = 0;

    __device__ __forceinline__ void advance() {
        if (++stage == STAGES) stage = 0, phase ^= 1;
    }
};

// A ring of stages with two barriers each, `full` and `free`, and the position of one thread in the ring. With two
// BLOCKS, a stage is fetched for both blocks of a cluster, so the consumers of both release it.
template <int STAGES, int BLOCKS = 1>
struct Ring : Cursor<STAGES> {
    static constexpr int BARRIER_BYTES = 2 * 8 * STAGES;
    uint32_t full, free;

    __device__ __forceinline__ explicit Ring(uint32_t barriers) : full(barriers), free(barriers + 8 * STAGES) {}

    // Initializes the barriers of this ring and of others with as many stages: `filling` arrivals fill a stage, and
    // `warps` in each block release it.
    template <class... Others>
    __device__ __forceinline__ void init(int warps, int filling, const Others&... others) const {
        for (int stage = 0; stage < STAGES; stage++) {
            init_barrier(full + 8 * stage, filling);
            (init_barrier(others.full + 8 * stage, filling), ...);
            init_barrier(free + 8 * stage, BLOCKS * warps);
            (init_barrier(others.free + 8 * stage, BLOCKS * warps), ...);
        }
    }

    __device__ __forceinline__ uint32_t own_full() const { return full + 8 * this->stage; }
    __device__ __forceinline__ uint32_t own_free() const { return free + 8 * this->stage; }
    __device__ __forceinline__ void wait_full() const { wait(own_full(), this->phase); }
    __device__ __forceinline__ void wait_free() const { wait(own_free(), this->phase ^ 1); }

    // Announces `bytes` of this stage, and returns the barrier for their copies.
    __device__ __forceinline__ uint32_t expect(uint32_t bytes) const {
        arrive_expecting(own_full(), bytes);
        return own_full();
    }

    // Waits until this stage is free, then as `expect`.
    __device__ __forceinline__ uint32_t fetch(uint32_t bytes) const {
        const uint32_t barrier = own_full();
        wait_free();
        arrive_expecting(barrier, bytes);
        return barrier;
    }

    // Releases a stage to the blocks that fetch into it; for a whole warp.
    __device__ __forceinline__ void release(int stage, int lane = threadIdx.x % 32) const {
        if constexpr (BLOCKS == 1) {
            if (lane == 0) arrive(free + 8 * stage);
        } else if (lane < BLOCKS) {
            arrive_at(free + 8 * stage, lane);
        }
    }
};

// A consumer's multiplies of a tile. Its operands are at `a` and `b` in the first stage, and A_STEP and B_STEP bytes
// later in the next one. Ends of loops are references to kernel arguments: if the
// compiler knew the number of steps, it would unroll the loops, and low_rank would have 40 to 60% more instructions.
template <int A_STEP, int B_STEP, int STAGES>
struct Multiplies {
    Ring<STAGES, 2>& ring;
    uint32_t a, b;
    int last = 0;
    const int lane = threadIdx.x % 32;

    __device__ __forceinline__ uint64_t a_operand() const { return describe(a + ring.stage * A_STEP, 0); }
    __device__ __forceinline__ uint64_t b_operand() const { return describe(b + ring.stage * B_STEP, 0); }

    // Ends the multiplies of this stage. The earlier ones are done, so the stage that they read is free.
    __device__ __forceinline__ void commit(const int& k) {
        commit_multiply();
        wait_multiply<1>();
        if (k > 0) ring.release(last, lane);
        last = ring.stage;
        ring.advance();
    }

    // sums = a b^T of all features up to `end`, `step` per stage.
    template <bool E4M3, int N>
    __device__ __forceinline__ void features(float (&sums)[N], const int& end, int step) {
        for (int k = 0; k < end; k += step) {
            ring.wait_full();
            const uint64_t a = a_operand(), b = b_operand();
            begin_multiply();
#pragma unroll
            for (int byte = 0; byte < STEP_BYTES; byte += 32)
                multiply<E4M3>(sums, a + (byte >> 4), b + (byte >> 4), k + byte > 0);
            commit(k);
        }
    }

    // sums += a b^T of low-rank factors in bf16, after `features`. Cells past the rank are zeros, and skipped if they
    // are two slices of 16.
    template <int N>
    __device__ __forceinline__ void factors(float (&sums)[N], const int& rank) {
        for (int k = 0; k < rank; k += 64) {
            ring.wait_full();
            const uint64_t a = a_operand(), b = b_operand();
            for (int slice = 0; slice < min(64, rank - k); slice += 32) {
                begin_multiply();
                multiply(sums, a + (slice >> 3), b + (slice >> 3), 1);
                multiply(sums, a + ((slice + 16) >> 3), b + ((slice + 16) >> 3), 1);
            }
            commit(1);
        }
    }

    // Waits for all multiplies, and releases the last stage.
    template <int N>
    __device__ __forceinline__ void end(float (&sums)[N]) {
        wait_multiply<0>();
        pin(sums);
        ring.release(last, lane);
    }
};

// Stores 2 N columns of row lane / 4 + 8 half of a warp's 16, times `share`, if the row is `inside`. `to` is the place
// of column lane % 4 * 8. The four lanes of a row exchange pairs, so that each stores 16 bytes, and all four 64.
template <int N>
__device__ __forceinline__ void store_row(const float (&sums)[N], int half, float share, bf16* to, bool inside) {
#pragma unroll
    for (int n = 0; n < N / 4; n += 4) {
        uint32_t pair[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int at = (n + i) * 4 + half * 2;
            pair[i] = pack_pair(sums[at] * share, sums[at + 1] * share);
        }
        exchange_pairs(pair);
        if (inside) *reinterpret_cast<uint4*>(to + n * 8) = make_uint4(pair[0], pair[1], pair[2], pair[3]);
    }
}

}  // namespace hopper
