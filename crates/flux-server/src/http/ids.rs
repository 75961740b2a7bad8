//! IDs of jobs, files and requests.

/// Returns an unguessable ID of 128 random bits.
pub fn new_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}
