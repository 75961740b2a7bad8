//! Sizes of block weights that stay in the formats of their files.

use crate::files::TensorFiles;
use crate::transformer::TransformerConfig;

/// Quantized weights of a component's blocks, which a GPU holds in the formats of the files.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FileSizes {
    /// One entry for each block, in the order of use; blocks after the last entry have no such weights.
    blocks: Vec<Held>,
    /// Number of values of the largest weight, which is dequantized to bf16 for its matrix multiplication.
    largest: u64,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Held {
    values: u64,
    bytes: u64,
}

impl FileSizes {
    /// Sums the weights of the blocks whose names begin with these prefixes, in the order of use. `matrices` returns
    /// the values and bytes of each matrix of a block.
    fn from_prefixes(prefixes: impl Iterator<Item = String>, matrices: impl Fn(&str) -> Vec<[u64; 2]>) -> Self {
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

    /// Returns the sizes of a text encoder's first `layers` layers in its files.
    pub(crate) fn for_text_encoder(files: &TensorFiles, layers: usize) -> Self {
        Self::for_layers(layers, |prefix| files.quantized_matrices(prefix))
    }

    /// Returns the sizes of a transformer's blocks in its files.
    pub(crate) fn for_transformer(files: &TensorFiles, config: &TransformerConfig) -> Self {
        Self::for_blocks(config, |prefix| files.quantized_matrices(prefix))
    }

    /// Returns the sizes of a text encoder's first `layers` layers, by the sizes of their matrices.
    pub(crate) fn for_layers(layers: usize, matrices: impl Fn(&str) -> Vec<[u64; 2]>) -> Self {
        Self::from_prefixes((0..layers).map(|layer| format!("model.layers.{layer}.")), matrices)
    }

    /// Returns the sizes of a transformer's blocks, by the sizes of their matrices.
    pub(crate) fn for_blocks(config: &TransformerConfig, matrices: impl Fn(&str) -> Vec<[u64; 2]>) -> Self {
        Self::from_prefixes(config.block_prefixes(), matrices)
    }

    /// Returns the bytes of block `index` of `elements` elements. `floats` returns the bytes of its plain floats.
    pub(crate) fn block(&self, index: usize, elements: u64, floats: impl Fn(u64) -> u64) -> u64 {
        let held = self.blocks.get(index).copied().unwrap_or_default();
        held.bytes + floats(elements.saturating_sub(held.values))
    }

    /// Returns the number of values of the largest weight that is dequantized.
    pub(crate) fn largest(&self) -> u64 {
        // The largest layer of a model, the projection of a single block, is one tensor in every file.
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
