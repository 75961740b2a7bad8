//! What devices say of their batches, in the order of the images.

use std::collections::BTreeMap;

/// What a device says of the batch whose first image is `first`.
pub(super) struct BatchOutput<T> {
    pub(super) first: usize,
    pub(super) output: Output<T>,
}

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

    /// What may be handed on now, and how many batches ended by that.
    pub(super) fn sort(&mut self, output: BatchOutput<T>) -> (Vec<T>, usize) {
        self.later.entry(output.first).or_default().push(output.output);
        let (mut items, mut ended) = (Vec::new(), 0);
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
            ended += 1;
        }
        (items, ended)
    }

    /// What was held back of batches that come to no end, in the order of the images.
    pub(super) fn rest(self) -> Vec<T> {
        let item = |output| match output {
            Output::Item(item) => Some(item),
            Output::End(_) => None,
        };
        self.later.into_values().flatten().filter_map(item).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_batches_wait_for_all_of_the_first() {
        let mut order = Order::new();
        let mut sort = |first, output| order.sort(BatchOutput { first, output });
        assert_eq!(sort(2, Output::Item("c")), (vec![], 0));
        assert_eq!(sort(0, Output::Item("a")), (vec!["a"], 0));
        assert_eq!(sort(2, Output::Item("d")), (vec![], 0));
        assert_eq!(sort(4, Output::Item("e")), (vec![], 0));
        assert_eq!(sort(2, Output::End(2)), (vec![], 0));
        assert_eq!(sort(0, Output::Item("b")), (vec!["b"], 0));
        assert_eq!(sort(0, Output::End(2)), (vec!["c", "d", "e"], 2));
        assert_eq!(sort(4, Output::Item("f")), (vec!["f"], 0));
        assert_eq!(sort(4, Output::End(1)), (vec![], 1));
        assert!(order.hears(5) && !order.hears(4));
        for (first, item) in [(7, "h"), (6, "g"), (7, "i")] {
            assert_eq!(order.sort(BatchOutput { first, output: Output::Item(item) }), (vec![], 0));
        }
        assert_eq!(order.rest(), ["g", "h", "i"]);
    }
}
