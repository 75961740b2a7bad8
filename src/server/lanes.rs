//! When work is done that several devices share: each takes the next of it when it is free.

/// When each device is free, in seconds from now; none once something of unknown length is before them.
#[derive(Debug, Clone)]
pub struct Lanes(Option<Vec<f64>>);

impl Lanes {
    /// Devices that are free now.
    pub fn new(devices: usize) -> Self {
        Self(Some(vec![0.0; devices.max(1)]))
    }

    /// Gives work of so many seconds to the device that is free first. Returns when it is done, where that is known.
    pub fn give(&mut self, seconds: Option<f64>) -> Option<f64> {
        let Some(seconds) = seconds else {
            self.0 = None;
            return None;
        };
        let first = self.0.as_mut()?.iter_mut().min_by(|a, b| a.total_cmp(b))?;
        *first += seconds;
        Some(*first)
    }

    /// When all of it is done, where that is known.
    pub fn end(&self) -> Option<f64> {
        self.0.as_ref()?.iter().copied().reduce(f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_share_what_is_to_be_done() {
        let done = |devices: usize, all: &[f64]| {
            let mut lanes = Lanes::new(devices);
            (all.iter().map(|seconds| lanes.give(Some(*seconds)).unwrap()).collect::<Vec<_>>(), lanes.end())
        };
        assert_eq!(done(1, &[1.0, 2.0, 3.0]), (vec![1.0, 3.0, 6.0], Some(6.0)));
        assert_eq!(done(2, &[4.0, 1.0, 1.0, 1.0]), (vec![4.0, 1.0, 2.0, 3.0], Some(4.0)));
        assert_eq!(done(0, &[1.0, 1.0]), (vec![1.0, 2.0], Some(2.0)), "there is at least one");
    }

    #[test]
    fn what_is_behind_something_unknown_is_unknown() {
        let mut lanes = Lanes::new(2);
        assert_eq!((lanes.give(Some(1.0)), lanes.give(None), lanes.give(Some(1.0))), (Some(1.0), None, None));
        assert_eq!(lanes.end(), None);
    }
}
