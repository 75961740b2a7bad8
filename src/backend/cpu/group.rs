//! Groups of CPU backends, which stand for several devices. They share the memory of the process, so ranks exchange
//! views.

use std::sync::Arc;
use std::time::Duration;

use super::{Cpu, Precision};
use crate::backend::member::{self, Member};
use crate::error::{Error, Result};
use crate::tensor::Tensor;

impl Cpu {
    /// Default timeout of a rank of a group that waits in a collective.
    pub const GROUP_LIMIT: Duration = member::LIMIT;

    /// Creates the ranks of a group of `world` backends that generate one image together, in order. Use each from its
    /// own thread outside of rayon: they wait for each other, at most `limit` in a collective, and `60 * limit` if one
    /// of them may be loading weights.
    ///
    /// Errors if `world` is 0.
    pub fn group(precision: Precision, world: usize, limit: Duration) -> Result<Vec<Self>> {
        match world {
            0 => Err(Error::usage("a group of 0 devices cannot generate images")),
            1 => Ok(vec![Self::new(precision)]),
            _ => Ok(Member::group(world, limit, None)
                .map(|m| Self { member: Some(Arc::new(m)), ..Self::new(precision) })
                .collect()),
        }
    }

    /// Implements [`Group::exchange`](crate::backend::Group::exchange): ranks exchange views.
    pub(super) fn exchange_views(&self, op: &'static str, sent: Vec<Parcels>) -> Result<Vec<Parcels>> {
        let Some(member) = &self.member else { return Ok(sent) };
        // A view that waits in the group must not hold a member, or other ranks couldn't notice that the member was
        // dropped.
        let nowhere = Self::new(self.precision);
        let on = |backend: &Self, all: Vec<Parcels>| -> Vec<Parcels> {
            all.into_iter().map(|parcels| parcels.iter().map(|x| x.view_on(backend)).collect()).collect()
        };
        Ok(on(self, member.exchange(op, on(&nowhere, sent))?))
    }
}

/// The tensors that one rank sends to another one.
type Parcels = Vec<Tensor<Cpu>>;
