//! Where the changes of adapters are.

/// Where a transformer has the changes of low rank that adapters make. Changes of other kinds are always merged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// They are added to copies of the weights, where the backend does that. Steps cost nothing more.
    Merged,
    /// They are products of their own beside those of the weights, and take little memory.
    Beside,
}

impl Placement {
    /// In words, where `layers` have factors beside their weight; `is_wish` says that memory was not asked.
    pub(crate) fn remark(self, layers: usize, is_wish: bool) -> String {
        if layers == 0 {
            return "adapters: merged into copies of the weights that they change".to_string();
        }
        let why = match self {
            Self::Merged => "",
            Self::Beside if is_wish => ", as was asked for",
            Self::Beside => ", for want of memory for merged copies",
        };
        format!("adapters: beside the weights of {layers} layers{why}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_said_of_a_placement() {
        let remark = |placement: Placement, layers, is_wish| placement.remark(layers, is_wish);
        assert!(remark(Placement::Merged, 0, false).contains("merged into copies"));
        assert!(remark(Placement::Beside, 3, false).ends_with("3 layers, for want of memory for merged copies"));
        assert!(remark(Placement::Beside, 3, true).ends_with("3 layers, as was asked for"));
    }
}
