// exchange: what the ranks of a group give each other, written into the memory of their GPUs
// exchange_through_host: the same where GPUs cannot reach each other's memory
//
//   copies   rows of `units` units of `unit` bytes (16, or 2), each with an address and a stride in bytes, from memory
//            of this rank to memory of any; through the host also from its outboxes
//   counters of this rank, in memory of its own: see below
//   flags    of each rank, which other ranks write, and through the host it too: in memory of its own, or of the host
//   mailbox  in memory of the host, of the whole group: the first word ends all that wait, and each rank has two words
//            for what it waited for in vain
//
// One launch of each rank is one meeting, in the same order on all of them:
// 1. the first block tells all ranks that this rank is here: earlier work on its stream is done with the memory that
//    others write now;
// 2. every block waits until all ranks have said so, and then copies;
// 3. the last block that is done tells all ranks so, and waits until all have: then what this rank is given is there.
// Meetings are counted on the device, so a captured launch is another meeting each time it is replayed. A meeting with
// more than COPIES copies is several launches, of which only the last tells that it is done.
//
// A wait ends when the group was ended, or after `limit_ns`: then this rank writes nothing to others any more, tells
// them that it has ended, so that they do the same, and all later meetings return at once, until the host clears the
// flags. What one of them may be writing here just then is waited for, at most LINGER_NS: the memory may be freed
// behind this.
//
// Through memory of the host, where each rank has an outbox and the flags are, both directions of the bus work at the
// same time: writers, the first blocks, put what others get into the outbox, and readers take it from those of the
// other ranks. Of the windows of an outbox the `lane`th writer has every `lanes`th, and tells how far it is; the
// `lane`th reader of each rank takes the same ones. Other blocks copy what this rank gives itself. Phases 1 and 2 are
// left out: the outbox is free behind phase 3 of the meeting before. Writers never wait, so a reader that waits for one
// is not in its way.
//
// Order     stores of release and loads of acquire at the scope of the system; what a rank gives was written by earlier
//           kernels of its stream. The threads of a block write before its barrier, behind which one thread releases.
// Bytes     half of what two ranks exchange crosses NVLink, all of it is written to HBM.
// Bound     NVLink, about 370 GB/s each way (H200); the bus to the host, about 52 GB/s each way
// Measured  what two ranks exchange in a block of klein 4B, 28 MB each way at 1024 x 1024, 104 MB at 2048: 110 and 342
//           us, through the host 955 and 3120; two H100, driver 580, CUDA 13.0, 77f9c1c;
//           `flux bench exchange/ --device cuda:0,1`
// Tried     reading what others have: 124 and 399 us. NCCL's all_to_all of dense memory: 164 and 437, without peer
//           access 1233 and 4392. Through the host, filling the outbox and then reading others': 1851 and 4944; a
//           hundred blocks that wait for windows without a pause: 2060 and 11400, because their loads of flags take up
//           the bus
#include "common.cuh"

static constexpr int THREADS = 512, COPIES = 64, RANKS = 16, UNROLL = 4;
// Copies to and from outboxes in a launch.
static constexpr int HOST_COPIES = 32;
// Bytes of an outbox that are announced together: what a block copies at once.
static constexpr unsigned WINDOW = THREADS * UNROLL * 16;
// Words of a rank's counters: INVITED is the last meeting in which others were told that they may write here. ENDED is
// set by others too, where they reach it.
static constexpr int MEETINGS = 0, ENDED = 1, FINISHED_BLOCKS = 2, INVITED = 3;
// Words of a rank's flags: one for each rank, which that rank writes: the number of its last meeting; and one for each
// of its own writers, in cache lines of their own: the number of the meeting in the upper half, that of windows in the
// lower.
static constexpr int READY = 32, DONE = 64, LANES = 128, LANE_WORDS = 16;
// How many loads of a flag come between two looks at memory of the host.
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

// As in backend/cuda/exchange.rs, and what follows.
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
    // `count` is that of what is read.
    Meeting meeting;
    // Of each rank, and how many windows of it are used.
    const char* outboxes[RANKS];
    unsigned windows[RANKS];
    // Whether all that others get is written behind this launch.
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

// This rank has ended, and others are to end. Where they do not reach its counters, the word is not looked at.
static __device__ void end(const Meeting& x) {
    store_release(x.counters + ENDED, 1);
    for (int peer = 0; peer < x.world; peer++) store_release(x.flags[peer] + ENDED, 1);
}

// Waits until rank `peer` has written `wanted` to `flag`. False when the group was ended.
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

// Waits a while for those that may still be writing here, although the group was ended.
static __device__ void linger(const Meeting& x, unsigned meeting) {
    const unsigned long long from = now_ns();
    for (int peer = 0; peer < x.world; peer++) {
        const unsigned* done = x.flags[x.rank] + DONE + peer;
        while (peer != x.rank && !reached(load_acquire(done), meeting) && now_ns() - from < LINGER_NS) {}
    }
}

// Ends the part of this block in a launch: behind the last block of the last one, the meeting is over.
static __device__ void finish(const Meeting& x) {
    __syncthreads();
    if (threadIdx.x != 0) return;
    unsigned* own = x.counters;
    // What this block wrote into the memory of other GPUs.
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

// Units `begin` to `end` of a copy, of which this block has every `step / THREADS`th piece of THREADS from `first` on.
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

// The copies whose dense side is in a window of an outbox, as far as it is.
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

// Puts every `lanes`th window of what others get into the outbox.
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

// Takes every `lanes`th window of the other outboxes, once it is there.
static __device__ void read_windows(const HostExchange& exchange, unsigned meeting, unsigned lane) {
    // Loads of the flag cross the bus, like what is waited for.
    static constexpr unsigned PAUSE_NS = 200;
    __shared__ bool there;
    const Meeting& x = exchange.meeting;
    for (int i = 1; i < x.world; i++) {
        const int peer = (x.rank + i) % x.world;
        const unsigned* flag = x.flags[peer] + LANES + lane * LANE_WORDS;
        unsigned wanted = meeting << 16;
        for (unsigned window = lane; window < exchange.windows[peer]; window += exchange.lanes) {
            wanted++;
            __syncthreads(); // nobody looks at what the wait before said any more
            if (threadIdx.x == 0) there = wait(x, flag, wanted, peer, PAUSE_NS);
            __syncthreads();
            if (!there) return;
            copy_window(exchange.read, x.count, peer, exchange.outboxes[peer] + (size_t)window * WINDOW);
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS)
    exchange_through_host(const __grid_constant__ HostExchange exchange) {
    const Meeting& x = exchange.meeting;
    const unsigned meeting = meeting_of(x), lanes = exchange.lanes;
    if (blockIdx.x < lanes) {
        write_windows(exchange, meeting, blockIdx.x);
    } else if (blockIdx.x < 2 * lanes) {
        // In front of the last that writes, other ranks may be waiting for that.
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
