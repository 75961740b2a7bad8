//! Groups of CPU backends. They stand for several devices: since they share the memory of the process, what a rank
//! gives another one is a view.

use std::sync::Arc;
use std::time::Duration;

use super::{Cpu, Precision};
use crate::backend::member::{self, Member};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

impl Cpu {
    /// How long a rank of a group waits for another one in a collective, unless someone has a reason for another limit.
    pub const GROUP_LIMIT: Duration = member::LIMIT;

    /// The ranks of a group of `world` backends that make one image together, in their order. Each is to be used by a
    /// thread of its own that is none of rayon's: they wait for each other, at most `limit` in a collective, and `60 *
    /// limit` where one of them may be loading weights.
    ///
    /// Errors when there are none.
    pub fn group(precision: Precision, world: usize, limit: Duration) -> Result<Vec<Self>> {
        match world {
            0 => Err(Error::usage("a group of 0 devices makes no image")),
            1 => Ok(vec![Self::new(precision)]),
            _ => Ok(Member::group(world, limit, None).map(|m| Self { precision, member: Some(Arc::new(m)) }).collect()),
        }
    }

    /// [`Group::exchange`](crate::backend::Group::exchange): what a rank gives another one is a view.
    pub(super) fn exchange_views(&self, op: &'static str, sent: Vec<Parcels>) -> Result<Vec<Parcels>> {
        let Some(member) = &self.member else { return Ok(sent) };
        // A view that waits in the group holds no member of it, whose drop the others are to notice.
        let nowhere = Self::new(self.precision);
        let on = |backend: &Self, all: Vec<Parcels>| -> Vec<Parcels> {
            all.into_iter().map(|parcels| parcels.iter().map(|x| x.view_on(backend)).collect()).collect()
        };
        Ok(on(self, member.exchange(op, on(&nowhere, sent))?))
    }
}

/// What one rank gives another one.
type Parcels = Vec<Tensor<Cpu>>;
