// exchange: what the ranks of a group give each other, read out of the memory of their GPUs
//
//   copies   rows of `units` units of `unit` bytes (16, or 2), each with an address and a stride in bytes, from memory
//            of any rank to memory of this one
//   counters of this rank, in memory of its own: see below
//   flags    of each rank, which other ranks write: in memory of its own, or of the host
//   mailbox  in memory of the host, of the whole group: the first word ends all that wait, and each rank has two words
//            for what it waited for in vain
//
// One launch of each rank is one meeting, in the same order on all of them:
// 1. the first block tells all ranks that what this rank gives is there (earlier work on its stream made it);
// 2. every block waits until all ranks have said so, and then copies;
// 3. the last block that is done tells all ranks so, and waits until all have: then what was given may be overwritten.
// Meetings are counted on the device, so a captured launch is another meeting each time it is replayed. A meeting with
// more than COPIES copies is several launches, of which only the last tells that it is done.
//
// A wait ends when the group was ended, or after `limit_ns`: then nothing is copied any more in this rank, and all later
// meetings return at once, until the host clears the flags.
//
// Where GPUs cannot reach each other's memory, what ranks give lies in memory of the host: a launch with a world of one rank,
// which is no meeting, has copied it there. The flags are there too.
//
// Order     stores of release and loads of acquire at the scope of the system; what a rank gave was written by earlier
//           kernels of its stream, before its flag.
// Bytes     half of what two ranks exchange crosses NVLink, all of it is written to HBM.
// Bound     NVLink, about 370 GB/s each way (H200)
#include "common.cuh"

static constexpr int THREADS = 512, COPIES = 64, RANKS = 16, UNROLL = 4;
// Words of a rank's counters.
static constexpr int MEETINGS = 0, ENDED = 1, FINISHED_BLOCKS = 2;
// Words of a rank's flags: one for each rank, which that rank writes: the number of its last meeting.
static constexpr int READY = 32, DONE = 64;
// How many loads of a flag come between two looks at memory of the host.
static constexpr int SPINS = 512;

// As in backend/cuda/exchange.rs.
struct Copy {
    const char* from;
    char* to;
    long long from_stride, to_stride;
    unsigned rows, units, unit, padding;
};

struct Exchange {
    unsigned* flags[RANKS];
    unsigned* counters;
    unsigned* mailbox;
    unsigned long long limit_ns;
    int rank, world, count, last;
    Copy copies[COPIES];
};

__device__ __forceinline__ void store_release(unsigned* to, unsigned value) {
    asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ unsigned load_acquire(const unsigned* from) {
    unsigned value;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ unsigned load_relaxed(const unsigned* from) {
    unsigned value;
    asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(from) : "memory");
    return value;
}

__device__ __forceinline__ unsigned long long now_ns() {
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}

__device__ __forceinline__ bool reached(unsigned now, unsigned meeting) { return (int)(now - meeting) >= 0; }

// Waits until rank `peer` has written `meeting` to its word at `phase`. False when the group was ended.
static __device__ bool wait(const Exchange& x, int phase, int peer, unsigned meeting) {
    unsigned* own = x.counters;
    const unsigned* flag = x.flags[x.rank] + phase + peer;
    const unsigned ended = load_relaxed(own + ENDED);
    if (reached(load_acquire(flag), meeting)) return ended == 0;
    if (ended != 0) return false;
    const unsigned long long from = now_ns();
    for (int spin = 1;; spin++) {
        if (reached(load_acquire(flag), meeting)) return true;
        if (spin % SPINS != 0) continue;
        if (load_relaxed(own + ENDED) != 0) return false;
        const bool late = now_ns() - from > x.limit_ns;
        if (late) {
            unsigned* told = x.mailbox + 1 + 2 * x.rank;
            store_release(told + 1, meeting);
            store_release(told, 1 + peer);
            store_release(x.mailbox, 1);
        }
        if (late || load_acquire(x.mailbox) != 0) {
            store_release(own + ENDED, 1);
            return false;
        }
    }
}

static __device__ bool wait_for_all(const Exchange& x, int phase, unsigned meeting) {
    for (int peer = 0; peer < x.world; peer++)
        if (peer != x.rank && !wait(x, phase, peer, meeting)) return false;
    return true;
}

static __device__ void tell_all(const Exchange& x, int phase, unsigned meeting) {
    for (int peer = 0; peer < x.world; peer++)
        if (peer != x.rank) store_release(x.flags[peer] + phase + x.rank, meeting);
}

template <class Unit>
__device__ __forceinline__ void copy(const Copy& rows) {
    const unsigned units = rows.units, n = rows.rows * units, step = gridDim.x * THREADS;
    for (unsigned first = blockIdx.x * THREADS + threadIdx.x; first < n; first += step * UNROLL) {
        Unit values[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const unsigned at = first + i * step, row = at / units;
            if (at < n) values[i] = reinterpret_cast<const Unit*>(rows.from + row * rows.from_stride)[at - row * units];
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const unsigned at = first + i * step, row = at / units;
            if (at < n) reinterpret_cast<Unit*>(rows.to + row * rows.to_stride)[at - row * units] = values[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) exchange(const __grid_constant__ Exchange x) {
    __shared__ bool met;
    unsigned* own = x.counters;
    if (threadIdx.x == 0) {
        const unsigned meeting = load_relaxed(own + MEETINGS) + 1;
        if (blockIdx.x == 0) tell_all(x, READY, meeting);
        met = wait_for_all(x, READY, meeting);
    }
    __syncthreads();
    if (met) {
        // Blocks begin with different copies, so that memory of this GPU and of others is read at the same time.
        for (int i = 0; i < x.count; i++) {
            const Copy& rows = x.copies[(i + blockIdx.x) % x.count];
            if (rows.unit == 16) {
                copy<uint4>(rows);
            } else {
                copy<unsigned short>(rows);
            }
        }
    }
    __syncthreads();
    if (threadIdx.x != 0) return;
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(own + FINISHED_BLOCKS) : "memory");
    if (before != gridDim.x - 1) return;
    // All blocks have read the number of the meeting.
    own[FINISHED_BLOCKS] = 0;
    if (!x.last) return;
    const unsigned meeting = own[MEETINGS] + 1;
    tell_all(x, DONE, meeting);
    wait_for_all(x, DONE, meeting);
    own[MEETINGS] = meeting;
}
