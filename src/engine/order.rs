//! Sorting of batch events into the order of the images.

use std::collections::BTreeMap;
use std::mem;

pub(super) enum Output<T> {
    /// An item to sort.
    Item(T),
    /// The end of a batch of this number of images.
    End(usize),
}

/// Holds back items of later batches until all earlier batches have ended.
pub(super) struct Order<T> {
    /// First image of the current batch.
    next: usize,
    later: BTreeMap<usize, Vec<Output<T>>>,
}

impl<T> Order<T> {
    pub(super) fn new() -> Self {
        Self { next: 0, later: BTreeMap::new() }
    }

    /// Returns `true` if the batch with the first image `first` is the current one.
    pub(super) fn is_current(&self, first: usize) -> bool {
        first == self.next
    }

    /// Adds an output of the batch with the first image `first`. Returns the items that are now in order.
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

    /// Returns held-back items of batches that do not end, in the order of the images.
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
        assert!(order.is_current(5) && !order.is_current(4));
        for (first, item) in [(7, "h"), (6, "g"), (7, "i")] {
            assert!(order.sort(first, Output::Item(item)).is_empty());
        }
        assert_eq!(order.rest(), ["g", "h", "i"]);
    }
}
