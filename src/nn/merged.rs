//! Layers whose changes of low rank are merged into copies of their weights, so that products cost nothing more.
//!
//! A quantised weight is merged from what its file holds, because a sum with rounded values would be rounded twice.
//! That has to go to the device for it, which takes far longer than merging, so it may stay there for the next set of
//! adapters.

use super::layers::LinearLayer;
use super::{Layers, Linear};
use crate::backend::{Backend, Storage};
use crate::error::Result;
use crate::files::TensorView;
use crate::files::adapter::AdapterUse;

impl<B: Backend> LinearLayer<B> {
    fn is_quantised(&self) -> bool {
        self.storage != Storage::Native
    }

    /// The layer as its file has it, uploaded with others, or else at once.
    fn original(&self, uploads: Option<&B::Uploads>) -> Result<Linear<B>> {
        let views: Vec<TensorView> = self.parts.iter().map(|part| part.view.clone()).collect();
        Linear::load_with((self.linear.backend(), uploads), self.linear.name(), &views, Storage::Native)
    }
}

impl<B: Backend> Layers<B> {
    /// The same layers, with the factors that are beside a weight in a copy of it, where the backend does that.
    /// `keeps_originals` says whether the originals of quantised weights stay on the device for the next set.
    ///
    /// Errors when memory runs out.
    pub fn merged(mut self, keeps_originals: bool) -> Result<Self> {
        if keeps_originals {
            self.load_originals()?;
        }
        for (key, layer) in &mut self.linears {
            let Some(low_rank) = layer.linear.low_rank() else { continue };
            let kept = self.originals.weights().get(key).cloned();
            let original = match kept {
                Some(original) => original,
                None if layer.is_quantised() => layer.original(None)?,
                None => layer.linear.clone(),
            };
            if let Some(weight) = original.backend().merge_weight(&original, low_rank, layer.storage)? {
                layer.linear = layer.linear.with_weight(weight);
            }
        }
        Ok(self)
    }

    /// How many values the originals of quantised layers that `adapters` change have, as far as they are not kept.
    pub fn absent_originals(&self, adapters: &[AdapterUse]) -> u64 {
        let kept = self.originals.weights();
        let absent = self.linears.iter().filter(|(key, layer)| layer.is_quantised() && !kept.contains_key(*key));
        absent.filter(|(_, layer)| layer.is_changed_by(adapters)).map(|(_, layer)| layer.elements()).sum()
    }

    /// Frees the originals of quantised weights.
    pub fn free_originals(&self) {
        let freed = std::mem::take(&mut *self.originals.weights());
        // The lock is released, because freeing may wait.
        drop(freed);
    }

    /// Brings the originals of all quantised layers with factors to the device together.
    fn load_originals(&self) -> Result<()> {
        let absent: Vec<_> = {
            let kept = self.originals.weights();
            let quantised = self.linears.iter().filter(|(_, layer)| layer.is_quantised());
            quantised.filter(|(key, layer)| layer.linear.low_rank().is_some() && !kept.contains_key(*key)).collect()
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

    /// The layers of a model, one of which passes for quantised, and an adapter that changes that and no other.
    fn quantised() -> (Layers<Cpu>, AdapterUse) {
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
        let adapter = Adapter::open(&path, &config.adapter_modules()).unwrap();
        (layers, AdapterUse { adapter: Arc::new(adapter), strength: 1.0 })
    }

    #[test]
    fn originals_are_kept_where_they_are_wanted_until_they_are_freed() {
        let (layers, used) = quantised();
        let (uses, elements) = ([used], layers.linears[KEY].elements());
        assert_eq!((layers.absent_originals(&uses), layers.absent_originals(&[])), (elements, 0));
        layers.adapted(&uses).unwrap().merged(false).unwrap();
        assert_eq!(layers.absent_originals(&uses), elements, "they went with the merged layers");
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
    fn only_layers_that_are_quantised_have_originals() {
        let (mut layers, used) = quantised();
        layers.linears.get_mut(KEY).unwrap().storage = Storage::Native;
        let uses = [used];
        assert_eq!(layers.absent_originals(&uses), 0);
        layers.adapted(&uses).unwrap().merged(true).unwrap();
        assert!(layers.originals.weights().is_empty());
    }
}
