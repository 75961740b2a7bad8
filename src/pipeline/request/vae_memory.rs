//! Memory of the VAE's encoder and decoder, for an image of some pixels.

use crate::backend::{Bands, Costs, IM2COL_BYTES, SCORES_BYTES};
use crate::pipeline::memory::plan::InBands;
use crate::vae::{Band, VaeConfig};

/// The memory of the activations of an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct VaeMemory {
    /// Bytes on the device that needs most.
    pub device: InBands,
    /// Bytes in host memory, with [`Bands::Host`].
    pub host: u64,
}

impl VaeMemory {
    /// Returns the memory for decoding an image of `size` [height, width].
    pub(super) fn decoding(costs: &Costs, config: &VaeConfig, size: [usize; 2]) -> Self {
        let (channels, pixels) = (config.decoder_channels(), VaePixels::new(config, costs.world, size));
        let bytes = |bands| decode_bytes(costs, channels, pixels.own, bands) + pixels.whole_bytes(costs);
        Self { device: InBands::from_fn(bytes), host: decoder_images(costs, channels, pixels.own) }
    }

    /// Returns the memory for encoding an image of `size` [height, width].
    pub(super) fn encoding(costs: &Costs, config: &VaeConfig, size: [usize; 2]) -> Self {
        let (channels, pixels) = (&config.block_out_channels, VaePixels::new(config, costs.world, size));
        let bytes = |bands| encode_bytes(costs, channels, pixels.own, bands) + pixels.whole_bytes(costs);
        Self { device: InBands::from_fn(bytes), host: encoder_images(costs, channels, pixels.own) }
    }
}

/// The pixels of an image that a device has in the VAE.
#[derive(Clone, Copy)]
struct VaePixels {
    /// Maximum pixels that the device computes with: all, or its band and the rows around it.
    own: u64,
    /// Pixels of the whole image, if it exists in addition to the device's band.
    whole: u64,
}

impl VaePixels {
    fn new(config: &VaeConfig, world: usize, [height, width]: [usize; 2]) -> Self {
        let patch = config.patch_pixels();
        match Band::new(height / patch, 0, world) {
            Some(band) => Self { own: ((band.own().len() * patch + 2) * width) as u64, whole: (height * width) as u64 },
            None => Self { own: (height * width) as u64, whole: 0 },
        }
    }

    /// Returns the bytes of the whole image on each device, with three channels.
    fn whole_bytes(&self, costs: &Costs) -> u64 {
        3 * self.whole * costs.element_bytes
    }
}

/// Returns the bytes of the decoder's largest tensors for an image of `pixels` pixels; `channels` start at the
/// pixels.
fn decode_bytes(costs: &Costs, channels: &[usize], pixels: u64, bands: Bands) -> u64 {
    let bytes =
        |channels: Option<&usize>| pixels * channels.map_or(0, |&channels| channels as u64) * costs.element_bytes;
    // The norm comes on top, and later the shortcut. A shortcut larger than this overwrites its input in pieces.
    let norm = costs.norm_conv2d_bytes(bytes(channels.iter().take(2).max()), bands);
    let all = decoder_images(costs, channels, pixels) + norm.max(bytes(channels.first()).min(IM2COL_BYTES as u64));
    least_resident(costs, channels, pixels, bands).map_or(all, |resident| resident.min(all))
}

/// Returns the bytes of the largest images that the decoder holds at once.
fn decoder_images(costs: &Costs, channels: &[usize], pixels: u64) -> u64 {
    let most = |first: usize, count: usize| channels.iter().skip(first).take(count).max().copied().unwrap_or(0);
    // The last up block holds at full size its input, which has the channels of the block before, and its output. The
    // upsampler before it reads a quarter of the pixels, in memory that may have held the channels of one more block.
    (pixels * (most(0, 2) + most(0, 1).max(most(1, 2) / 4)) as u64) * costs.element_bytes
}

/// Returns the bytes of the encoder's largest tensors for an image of `pixels` pixels; `channels` start at the
/// pixels.
fn encode_bytes(costs: &Costs, channels: &[usize], pixels: u64, bands: Bands) -> u64 {
    // Either the norm read by a convolution or the shortcut comes on top.
    let block = |[cin, cout]: [u64; 2]| {
        let norm = costs.norm_conv2d_bytes(cin.max(cout), bands);
        cin.max(cout) + cout + if cin == cout { norm } else { norm.max(cout) }
    };
    let all = encoder_blocks(costs, channels, pixels).map(block).max().unwrap_or(0);
    least_resident(costs, channels, pixels, bands).map_or(all, |resident| resident.min(all))
}

/// Returns the bytes of the largest images that the encoder holds at once.
fn encoder_images(costs: &Costs, channels: &[usize], pixels: u64) -> u64 {
    let block = |[cin, cout]: [u64; 2]| cin.max(cout) + if cin == cout { cout } else { 2 * cout };
    encoder_blocks(costs, channels, pixels).map(block).max().unwrap_or(0)
}

/// Returns the bytes of the image that the first residual block of each down block reads, and of the one that it
/// returns. It holds also the output of its first convolution. Each has a quarter of the pixels of the one before.
fn encoder_blocks(costs: &Costs, channels: &[usize], pixels: u64) -> impl Iterator<Item = [u64; 2]> {
    (0..channels.len()).map(move |i| {
        [channels[i.saturating_sub(1)], channels[i]]
            .map(|channels| (pixels >> (2 * i)) * channels as u64 * costs.element_bytes)
    })
}

/// Returns the bytes of encoder or decoder on the device, if its largest tensors are in host memory.
fn least_resident(costs: &Costs, channels: &[usize], pixels: u64, bands: Bands) -> Option<u64> {
    let (last, own) = (channels.len().checked_sub(1).filter(|_| bands == Bands::Host)?, |i: usize| channels[i]);
    let bytes = |i: usize, channels: usize| (pixels >> (2 * i)) * channels as u64 * costs.element_bytes;
    // A residual block holds its input, which may have the channels of the block before or after, the output of its
    // first convolution, and the shortcut.
    let block = |i: usize| {
        [i.saturating_sub(1), i, last.min(i + 1)].map(|from| [bytes(i, own(from)), bytes(i, own(i)), bytes(i, own(i))])
    };
    // Between two blocks there are the smaller and the larger image.
    let between = |i: usize| [bytes(i, own(i)), bytes(i + 1, own(i + 1)), bytes(i, own(i + 1))];
    let steps = (0..=last).flat_map(block).chain((0..last).map(between));
    // Attention of the middle block holds five tensors of the last size, at any size on the device.
    let attention = 5 * bytes(last, own(last)) + SCORES_BYTES as u64;
    costs.resident_bytes(steps).map(|resident| resident.max(attention))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Storage;

    #[test]
    fn the_decoder_needs_what_its_last_up_block_does() {
        let need = |channels: &[usize], side: u64| {
            decode_bytes(&Costs::host(Storage::Native, 1), channels, side * side, Bands::Wide)
        };
        // The image in 256 channels, its norm, and the output in 128 channels.
        assert_eq!(need(&[128, 256, 512, 512], 1024), (1 << 20) * (256 + 256 + 128) * 4);
        assert_eq!(need(&[64], 512), (1 << 18) * 3 * 64 * 4);
        // The upsampler's input is larger than the output of the last block.
        assert_eq!(need(&[16, 256, 1024], 512), (1 << 18) * (256 + 256 + 256) * 4);
    }

    #[test]
    fn the_encoder_needs_what_its_largest_block_does() {
        let need = |channels: &[usize], side: u64| {
            encode_bytes(&Costs::host(Storage::Native, 1), channels, side * side, Bands::Wide)
        };
        // The image in 128 channels, the output of the first convolution, and a norm.
        assert_eq!(need(&[128, 256, 512, 512], 1024), (1 << 20) * (128 + 128 + 128) * 4);
        assert_eq!(need(&[64], 512), (1 << 18) * 3 * 64 * 4);
        // A quarter of the pixels, in 1024 channels.
        assert_eq!(need(&[16, 1024], 512), (1 << 16) * (1024 + 1024 + 1024) * 4);
        assert_eq!(need(&[], 512), 0);
    }

    /// Channels of klein's VAE.
    const KLEIN: [usize; 4] = [128, 256, 512, 512];

    #[test]
    fn images_in_host_memory_leave_room_on_the_device() {
        for im2col in [false, true] {
            let costs = Costs::gpu(Storage::Native, im2col, 1);
            let of = |pixels: u64, bands: Bands| {
                [decode_bytes(&costs, &KLEIN, pixels, bands), encode_bytes(&costs, &KLEIN, pixels, bands)]
            };
            let [small, square, wide] = [1 << 20, 4096 * 4096, 8192 * 4096];
            assert!(of(square, Bands::Narrow)[0] >= 12 << 30, "the decoder holds 384 channels");
            for (pixels, bound) in [(square, 2 << 30), (wide, 3 << 30)] {
                assert!(of(pixels, Bands::Host).iter().all(|bytes| *bytes <= bound), "{:?}", of(pixels, Bands::Host));
            }
            assert_eq!(of(small, Bands::Host), of(small, Bands::Narrow), "all tensors are small");
            let images = [decoder_images(&costs, &KLEIN, square), encoder_images(&costs, &KLEIN, square)];
            assert_eq!(images, [12 << 30, 8 << 30]);
        }
        for costs in [Costs::host(Storage::Native, 1), Costs::gpu(Storage::Native, false, 2)] {
            let of = |bands| decode_bytes(&costs, &KLEIN, 4096 * 4096, bands);
            assert_eq!(of(Bands::Host), of(Bands::Narrow), "on the host, and on devices with bands of their own");
        }
    }

    #[test]
    fn more_pixels_never_take_less_than_any_of_their_tensors() {
        let costs = Costs::hopper();
        for side in (64..8192).step_by(64) {
            let pixels = side * side;
            let attention = 5 * (pixels / 64) * 512 * 2;
            let [host, narrow] = [Bands::Host, Bands::Narrow].map(|bands| decode_bytes(&costs, &KLEIN, pixels, bands));
            assert!(host >= attention.min(narrow) && host <= narrow, "{side}");
        }
    }
}
