//! Merges low-rank changes into copies of the weights, so that matrix multiplications cost nothing extra.
//!
//! A quantized weight is merged from its original in the file, because merging into rounded values would round twice.
//! The original must be uploaded for this, which takes far longer than merging, so it may stay on the device for the
//! next set of adapters.

use super::layers::LinearLayer;
use super::{Layers, Linear};
use crate::backend::{Backend, Storage};
use crate::error::Result;
use crate::files::TensorView;
use crate::files::adapter::AdapterUse;

impl<B: Backend> LinearLayer<B> {
    fn is_quantized(&self) -> bool {
        self.storage != Storage::Native
    }

    /// Loads the layer as its file has it, with other uploads or at once.
    fn original(&self, uploads: Option<&B::Uploads>) -> Result<Linear<B>> {
        let views: Vec<TensorView> = self.parts.iter().map(|part| part.view.clone()).collect();
        Linear::load_with((self.linear.backend(), uploads), self.linear.name(), &views, Storage::Native)
    }
}

impl<B: Backend> Layers<B> {
    /// Merges factors into copies of their weights, if the backend merges. With `keeps_originals`, the originals of
    /// quantized weights stay on the device for the next set.
    ///
    /// Errors if memory runs out.
    pub fn merged(mut self, keeps_originals: bool) -> Result<Self> {
        if keeps_originals {
            self.load_originals()?;
        }
        for (key, layer) in &mut self.linears {
            let Some(low_rank) = layer.linear.low_rank() else { continue };
            let kept = self.originals.weights().get(key).cloned();
            let original = match kept {
                Some(original) => original,
                None if layer.is_quantized() => layer.original(None)?,
                None => layer.linear.clone(),
            };
            if let Some(weight) = original.backend().merge_weight(&original, low_rank, layer.storage)? {
                layer.linear = layer.linear.with_weight(weight);
            }
        }
        Ok(self)
    }

    /// Returns the number of values in the originals of quantized layers that `adapters` change, without the loaded
    /// ones.
    pub fn absent_originals(&self, adapters: &[AdapterUse]) -> u64 {
        let kept = self.originals.weights();
        let absent = self.linears.iter().filter(|(key, layer)| layer.is_quantized() && !kept.contains_key(*key));
        absent.filter(|(_, layer)| layer.is_changed_by(adapters)).map(|(_, layer)| layer.elements()).sum()
    }

    /// Frees the originals of quantized weights.
    pub fn free_originals(&self) {
        let freed = std::mem::take(&mut *self.originals.weights());
        // Outside the lock, because freeing may wait.
        drop(freed);
    }

    /// Uploads the originals of all quantized layers with factors together.
    fn load_originals(&self) -> Result<()> {
        let absent: Vec<_> = {
            let kept = self.originals.weights();
            let quantized = self.linears.iter().filter(|(_, layer)| layer.is_quantized());
            quantized.filter(|(key, layer)| layer.linear.low_rank().is_some() && !kept.contains_key(*key)).collect()
        };
        let Some((_, first)) = absent.first() else { return Ok(()) };
        let backend = first.linear.backend().clone();
        let load = |uploads: &B::Uploads| {
            absent
                .iter()
                .map(|(key, layer)| Ok(((*key).clone(), layer.original(Some(uploads))?)))
                .collect::<Result<_>>()
        };
        let loaded: Vec<(String, Linear<B>)> = backend.load(load, &mut |_| {})?;
        self.originals.weights().extend(loaded);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use safetensors::tensor::{Dtype, TensorView};

    use super::*;
    use crate::backend::cpu::{Cpu, Precision};
    use crate::files::ModelFiles;
    use crate::files::adapter::Adapter;
    use crate::nn::Weights;
    use crate::transformer::{self, Transformer, TransformerConfig};

    const KEY: &str = "transformer_blocks.0.attn.to_out.0";

    /// Returns the layers of a model with one quantized layer, and an adapter that changes this layer only.
    fn quantized() -> (Layers<Cpu>, AdapterUse) {
        let dir = ModelFiles::open("models/tiny".as_ref()).unwrap();
        let (config, files) = (TransformerConfig::read(&dir).unwrap(), transformer::open(&dir).unwrap());
        let cpu = Cpu::new(Precision::F32);
        let transformer = Transformer::load(&Weights::new(&cpu, &files), &config).unwrap();
        let mut layers = transformer.layers().adapted(&[]).unwrap();
        layers.linears.get_mut(KEY).unwrap().storage = Storage::Fp8;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adapter.safetensors");
        let bytes = 0.01f32.to_le_bytes().repeat(config.dim());
        let tensor = |shape| TensorView::new(Dtype::F32, shape, &bytes).unwrap();
        let (down, up) = (tensor(vec![1, config.dim()]), tensor(vec![config.dim(), 1]));
        let pair = [(format!("{KEY}.lora_A.weight"), down), (format!("{KEY}.lora_B.weight"), up)];
        safetensors::serialize_to_file(pair, None, &path).unwrap();
        let adapter = Adapter::open(&path, &config.adapter_modules().unwrap()).unwrap();
        (layers, AdapterUse::new(Arc::new(adapter), 1.0))
    }

    #[test]
    fn originals_are_kept_where_they_are_wanted_until_they_are_freed() {
        let (layers, used) = quantized();
        let (uses, elements) = ([used], layers.linears[KEY].elements());
        assert_eq!((layers.absent_originals(&uses), layers.absent_originals(&[])), (elements, 0));
        layers.adapted(&uses).unwrap().merged(false).unwrap();
        assert_eq!(layers.absent_originals(&uses), elements, "they were freed with the merged layers");
        layers.adapted(&uses).unwrap().merged(true).unwrap();
        assert_eq!(layers.absent_originals(&uses), 0);
        let kept = layers.originals.weights()[KEY].clone();
        assert_eq!((kept.name(), kept.rows()), (KEY, layers.linears[KEY].linear.rows()));
        layers.adapted(&uses).unwrap().merged(true).unwrap();
        assert!(std::ptr::eq(layers.originals.weights()[KEY].weight(), kept.weight()), "not loaded again");
        layers.free_originals();
        assert_eq!(layers.absent_originals(&uses), elements);
    }

    #[test]
    fn only_layers_that_are_quantized_have_originals() {
        let (mut layers, used) = quantized();
        layers.linears.get_mut(KEY).unwrap().storage = Storage::Native;
        let uses = [used];
        assert_eq!(layers.absent_originals(&uses), 0);
        layers.adapted(&uses).unwrap().merged(true).unwrap();
        assert!(layers.originals.weights().is_empty());
    }
}
