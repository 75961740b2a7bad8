//! What devices say of their batches, in the order of the images.

use std::collections::BTreeMap;
use std::mem;

pub(super) enum Output<T> {
    /// Something that comes in the order of the images.
    Item(T),
    /// All was said of a batch of so many images.
    End(usize),
}

/// Holds back what is said of later batches until all was said of those before.
pub(super) struct Order<T> {
    /// The first image of the batch that is heard now.
    next: usize,
    later: BTreeMap<usize, Vec<Output<T>>>,
}

impl<T> Order<T> {
    pub(super) fn new() -> Self {
        Self { next: 0, later: BTreeMap::new() }
    }

    /// Whether the batch whose first image is `first` is heard now.
    pub(super) fn hears(&self, first: usize) -> bool {
        first == self.next
    }

    /// What may be handed on once this was said of the batch whose first image is `first`.
    pub(super) fn sort(&mut self, first: usize, output: Output<T>) -> Vec<T> {
        self.later.entry(first).or_default().push(output);
        let mut items = Vec::new();
        while let Some(said) = self.later.remove(&self.next) {
            let mut end = None;
            for output in said {
                match output {
                    Output::Item(item) => items.push(item),
                    Output::End(images) => end = Some(images),
                }
            }
            let Some(images) = end else { break };
            self.next += images;
        }
        items
    }

    /// What was held back of batches that come to no end, in the order of the images.
    pub(super) fn rest(&mut self) -> Vec<T> {
        let item = |output| match output {
            Output::Item(item) => Some(item),
            Output::End(_) => None,
        };
        mem::take(&mut self.later).into_values().flatten().filter_map(item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_batches_wait_for_all_of_the_first() {
        let mut order = Order::new();
        for (first, output, expected) in [
            (2, Output::Item("c"), &[][..]),
            (0, Output::Item("a"), &["a"]),
            (2, Output::Item("d"), &[]),
            (4, Output::Item("e"), &[]),
            (2, Output::End(2), &[]),
            (0, Output::Item("b"), &["b"]),
            (0, Output::End(2), &["c", "d", "e"]),
            (4, Output::Item("f"), &["f"]),
            (4, Output::End(1), &[]),
        ] {
            assert_eq!(order.sort(first, output), expected);
        }
        assert!(order.hears(5) && !order.hears(4));
        for (first, item) in [(7, "h"), (6, "g"), (7, "i")] {
            assert!(order.sort(first, Output::Item(item)).is_empty());
        }
        assert_eq!(order.rest(), ["g", "h", "i"]);
    }
}
