//! A cache of the graphs of repeated work, by the shape of the work.

use std::hash::Hash;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use lru::LruCache;
use parking_lot::Mutex;

use super::{Backend, Participants};
use crate::error::Result;
use crate::tensor::Tensor;

/// The most recently used shapes of one kind of work, each with its graph and its operands (`R`).
pub struct GraphCache<K, R, B: Backend> {
    doers: Participants,
    entries: Mutex<LruCache<K, Arc<RepeatedWork<R, B>>>>,
}

impl<K: Clone + Eq + Hash, R: Send + Sync + 'static, B: Backend> GraphCache<K, R, B> {
    /// Creates a cache of `capacity` shapes of work done by `doers`.
    pub fn new(capacity: NonZeroUsize, doers: Participants) -> Self {
        Self { doers, entries: Mutex::new(LruCache::new(capacity)) }
    }

    /// Returns the cached work with a shape and operands that `fits` accepts, and marks it as the most recently used.
    pub fn find(&self, fits: impl Fn(&K, &Arc<R>) -> bool) -> Option<Arc<RepeatedWork<R, B>>> {
        let mut entries = self.entries.lock();
        let key = entries.iter().find(|(key, work)| fits(key, &work.reads))?.0.clone();
        entries.get(&key).cloned()
    }

    /// Adds work of a new shape; a full cache drops the least recently used.
    pub fn insert(&self, key: K, reads: Arc<R>) -> Arc<RepeatedWork<R, B>> {
        let work = Arc::new(RepeatedWork {
            reads,
            doers: self.doers,
            was_run: AtomicBool::new(false),
            graph: Mutex::new(Some(B::Graph::default())),
        });
        // Dropping a graph waits for the device, so release the lock first.
        let evicted = self.entries.lock().push(key, Arc::clone(&work));
        drop(evicted);
        work
    }

    /// Drops the entries with shapes for which `keeps` returns `false`.
    pub fn retain(&self, keeps: impl Fn(&K) -> bool) {
        let mut entries = self.entries.lock();
        let gone: Vec<K> = entries.iter().map(|(key, _)| key).filter(|key| !keeps(key)).cloned().collect();
        let dropped: Vec<_> = gone.iter().filter_map(|key| entries.pop(key)).collect();
        drop(entries);
        drop(dropped);
    }

    /// Drops all entries. Running work is dropped when it ends.
    pub fn clear(&self) {
        let mut entries = self.entries.lock();
        let dropped: Vec<_> = std::iter::from_fn(|| entries.pop_lru()).collect();
        drop(entries);
        drop(dropped);
    }

    /// Returns the number of cached shapes.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.entries.lock().len()
    }
}

/// Work of one shape.
pub struct RepeatedWork<R, B: Backend> {
    reads: Arc<R>,
    doers: Participants,
    was_run: AtomicBool,
    /// `None` while a thread runs the graph.
    graph: Mutex<Option<B::Graph>>,
}

impl<R: Send + Sync + 'static, B: Backend> RepeatedWork<R, B> {
    /// Returns the operands of the work.
    pub fn reads(&self) -> &Arc<R> {
        &self.reads
    }

    /// Returns `true` if the work was run before. Only repeated work is worth a graph, because a graph holds memory as
    /// long as it lives.
    pub fn was_run(&self) -> bool {
        self.was_run.load(Ordering::Relaxed)
    }

    /// Runs `work(reads, inputs)`: as a graph if `graphed` is set and no other thread runs the graph at the same time.
    /// Work of all ranks of a group runs as a graph only if these conditions hold on every rank, because their memory
    /// and caches may differ.
    ///
    /// Errors as [`Device::run_graph`](super::Device::run_graph) and [`Group::gather_soon`](super::Group::gather_soon).
    pub fn run<const N: usize>(
        &self,
        backend: &B,
        graphed: bool,
        inputs: [&Tensor<B>; N],
        work: impl Fn(&R, [&Tensor<B>; N]) -> Result<Tensor<B>>,
    ) -> Result<Tensor<B>> {
        self.was_run.store(true, Ordering::Relaxed);
        let graphed = graphed && self.graph.lock().is_some();
        let graphed = match self.doers {
            Participants::All => backend.gather_soon("work", u64::from(graphed))?.iter().all(|graphed| *graphed == 1),
            Participants::One => graphed,
        };
        // Take the graph out, so that no thread waits for the lock while another one computes.
        let taken = if graphed { self.graph.lock().take() } else { None };
        let Some(mut graph) = taken else { return work(&self.reads, inputs) };
        let result = backend.run_graph(&mut graph, self.doers, &self.reads, inputs, work);
        *self.graph.lock() = Some(graph);
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::Memory;
    use crate::backend::cpu::{Cpu, Precision};

    #[test]
    fn the_least_recently_used_shape_is_dropped() {
        let cache: GraphCache<u32, (), Cpu> = GraphCache::new(NonZeroUsize::new(2).unwrap(), Participants::All);
        let has = |key| cache.find(|found, _| *found == key).is_some();
        cache.insert(1, Arc::new(()));
        cache.insert(2, Arc::new(()));
        assert!(has(1));
        cache.insert(3, Arc::new(()));
        assert!(has(1) && has(3) && !has(2) && cache.len() == 2);
        cache.retain(|key| *key != 1);
        assert!(!has(1) && has(3));
        cache.clear();
        assert_eq!(cache.len(), 0);
    }

    #[test]
    fn work_that_runs_may_run_again_at_the_same_time() {
        let cpu = Cpu::new(Precision::F32);
        let cache: GraphCache<(), f32, Cpu> = GraphCache::new(NonZeroUsize::MIN, Participants::All);
        let work = cache.insert((), Arc::new(2.0));
        assert!(!work.was_run());
        let twice = |factor: &f32, [x]: [&Tensor<Cpu>; 1]| cpu.upload(&[factor * cpu.download(x)?[0]], 1, 1);
        let out = work.run(&cpu, true, [&cpu.upload(&[3.0], 1, 1).unwrap()], |_, [x]| {
            work.run(&cpu, true, [&work.run(&cpu, false, [x], twice)?], twice)
        });
        assert_eq!(cpu.download(&out.unwrap()).unwrap(), [12.0]);
        assert!(work.was_run());
    }
}
