//! Flags for signed images.

use std::path::PathBuf;
use std::sync::Arc;

use clap::Args;
use flux::Result;
use flux::output::Sign;
#[cfg(not(feature = "c2pa"))]
use flux::{Error, error::Field};

use super::OUTPUT;
use super::values::path;

/// Flags for signed manifests.
#[derive(Args, Clone)]
pub struct SignArgs {
    /// Sign images with a C2PA manifest: certificate chain, in PEM
    ///
    /// The signer's certificate comes first, and must not be self-signed. The manifest states that a model made the
    /// image, and the digests of input images. It is added last, so any later change breaks it. This needs a program
    /// that was built with the feature `c2pa`.
    #[arg(help_heading = OUTPUT, long, value_name = "FILE", requires = "sign_key", hide_short_help = true)]
    #[arg(value_parser = path())]
    sign_cert: Option<PathBuf>,
    /// Private key of --sign-cert: PKCS #8, in PEM
    #[arg(help_heading = OUTPUT, long, value_name = "FILE", requires = "sign_cert", hide_short_help = true)]
    #[arg(value_parser = path())]
    sign_key: Option<PathBuf>,
}

impl SignArgs {
    /// Returns `true` if images are signed.
    pub fn is_on(&self) -> bool {
        self.sign_cert.is_some()
    }

    /// Opens the certificate and the key.
    ///
    /// Errors if they cannot sign, or if the program was built without the feature `c2pa`.
    pub fn signer(&self) -> Result<Option<Arc<dyn Sign>>> {
        match self.sign_cert.as_ref().zip(self.sign_key.as_ref()) {
            None => Ok(None),
            #[cfg(feature = "c2pa")]
            Some((chain, key)) => Ok(Some(Arc::new(flux_provenance::Signer::open(chain, key)?))),
            #[cfg(not(feature = "c2pa"))]
            Some(_) => Err(without_c2pa(Field::SignCert)),
        }
    }
}

/// The error of a flag that needs the feature `c2pa`.
#[cfg(not(feature = "c2pa"))]
pub fn without_c2pa(field: Field) -> Error {
    Error::usage("this program was built without C2PA")
        .for_field(field)
        .hint("build it with `cargo build --release --features flux-cli/c2pa`")
}
