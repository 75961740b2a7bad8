//! Names of jobs, files and requests.

/// A name that nobody guesses: 128 random bits.
pub fn new_id() -> String {
    format!("{:032x}", rand::random::<u128>())
}
