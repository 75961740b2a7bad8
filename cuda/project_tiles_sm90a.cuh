// The arguments of project_sm90a.cu, and its order of tiles.
#pragma once

#include "pipeline_sm90a.cuh"

namespace project {

using namespace hopper;

constexpr int COLS = 128;                  // per block's tile: a head, or half gate and half up
constexpr int STAGES = 3;
constexpr int CONSUMERS = 2, STORERS = 3;  // multiplying warpgroups, storing warps
constexpr int CONSUMER_COLS = COLS / CONSUMERS;
constexpr int BOX_BYTES = CONSUMER_COLS * STEP_BYTES, WEIGHT_BYTES = COLS * STEP_BYTES;
constexpr int ROW_BYTES = COLS * 2;           // rounded sums
constexpr int DOWN_ROWS = 128;                // columns of low that two blocks compute at once
constexpr int LOW_WARPS = 2 * CONSUMERS * 4;  // that compute them, in both blocks
constexpr int THREADS = 128 + 128 * CONSUMERS;

struct Arguments {
    TensorMap x[2];
    TensorMap weight[2];
    TensorMap down[2];
    TensorMap low[2];
    TensorMap up[2];
    const float* x_scales[2];
    const float* weight_scales[2];
    const float* down_scales[2];
    int down_rows[2];
    bf16* low_rows;
    bf16* out;
    long long ld_out;
    const bf16* txt_norm_q;
    const bf16* txt_norm_k;
    const bf16* img_norm_q;
    const bf16* img_norm_k;
    const float* cos;
    const float* sin;
    unsigned char* v8;  // null to store v in bf16
    float* v_tiles;
    long long ld_table;
    float txt_eps;
    float img_eps;
    int part_rows[2];
    int ranks[2];  // 0 for a part without factors
    int ld_low;    // a multiple of 16
    int features;
    int dim;
    int mlp;
    int txt_rows;
    int txt;
    int img;
    int rows_of_tiles;  // rows of tiles in a group
    int key_tiles;      // rows of tiles, the first of part 0, that need only k and v
    int heads_in_e4m3;
    int key_rows;
};

enum Kind { KEYS, VALUES, QUERIES, GATED, LOW };

// A block's share of a tile of ROWS rows, or of half as many: the part of x and the tile's first row in it, the block's
// first column of out, the kind of its columns, the weight's first row for the first warpgroup, and the distance to
// that of the second.
template <int ROWS>
struct Work {
    int part, row, col, weight, second;
    Kind kind;
    bool is_short;  // the tile has at most ROWS / 2 rows

    // Rows of tiles of a part that are more than half full, and 1 if a short one follows them.
    __device__ __forceinline__ static int tall_rows(int rows) { return (rows + ROWS / 2 - 1) / ROWS; }
    __device__ __forceinline__ static int short_rows(int rows) { return rows > tall_rows(rows) * ROWS; }

    // Rows of tall tiles that need all columns.
    __device__ __forceinline__ static int wanted_rows(const Arguments& args) {
        return tall_rows(args.part_rows[0]) + tall_rows(args.part_rows[1]) - args.key_tiles;
    }

    // Returns true if tall tiles read each weight at about the same time, and only once.
    __device__ __forceinline__ static bool weights_pass_once(const Arguments& args) {
        return args.rows_of_tiles >= wanted_rows(args);
    }

    // The numbers of tiles of each kind: of low, tall ones, halves of tall ones, short ones, and tiles of keys only.
    struct Counts {
        int low, tall, halves, shorts, keys;
    };

    // Rows of tiles of a part with low.
    __device__ __forceinline__ static int low_rows(const Arguments& args, int part) {
        const int rows = args.part_rows[part];
        return args.ranks[part] > 0 ? tall_rows(rows) + short_rows(rows) : 0;
    }

    template <bool LOW_RANK>
    __device__ __forceinline__ static Counts counts(const Arguments& args, int clusters) {
        const int cols = (3 * args.dim + 2 * args.mlp) / (2 * COLS);
        const int low = LOW_RANK ? (low_rows(args, 0) + low_rows(args, 1)) * ceil_div(args.ld_low, DOWN_ROWS) : 0;
        const int tall = wanted_rows(args) * cols;
        const int shorts = (short_rows(args.part_rows[0]) + short_rows(args.part_rows[1])) * cols;
        // A last round of tall tiles for few enough clusters to compute it as halves takes half as long that way.
        const int last = tall % clusters, split = 2 * last + shorts <= clusters ? last : 0;
        return {low, tall - split, 2 * split, shorts, args.key_tiles * (args.dim / COLS)};
    }

    // Returns the tile of a cluster at its turn; a negative number after its last. Tiles of low and tall ones are
    // distributed round-robin. Short ones are multiplied in half the time: clusters with one tall tile less than others
    // first get two. If the last tall tiles are in halves, all have equally many.
    __device__ __forceinline__ static int tile_of(const Counts& counts, int cluster, int clusters, int turn) {
        const auto own = [&](int tiles) { return tiles > cluster ? (tiles - cluster - 1) / clusters + 1 : 0; };
        const int low = own(counts.low);
        if (turn < low) return cluster + turn * clusters;
        turn -= low;
        const int first_others = counts.low % clusters;
        cluster -= first_others, cluster += cluster < 0 ? clusters : 0;
        const int tall = own(counts.tall);
        if (turn < tall) return counts.low + cluster + turn * clusters;
        turn -= tall;
        const int ahead = counts.tall % clusters, shorts = counts.halves + counts.shorts;
        const int behind = ahead == 0 ? 0 : min(2 * (clusters - ahead), shorts);
        const int first = 2 * (cluster - ahead), firsts = first < 0 ? 0 : min(max(behind - first, 0), 2);
        if (turn < firsts) return counts.low + counts.tall + first + turn;
        turn -= firsts;
        const int rest = own(shorts - behind);
        if (turn < rest) return counts.low + counts.tall + behind + cluster + turn * clusters;
        turn -= rest;
        const int key = cluster + turn * clusters;
        return key < counts.keys ? counts.low + counts.tall + shorts + key : -1;
    }

    // Calls body(work) for the tiles of this block in turn. With UNIFORM a shuffle shows the compiler that the index is
    // equal in all lanes: if paths could differ, it would make each multiply wait for the one before.
    template <bool UNIFORM, class Body>
    __device__ __forceinline__ static void each(const Arguments& args, const Counts& counts, int rank, Body body) {
        const auto tile = [&](int turn) {
            const int index = tile_of(counts, blockIdx.x / 2, gridDim.x / 2, turn);
            return UNIFORM ? __shfl_sync(~0u, index, 0) : index;
        };
        for (int turn = 0, index; (index = tile(turn)) >= 0; turn++) body(at(args, counts, index, rank));
    }

    // Tiles of low, tall ones, halves, short ones, then those of keys only.
    __device__ __forceinline__ static Work at(const Arguments& args, const Counts& counts, int index, int rank) {
        if (index < counts.low) return of_low(args, index, rank);
        index -= counts.low;
        const int half = index - counts.tall;
        if (half < 0) return of_out(args, index, rank);
        if (half >= counts.halves) return of_out(args, index - counts.halves / 2, rank);
        Work w = of_out(args, counts.tall + half / 2, rank);
        w.is_short = true;
        w.row += half % 2 * (ROWS / 2);
        return w;
    }

    __device__ __forceinline__ static Work of_low(const Arguments& args, int index, int rank) {
        const int first_part = low_rows(args, 0), rows = first_part + low_rows(args, 1);
        Work w;
        w.kind = LOW;
        w.col = index / rows * DOWN_ROWS + rank * (DOWN_ROWS / 2);
        w.weight = w.col, w.second = 0;
        int row = index % rows;
        w.part = row >= first_part;
        row -= w.part ? first_part : 0;
        w.is_short = row >= tall_rows(args.part_rows[w.part]);
        w.row = row * ROWS;
        return w;
    }

    __device__ __forceinline__ static Work of_out(const Arguments& args, int index, int rank) {
        const int first_part = tall_rows(args.part_rows[0]), wanted = wanted_rows(args);
        const int first_short = short_rows(args.part_rows[0]), shorts = first_short + short_rows(args.part_rows[1]);
        const int cols = (3 * args.dim + 2 * args.mlp) / (2 * COLS), together = args.rows_of_tiles * cols;
        int row, col;
        Work w;
        w.is_short = false;
        if (index < wanted * cols) {
            const int first = index / together * args.rows_of_tiles, height = min(args.rows_of_tiles, wanted - first);
            index %= together;
            row = args.key_tiles + first + index % height, col = index / height;
            w.part = row >= first_part;
            row -= w.part ? first_part : 0;
        } else if (index -= wanted * cols; index < shorts * cols) {
            w.is_short = true;
            w.part = index % shorts >= first_short;
            row = tall_rows(args.part_rows[w.part]), col = index / shorts;
        } else {
            index -= shorts * cols;
            w.part = 0;
            row = index % args.key_tiles, col = index / args.key_tiles;
        }
        w.row = row * ROWS;
        const int weight = (2 * col + rank) * COLS;
        if (weight < 3 * args.dim) {
            w.kind = weight < args.dim ? KEYS : weight < 2 * args.dim ? VALUES : QUERIES;
            w.col = weight;
            w.weight = weight, w.second = CONSUMER_COLS;
        } else {
            w.kind = GATED;
            w.col = 3 * args.dim + (weight - 3 * args.dim) / 2;
            w.weight = w.col, w.second = args.mlp;
        }
        return w;
    }

    // Returns the rows of half a tile; 0 or less past the last row.
    __device__ __forceinline__ int rows_of(const Arguments& args, int half) const {
        if (is_short && half > 0) return 0;
        return min(ROWS / 2, args.part_rows[part] - row - half * (ROWS / 2));
    }
};

}  // namespace project
