//! What the weights of blocks take that stay in the formats of their files.

use crate::files::TensorFiles;
use crate::transformer::TransformerConfig;

/// Weights of the blocks of a component that are no plain floats: a GPU holds them as they are in the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileSizes {
    /// Of each block, in the order of use; the blocks behind the last have none.
    blocks: Vec<Held>,
    /// Values of the largest weight, which are bf16 in front of its product.
    largest: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Held {
    values: u64,
    bytes: u64,
}

impl FileSizes {
    /// Of the blocks whose names begin with these prefixes, in the order of use. `matrices` are the values and bytes of
    /// those of a block.
    fn of(prefixes: impl Iterator<Item = String>, matrices: impl Fn(&str) -> Vec<[u64; 2]>) -> Self {
        let mut sizes = Self::default();
        for prefix in prefixes {
            let mut block = Held::default();
            for [values, bytes] in matrices(&prefix) {
                block = Held { values: block.values + values, bytes: block.bytes + bytes };
                sizes.largest = sizes.largest.max(values);
            }
            sizes.blocks.push(block);
        }
        sizes
    }

    /// Of the first `layers` layers of a text encoder, as its files have them.
    pub(crate) fn of_text_encoder(files: &TensorFiles, layers: usize) -> Self {
        Self::of_layers(layers, |prefix| files.quantised_matrices(prefix))
    }

    /// Of a transformer's blocks, as its files have them.
    pub(crate) fn of_transformer(files: &TensorFiles, config: &TransformerConfig) -> Self {
        Self::of_blocks(config, |prefix| files.quantised_matrices(prefix))
    }

    /// Of the first `layers` layers of a text encoder, whose matrices take so much.
    pub(crate) fn of_layers(layers: usize, matrices: impl Fn(&str) -> Vec<[u64; 2]>) -> Self {
        Self::of((0..layers).map(|layer| format!("model.layers.{layer}.")), matrices)
    }

    /// Of a transformer's blocks, whose matrices take so much.
    pub(crate) fn of_blocks(config: &TransformerConfig, matrices: impl Fn(&str) -> Vec<[u64; 2]>) -> Self {
        Self::of(config.block_prefixes(), matrices)
    }

    /// Bytes of block `index` of `elements` elements, those that are plain floats being `floats(number)` bytes.
    pub(crate) fn block(&self, index: usize, elements: u64, floats: impl Fn(u64) -> u64) -> u64 {
        let held = self.blocks.get(index).copied().unwrap_or_default();
        held.bytes + floats(elements.saturating_sub(held.values))
    }

    /// Values of the largest weight that is dequantised.
    pub(crate) fn largest(&self) -> u64 {
        // The largest layer of a model, the projection of a single block, is one tensor of every file.
        self.largest
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_in_few_bits_take_their_bytes_and_others_those_of_floats() {
        let sizes = FileSizes { blocks: vec![Held { values: 80, bytes: 45 }], largest: 80 };
        assert_eq!([0, 1].map(|index| sizes.block(index, 100, |floats| 2 * floats)), [45 + 40, 200]);
        assert_eq!(FileSizes::default().block(0, 7, |floats| 2 * floats), 14);
    }
}
