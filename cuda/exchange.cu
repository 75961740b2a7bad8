// exchange: copies between the ranks of a group, written into the memory of the receiving GPUs
// exchange_through_host: copies through host memory, if GPUs can't reach each other's memory
//
//   copies   rows of `units` units of `unit` bytes (16, or 2), each with an address and a stride in bytes, from memory
//            of this rank to memory of any; through the host also from its outboxes
//   counters of this rank, in its own memory: see below
//   flags    of each rank, written by other ranks, and through the host by itself: in its own memory, or in host memory
//   mailbox  in host memory, one per group: the first word ends all waits, and each rank has two words for a wait that
//            timed out
//
// One launch per rank is one meeting, in the same order on all ranks:
// 1. The first block announces this rank: earlier work on its stream is done with the memory that others write now.
// 2. Every block waits until all ranks are announced, and then copies.
// 3. The last block announces that it is done, and waits for all ranks: then the received data is complete.
// Meetings are counted on the device, so each replay of a captured launch is another meeting. A meeting with more than
// COPIES copies is several launches; only the last announces that it is done.
//
// A wait ends when the group is ended, or after `limit_ns`: then this rank stops writing to others, sets their ENDED
// words, and all later meetings return at once, until the host clears the flags. It waits at most LINGER_NS for others
// that may still be writing here: the memory may be freed behind this.
//
// Order     release stores and acquire loads at system scope; earlier kernels of the stream wrote the sent data. The
//           threads of a block write before its barrier, after which one thread releases.
// Bytes     half of the exchanged data of two ranks crosses NVLink, all of it is written to HBM.
// Bound     NVLink, about 370 GB/s each way (H200); the bus to the host, about 52 GB/s each way
// Measured  an exchange of two ranks in a block of klein 4B, 28 MB each way at 1024 x 1024, 104 MB at 2048: 110 and 342
//           us, through the host 955 and 3120; two H100, driver 580, CUDA 13.0; `flux bench exchange/ --device
//           cuda:0,1`
#include "common.cuh"

static constexpr int THREADS = 512, COPIES = 64, RANKS = 16, UNROLL = 4;
// Copies to and from outboxes in a launch.
static constexpr int HOST_COPIES = 32;
// Bytes of an outbox that are announced together, and that a block copies at once.
static constexpr unsigned WINDOW = THREADS * UNROLL * 16;
// Words of a rank's counters: INVITED is the last meeting in which others were allowed to write here. ENDED is also set
// by others that can reach it.
static constexpr int MEETINGS = 0, ENDED = 1, FINISHED_BLOCKS = 2, INVITED = 3;
// Words of a rank's flags: one for each rank, which that rank writes: the number of its last meeting; and one for each
// of its own writers, in separate cache lines: the number of the meeting in the upper half, the number of windows in
// the lower.
static constexpr int READY = 32, DONE = 64, LANES = 128, LANE_WORDS = 16;
// Loads of a flag between two reads of host memory.
static constexpr int SPINS = 512;
// Far longer than a rank writes to another one.
static constexpr unsigned long long LINGER_NS = 100'000'000;

// As in backend/cuda/pieces.rs.
struct Copy {
    const char* from;
    char* to;
    long long from_stride, to_stride;
    unsigned rows, units, unit, rank;
};

// As in backend/cuda/exchange.rs, and below.
struct Meeting {
    unsigned* flags[RANKS];
    unsigned* counters;
    unsigned* mailbox;
    unsigned long long limit_ns;
    int rank, world, last, count;
};

struct Exchange {
    Meeting meeting;
    Copy copies[COPIES];
};

struct HostExchange {
    // `count` is the number of copies to read.
    Meeting meeting;
    // The outbox of each rank, and its windows in use.
    const char* outboxes[RANKS];
    unsigned windows[RANKS];
    // `told`: not 0 if all sent data is written after this launch.
    int lanes, told, sent_count, padding;
    Copy sent[HOST_COPIES], read[HOST_COPIES];
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

__device__ __forceinline__ bool reached(unsigned now, unsigned wanted) { return (int)(now - wanted) >= 0; }

__device__ __forceinline__ unsigned meeting_of(const Meeting& x) { return load_relaxed(x.counters + MEETINGS) + 1; }

// Ends this rank, and tells the others to end through their flags. If their flags are not next to their counters, the
// word is ignored.
static __device__ void end(const Meeting& x) {
    store_release(x.counters + ENDED, 1);
    for (int peer = 0; peer < x.world; peer++) store_release(x.flags[peer] + ENDED, 1);
}

// Waits until rank `peer` has written `wanted` to `flag`. Returns false if the group was ended.
static __device__ bool wait(const Meeting& x, const unsigned* flag, unsigned wanted, int peer, unsigned pause_ns = 0) {
    unsigned* own = x.counters;
    const unsigned ended = load_relaxed(own + ENDED);
    if (reached(load_acquire(flag), wanted)) return ended == 0;
    if (ended != 0) return false;
    const unsigned long long from = now_ns();
    for (int spin = 1;; spin++) {
        if (reached(load_acquire(flag), wanted)) return true;
        if (pause_ns != 0) __nanosleep(pause_ns);
        if (spin % SPINS != 0) continue;
        if (load_relaxed(own + ENDED) != 0) return false;
        const bool late = now_ns() - from > x.limit_ns;
        if (late) {
            unsigned* told = x.mailbox + 1 + 2 * x.rank;
            store_release(told + 1, meeting_of(x));
            store_release(told, 1 + peer);
            store_release(x.mailbox, 1);
        }
        if (late || load_acquire(x.mailbox) != 0) {
            end(x);
            return false;
        }
    }
}

static __device__ bool wait_for_all(const Meeting& x, int phase, unsigned meeting) {
    for (int peer = 0; peer < x.world; peer++)
        if (peer != x.rank && !wait(x, x.flags[x.rank] + phase + peer, meeting, peer)) return false;
    return true;
}

static __device__ void tell_all(const Meeting& x, int phase, unsigned meeting) {
    for (int peer = 0; peer < x.world; peer++)
        if (peer != x.rank) store_release(x.flags[peer] + phase + x.rank, meeting);
}

// Waits a while for ranks that may still be writing here, although the group was ended.
static __device__ void linger(const Meeting& x, unsigned meeting) {
    const unsigned long long from = now_ns();
    for (int peer = 0; peer < x.world; peer++) {
        const unsigned* done = x.flags[x.rank] + DONE + peer;
        while (peer != x.rank && !reached(load_acquire(done), meeting) && now_ns() - from < LINGER_NS) {}
    }
}

// Ends the part of this block in a launch: after the last block of the last launch, the meeting is over.
static __device__ void finish(const Meeting& x) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    unsigned* own = x.counters;
    // Publishes this block's writes to the memory of other GPUs.
    __threadfence_system();
    unsigned before;
    asm volatile("atom.acq_rel.gpu.global.add.u32 %0, [%1], 1;" : "=r"(before) : "l"(own + FINISHED_BLOCKS) : "memory");
    if (before != gridDim.x - 1) return;
    // All blocks have read the number of the meeting.
    own[FINISHED_BLOCKS] = 0;
    if (!x.last) return;
    const unsigned meeting = own[MEETINGS] + 1;
    tell_all(x, DONE, meeting);
    if (!wait_for_all(x, DONE, meeting) && own[INVITED] == meeting) linger(x, meeting);
    own[MEETINGS] = meeting;
}

// Copies units `begin` to `end`; this block has every `step / THREADS`th piece of THREADS from `first` on.
template <class Unit>
__device__ __forceinline__ void copy(const Copy& rows, unsigned begin, unsigned end, unsigned first, unsigned step) {
    const unsigned units = rows.units;
    for (unsigned from = begin + first + threadIdx.x; from < end; from += step * UNROLL) {
        Unit values[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const unsigned at = from + i * step, row = at / units;
            if (at < end) values[i] = reinterpret_cast<const Unit*>(rows.from + row * rows.from_stride)[at - row * units];
        }
#pragma unroll
        for (int i = 0; i < UNROLL; i++) {
            const unsigned at = from + i * step, row = at / units;
            if (at < end) reinterpret_cast<Unit*>(rows.to + row * rows.to_stride)[at - row * units] = values[i];
        }
    }
}

__device__ __forceinline__ void copy(const Copy& rows, unsigned begin, unsigned end, unsigned first, unsigned step) {
    if (rows.unit == 16) {
        copy<uint4>(rows, begin, end, first, step);
    } else {
        copy<unsigned short>(rows, begin, end, first, step);
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) exchange(const __grid_constant__ Exchange exchange) {
    __shared__ bool met;
    const Meeting& x = exchange.meeting;
    if (threadIdx.x == 0) {
        const unsigned meeting = meeting_of(x);
        if (blockIdx.x == 0 && load_relaxed(x.counters + ENDED) == 0) {
            x.counters[INVITED] = meeting;
            tell_all(x, READY, meeting);
        }
        met = wait_for_all(x, READY, meeting);
    }
    __syncthreads();
    if (met) {
        // Blocks begin with different copies, so that memory of this GPU and of others is written at the same time.
        for (int i = 0; i < x.count; i++) {
            const Copy& rows = exchange.copies[(i + blockIdx.x) % x.count];
            copy(rows, 0, rows.rows * rows.units, blockIdx.x * THREADS, gridDim.x * THREADS);
        }
    }
    finish(x);
}

// Runs copies with a dense side in a window of an outbox, limited to the window.
static __device__ void copy_window(const Copy* copies, int count, int rank, const char* window) {
    for (int i = 0; i < count; i++) {
        const Copy& rows = copies[i];
        if (rank >= 0 && rows.rank != rank) continue;
        const char* dense = rank >= 0 ? rows.from : rows.to;
        // Pieces begin and end at multiples of their units.
        const long long unit = rows.unit, units = (long long)rows.rows * rows.units;
        const long long begin = (window - dense) / unit, end = (window + WINDOW - dense) / unit;
        if (end <= 0 || begin >= units) continue;
        copy(rows, begin > 0 ? begin : 0, end < units ? end : units, 0, THREADS);
    }
}

// Copies every `lanes`th window of the sent data into the outbox.
static __device__ void write_windows(const HostExchange& exchange, unsigned meeting, unsigned lane) {
    const Meeting& x = exchange.meeting;
    unsigned* told = x.flags[x.rank] + LANES + lane * LANE_WORDS;
    unsigned done = 0;
    for (unsigned window = lane; window < exchange.windows[x.rank]; window += exchange.lanes) {
        copy_window(exchange.sent, exchange.sent_count, -1, exchange.outboxes[x.rank] + (size_t)window * WINDOW);
        done++;
        if (!exchange.told) continue;
        __syncthreads();
        if (threadIdx.x == 0) {
            __threadfence_system();
            store_release(told, meeting << 16 | done);
        }
    }
    // Numbers of meetings are compared as long as they are near.
    if (exchange.told && done == 0 && threadIdx.x == 0) store_release(told, meeting << 16);
}

// Reads every `lanes`th window of the other outboxes, once it is filled.
static __device__ void read_windows(const HostExchange& exchange, unsigned meeting, unsigned lane) {
    // Loads of the flag cross the bus, like the awaited data.
    static constexpr unsigned PAUSE_NS = 200;
    __shared__ bool there;
    const Meeting& x = exchange.meeting;
    for (int i = 1; i < x.world; i++) {
        const int peer = (x.rank + i) % x.world;
        const unsigned* flag = x.flags[peer] + LANES + lane * LANE_WORDS;
        unsigned wanted = meeting << 16;
        for (unsigned window = lane; window < exchange.windows[peer]; window += exchange.lanes) {
            wanted++;
            __syncthreads(); // all threads have read the result of the previous wait
            if (threadIdx.x == 0) there = wait(x, flag, wanted, peer, PAUSE_NS);
            __syncthreads();
            if (!there) return;
            copy_window(exchange.read, x.count, peer, exchange.outboxes[peer] + (size_t)window * WINDOW);
        }
    }
}

// Through host memory, with an outbox and flags per rank, both directions of the bus work at the same time: writers,
// the first blocks, fill the outbox, and readers read those of the other ranks. The `lane`th writer has every `lanes`th
// window of an outbox, and announces its progress; the `lane`th reader of each rank reads the same windows. Other
// blocks copy the rank's own data. Phases 1 and 2 are skipped: the outbox is free after phase 3 of the previous
// meeting. Writers never wait, so readers don't block them.
extern "C" __global__ void __launch_bounds__(THREADS)
    exchange_through_host(const __grid_constant__ HostExchange exchange) {
    const Meeting& x = exchange.meeting;
    const unsigned meeting = meeting_of(x), lanes = exchange.lanes;
    if (blockIdx.x < lanes) {
        write_windows(exchange, meeting, blockIdx.x);
    } else if (blockIdx.x < 2 * lanes) {
        // Launches before the last writing one read nothing, because other ranks may be waiting for its writes.
        if (x.count > 0) read_windows(exchange, meeting, blockIdx.x - lanes);
    } else {
        const unsigned block = blockIdx.x - 2 * lanes, blocks = gridDim.x - 2 * lanes;
        for (int i = 0; i < x.count; i++) {
            const Copy& rows = exchange.read[i];
            if (rows.rank == x.rank) copy(rows, 0, rows.rows * rows.units, block * THREADS, blocks * THREADS);
        }
    }
    finish(x);
}
