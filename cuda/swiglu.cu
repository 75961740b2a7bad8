// swiglu: out = silu(gate) * up swiglu_e4m3: [beside | silu(gate) * up], quantised for an fp8 product (see e4m3.cuh):
// the one scale of a row needs both parts
//
//   gate   [tokens, mlp]  bf16, row stride ld_gate
//   up     [tokens, mlp]  bf16, row stride ld_up
//   out    [tokens, mlp]  bf16, row stride ld_out; may be gate. Of swiglu_e4m3 e4m3 [tokens, ld_out], zeros behind the
//          two parts
//   beside [tokens, side] bf16, row stride ld_beside; side may be 0. swiglu_e4m3 only, as
//   scales [tokens]       f32
//
// Mapping   a thread takes runs of 8 columns (16-byte loads) of one row; a run is read before it is written.
//           swiglu_e4m3: one block per token; a thread holds up to 4 chunks of 8 values, so everything is read once.
//           3072 + 9216: 384 threads, 4 chunks.
// Needs     mlp % 8 == 0 and rows 16-byte aligned; swiglu_e4m3 side % 8 == 0 and ld_out <= 4 * 8 * 512 too. Otherwise
//           `_any`: one value at a time, of swiglu_e4m3 twice.
// Rounding  once, at the store; swiglu_e4m3 to bf16 and then to e4m3, so that it gives what swiglu and quantise give.
// Bytes     tokens * mlp * 6.   4608 x 9216: 255 MB
//           swiglu_e4m3: tokens * (mlp * 5 + side * 3).   4608 x (3072 + 9216): 255 MB
// Bound     HBM. 255 MB at 4.8 TB/s (H200) = 53 us
// Measured  68.6 us at 4608 x 9216 in rows of 27648, 3.71 TB/s, 77% of bound; composed 116 us; H200, driver 580.159,
//           CUDA 13.0; `flux bench ops/`.
//           swiglu_e4m3: not by itself, only in the steps of `flux bench stages/ --precision fp8`
// Tried
#include "e4m3.cuh"

static constexpr int MAX_CHUNKS = 4;

template <int N>
__device__ __forceinline__ void swiglu(const bf16* gate, long long ld_gate, const bf16* up, long long ld_up, bf16* out,
                                       long long ld_out, int rows, int cols) {
    for_each_run<N>(rows, cols, [=](long long row, int column) {
        float g[N], u[N];
        load(gate + row * ld_gate + column, g);
        load(up + row * ld_up + column, u);
#pragma unroll
        for (int i = 0; i < N; i++) g[i] = silu(g[i]) * u[i];
        store(out + row * ld_out + column, g);
    });
}

extern "C" __global__ void __launch_bounds__(256)
    swiglu_bf16(const bf16* gate, long long ld_gate, const bf16* up, long long ld_up, bf16* out, long long ld_out,
                int rows, int cols) {
    swiglu<8>(gate, ld_gate, up, ld_up, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(256)
    swiglu_bf16_any(const bf16* gate, long long ld_gate, const bf16* up, long long ld_up, bf16* out, long long ld_out,
                    int rows, int cols) {
    swiglu<1>(gate, ld_gate, up, ld_up, out, ld_out, rows, cols);
}

extern "C" __global__ void __launch_bounds__(512)
    swiglu_e4m3(const bf16* beside, long long ld_beside, const bf16* gate, long long ld_gate, const bf16* up,
                long long ld_up, e4m3* out, long long ld_out, float* scales, int side, int mlp) {
    const long long row = blockIdx.x;
    const int side_chunks = side / 8, mlp_chunks = mlp / 8;
    uint4 chunks[MAX_CHUNKS], ups[MAX_CHUNKS];
    // All loads before the first use, so that they are in flight together.
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        const bool is_side = chunk < side_chunks;
        chunks[i] = is_side ? load_chunk(beside + row * ld_beside, chunk, side_chunks)
                            : load_chunk(gate + row * ld_gate, chunk - side_chunks, mlp_chunks);
        ups[i] = is_side ? make_uint4(0, 0, 0, 0) : load_chunk(up + row * ld_up, chunk - side_chunks, mlp_chunks);
    }
#pragma unroll
    for (int i = 0; i < MAX_CHUNKS; i++) {
        const int chunk = threadIdx.x + i * blockDim.x;
        if (chunk < side_chunks) continue;
        float g[8], u[8];
        unpack(chunks[i], g);
        unpack(ups[i], u);
#pragma unroll
        for (int j = 0; j < 8; j++) g[j] = silu(g[j]) * u[j];
        chunks[i] = pack(g);
    }
    quantise_row(chunks, ld_out / 8, out + row * ld_out, scales + row);
}

extern "C" __global__ void __launch_bounds__(256)
    swiglu_e4m3_any(const bf16* beside, long long ld_beside, const bf16* gate, long long ld_gate, const bf16* up,
                    long long ld_up, e4m3* out, long long ld_out, float* scales, int side, int mlp) {
    const long long row = blockIdx.x;
    quantise_row_any(side + mlp, ld_out, out + row * ld_out, scales + row, [=](int i) {
        if (i < side) return __bfloat162float(beside[row * ld_beside + i]);
        const float g = __bfloat162float(gate[row * ld_gate + i - side]);
        return round_to_bf16(silu(g) * __bfloat162float(up[row * ld_up + i - side]));
    });
}
