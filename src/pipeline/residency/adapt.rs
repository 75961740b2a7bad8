//! Creation of transformers with a session's adapters.

use std::sync::Arc;

use crate::backend::{Backend, Storage};
use crate::error::Result;
use crate::pipeline::request::adapters::{AdapterSet, SetKey};
use crate::pipeline::request::needs::ActivationCost;
use crate::pipeline::residency::Residency;
use crate::pipeline::residency::adapted_cache::Adapted;
use crate::pipeline::residency::placement::Placement;
use crate::pipeline::residency::timings::{Clock, Span};
use crate::stage::Caller;
use crate::transformer::Transformer;

impl<B: Backend> Residency<B> {
    /// Returns `base` with a set of adapters. If it is not cached, it is created without reading weights that no
    /// adapter changes.
    ///
    /// Errors if memory runs out, a file was changed, or the caller cancels.
    pub(crate) fn adapted(
        &self,
        base: &Arc<Transformer<B>>,
        set: &AdapterSet,
        needs: &ActivationCost,
        caller: &Caller<'_>,
        clock: &mut Clock<B>,
    ) -> Result<Arc<Adapted<B>>> {
        if let Some(found) = self.adapted.get(set.key(), base) {
            return Ok(found);
        }
        let _loading = self.loading();
        if let Some(found) = self.adapted.get(set.key(), base) {
            return Ok(found);
        }
        caller.check()?;
        self.files().transformer.check_lengths()?;
        set.uses().iter().try_for_each(|used| used.adapter.check_length())?;
        // Makes the memory available to the new set. Later, dropping the graphs of the old set would wait for all of
        // the merging.
        self.forget(self.adapted.pop_if_full().map(|(key, _)| key));
        let wish = *self.wished_placement.lock();
        let (of_memory, keeps_originals) = self.placement(base, set, needs);
        // A copy of a streamed weight would take memory that is not available.
        let placement =
            if base.block_weights().are_streamed() { Placement::Unmerged } else { wish.unwrap_or(of_memory) };
        let mut layers = base.layers().adapted(set.uses())?;
        clock.end(Span::Factors)?;
        if placement == Placement::Merged {
            layers = layers.merged(keeps_originals)?;
            clock.end(Span::Merge)?;
        }
        layers = layers.into_unmerged()?;
        let beside = layers.low_ranks();
        let remark = placement.remark(beside, wish.is_some());
        let placement = if beside == 0 { Placement::Merged } else { Placement::Unmerged };
        let transformer = Arc::new(base.with_layers(&self.files().transformer, &layers)?);
        let adapted = Arc::new(Adapted { transformer, base: Arc::downgrade(base), placement, remark });
        let evicted = self.adapted.push(set.key(), &adapted);
        self.forget(evicted.map(|(key, _)| key));
        Ok(adapted)
    }

    /// Chooses merged if memory holds a second copy of all changed weights besides the activations of a step. To get
    /// there, it drops other sets first, then the originals of quantized weights. Also returns `true` if there is
    /// enough memory to keep these originals for the next set.
    fn placement(&self, base: &Transformer<B>, set: &AdapterSet, needs: &ActivationCost) -> (Placement, bool) {
        if base.block_weights().are_streamed() {
            return (Placement::Unmerged, false);
        }
        let changed = base.layers().changed_elements(set.uses());
        let costs = self.backend().costs();
        let bytes: u64 = changed.iter().map(|(storage, count)| costs.weight_bytes(*count, *storage)).sum();
        let is_short =
            |more: u64| self.backend().available_bytes() < bytes.saturating_add(needs.step).saturating_add(more);
        while bytes > 0 && is_short(0) {
            match self.adapted.pop() {
                Some((key, _)) => self.forget(Some(key)),
                None => break,
            }
        }
        if bytes > 0 && is_short(0) {
            base.layers().free_originals();
        }
        if bytes > 0 && is_short(0) {
            self.free_shapes();
            self.free_text_encoder();
        }
        let originals =
            self.backend().costs().weight_bytes(base.layers().absent_originals(set.uses()), Storage::Native);
        let placement = if bytes > 0 && is_short(0) { Placement::Unmerged } else { Placement::Merged };
        (placement, !is_short(originals))
    }

    /// See [`Model::place_adapters`](crate::pipeline::Model::place_adapters).
    pub(crate) fn place_adapters(&self, wish: Option<Placement>) {
        // No set is created in the meantime.
        let _loading = self.loading();
        *self.wished_placement.lock() = wish;
        while let Some((key, _)) = self.adapted.pop() {
            self.forget(Some(key));
        }
    }

    /// Drops the cached steps of a set that is no longer cached; they hold its weights.
    fn forget(&self, key: Option<SetKey>) {
        if let Some(gone) = key {
            self.steps.retain(|(key, _)| *key != gone);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::cpu::{Cpu, Precision};
    use crate::files::ModelFiles;
    use crate::files::adapter::{Adapter, AdapterUse};
    use crate::pipeline::request::fields::Request;
    use crate::pipeline::residency::loads::Component;
    use crate::pipeline::session::model::Model;
    use crate::stage::CancelFlag;
    use safetensors::tensor::{Dtype, TensorView};

    /// A model, and an adapter that changes one of its layers.
    fn adapted_model() -> (Arc<Model<Cpu>>, Arc<Adapter>) {
        let dir = ModelFiles::open("models/tiny".as_ref()).unwrap();
        let model = Model::load(Cpu::new(Precision::F32), &dir).unwrap();
        let dim = model.info().transformer.dim();
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("adapter.safetensors");
        let bytes = 0.01f32.to_le_bytes().repeat(dim);
        let tensor = |shape| TensorView::new(Dtype::F32, shape, &bytes).unwrap();
        let name = |half: &str| format!("transformer_blocks.0.attn.to_q.lora_{half}.weight");
        let pair = [(name("A"), tensor(vec![1, dim])), (name("B"), tensor(vec![dim, 1]))];
        safetensors::serialize_to_file(pair, None, &path).unwrap();
        let adapter = model.adapter(&path).unwrap();
        (model, adapter)
    }

    fn request(adapter: &Arc<Adapter>, strength: f32) -> Request {
        let adapters = vec![AdapterUse::new(Arc::clone(adapter), strength)];
        Request { width: Some(32), height: Some(32), steps: Some(1), adapters, ..Request::new("a cat", 1) }
    }

    #[test]
    fn factors_are_where_memory_or_the_caller_wants_them_and_their_time_is_told() {
        let (model, adapter) = adapted_model();
        let prepared = |strength| {
            let request = request(&adapter, strength);
            let mut session = model.session(&request, 1, &CancelFlag::default()).unwrap();
            session.prepare(&mut |_| {}).unwrap();
            let (remark, placement) = (session.adapter_remark().map(String::from), session.adapter_placement());
            (remark, placement, session.finish().unwrap())
        };
        let (remark, placement, timings) = prepared(1.0);
        assert_eq!(remark.unwrap(), "adapters: not merged into the weights of 1 layers", "the CPU merges no factors");
        assert_eq!(placement, Some(Placement::Unmerged));
        assert!(timings.factors_s > 0.0, "{timings:?}");
        let (_, _, timings) = prepared(1.0);
        assert_eq!((timings.factors_s, timings.merge_s), (0.0, 0.0), "the set is cached");
        model.place_adapters(Some(Placement::Unmerged));
        let (remark, _, timings) = prepared(1.0);
        assert!(remark.unwrap().ends_with(", as requested"));
        assert!(timings.factors_s > 0.0 && timings.merge_s == 0.0, "{timings:?}");
        assert_eq!(prepared(0.0).1, None);
    }

    #[test]
    fn the_last_sets_are_cached_and_their_steps_leave_with_them() {
        let (model, adapter) = adapted_model();
        let make = |strength| model.generate(&request(&adapter, strength)).unwrap().rgb;
        let counts = || (model.residency.adapted.len(), model.residency.steps.len());
        let base = make(0.0);
        assert_eq!(counts(), (0, 1), "strength 0 is the model itself");
        let first = make(1.0);
        assert_eq!(counts(), (1, 2));
        make(2.0);
        make(3.0);
        assert_eq!(counts(), (3, 4));
        let least = model.residency.adapted.pop_if_full().expect("one more would be too many").0;
        assert!(model.residency.adapted.pop_if_full().is_none());
        model.residency.forget(Some(least));
        assert_eq!(counts(), (2, 3), "its steps are removed with it");
        make(1.0);
        make(4.0);
        assert_eq!(counts().0, 3, "the least recently used is removed");
        assert!(make(1.0) == first && make(0.0) == base, "others change neither");
        model.residency.make_room(u64::MAX, Component::Transformer);
        assert_eq!(counts(), (0, 0));
        assert!(make(1.0) == first);
        assert!(
            model
                .plan(&Request { adapters: vec![AdapterUse::new(adapter, f32::NAN)], ..Request::new("a", 1) })
                .is_err()
        );
    }
}
