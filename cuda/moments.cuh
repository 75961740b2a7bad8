// Mean and variance in pieces.
#pragma once

// Number of values, their mean, and the sum of squares about it.
struct Moments {
    float count, mean, squares;
};

// Of the values of both, by Chan's formula; pieces without values change nothing.
__device__ __forceinline__ Moments join(const Moments& a, const Moments& b) {
    const float count = a.count + b.count;
    // The fast division is right to two units in the last place.
    const float delta = b.mean - a.mean, share = __fdividef(b.count, fmaxf(count, 1.0f));
    return {count, a.mean + delta * share, a.squares + b.squares + delta * delta * a.count * share};
}
