// Mean and variance of a channel, merged from parts.
#pragma once

// Number of values, their mean, and the sum of squared distances from the mean.
struct ChannelStatistics {
    float count, mean, squares;
};

// Merges the statistics of both by Chan's formula; a part without values changes nothing.
__device__ __forceinline__ ChannelStatistics join(const ChannelStatistics& a, const ChannelStatistics& b) {
    const float count = a.count + b.count;
    // The fast division is accurate to two units in the last place.
    const float delta = b.mean - a.mean, share = __fdividef(b.count, fmaxf(count, 1.0f));
    return {count, a.mean + delta * share, a.squares + b.squares + delta * delta * a.count * share};
}
