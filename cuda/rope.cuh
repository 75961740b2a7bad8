// Shared code of qk_norm_rope.cu and rope.cu.
#pragma once

// Returns the place of a row's token in its sample.
__device__ __forceinline__ int token_of(int row, int txt_rows, int txt, int img) {
    return row < txt_rows ? row % txt : txt + (row - txt_rows) % img;
}
