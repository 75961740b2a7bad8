//! Layers whose changes of low rank are merged into copies of their weights, so that products cost nothing more.

use super::Layers;
use crate::backend::Backend;
use crate::error::Result;
use crate::files::TensorView;

impl<B: Backend> Layers<B> {
    /// The same layers, with the factors that are beside a weight in a copy of it, where the backend does that.
    ///
    /// Errors when memory runs out.
    pub fn merged(mut self) -> Result<Self> {
        for layer in self.linears.values_mut() {
            let Some(low_rank) = layer.linear.low_rank() else { continue };
            let views: Vec<TensorView> = layer.parts.iter().map(|part| part.view.clone()).collect();
            if let Some(weight) = layer.linear.backend().merge_weight(&layer.linear, &views, low_rank)? {
                layer.linear = layer.linear.with_weight(weight);
            }
        }
        Ok(self)
    }
}
