//! Generation with several devices: together on one image, or each on its own images.
//!
//! [`parallel`] splits one image across a group of devices, [`replicas`] holds the model on several devices or
//! groups. Neither knows jobs or queues, which belong to [`engine`](crate::engine). Start reading at
//! [`replicas::Replicas`].

pub(crate) mod parallel;
pub(crate) mod replicas;
