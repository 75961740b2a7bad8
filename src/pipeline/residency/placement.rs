//! Placement of the changes of adapters.

/// The placement of low-rank changes of adapters in a transformer. Changes of other kinds are always merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// Added to copies of the weights, if the backend supports it. Steps take no longer.
    Merged,
    /// Separate low-rank matrix multiplications besides those of the weights; takes little memory.
    Unmerged,
}

impl Placement {
    /// Returns the placement as text. `layers` layers have factors beside their weight; `is_wish` is `true` if the
    /// caller chose the placement.
    pub(crate) fn remark(self, layers: usize, is_wish: bool) -> String {
        if layers == 0 {
            return "adapters: merged into copies of the weights that they change".to_string();
        }
        let why = match self {
            Self::Merged => "",
            Self::Unmerged if is_wish => ", as requested",
            Self::Unmerged => ", because there is no memory for merged copies",
        };
        format!("adapters: not merged into the weights of {layers} layers{why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_placement() {
        let remark = |placement: Placement, layers, is_wish| placement.remark(layers, is_wish);
        assert!(remark(Placement::Merged, 0, false).contains("merged into copies"));
        assert!(
            remark(Placement::Unmerged, 3, false).ends_with("3 layers, because there is no memory for merged copies")
        );
        assert!(remark(Placement::Unmerged, 3, true).ends_with("3 layers, as requested"));
    }
}
