//! C2PA manifests: signed statements about the origin of images, which [C2PA](https://c2pa.org) defines.
//!
//! This crate knows image files, and nothing of models. [`Signer`] adds manifests to files, and [`check`] verifies
//! them. It depends on many crates, so no default build has it: it belongs to the feature `c2pa` of `flux-cli`.

use std::fmt;
use std::fs;
use std::io::Cursor;
use std::path::Path;

use c2pa::settings::Settings;
use c2pa::validation_status::SIGNING_CREDENTIAL_UNTRUSTED;
use c2pa::{BoxedSigner, Builder, Context, Reader, SigningAlg, ValidationState, create_signer};
use flux_base::error::{Error, Field, Result};
use flux_media::metadata::DigitalSource;
use flux_media::output::{Claim, ImageFormat, Sign};
use serde_json::{Value, json};

/// The algorithms of keys, in the order in which they are tried: each accepts only keys of its own kind.
const ALGORITHMS: [SigningAlg; 5] =
    [SigningAlg::Es256, SigningAlg::Es384, SigningAlg::Es512, SigningAlg::Ed25519, SigningAlg::Ps256];

/// Signs files with the key of a certificate. It asks no time stamp server, so nothing is sent anywhere.
pub struct Signer {
    signer: BoxedSigner,
}

impl fmt::Debug for Signer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signer").field("algorithm", &self.signer.alg()).finish_non_exhaustive()
    }
}

impl Signer {
    /// Opens a certificate chain, with the signer's certificate first, and its private key in PKCS #8: PEM files.
    ///
    /// Errors if a file cannot be read, if the key has no algorithm that C2PA accepts, or if the certificate is not
    /// one for C2PA: it must not be self-signed, and the key must belong to it.
    pub fn open(chain: &Path, key: &Path) -> Result<Self> {
        let [chain_pem, key_pem] = [(chain, Field::SignCert), (key, Field::SignKey)].map(|(path, field)| {
            fs::read(path).map_err(|e| Error::new(format!("cannot read the file: {e}")).at_path(path).for_field(field))
        });
        let (chain_pem, key_pem) = (chain_pem?, key_pem?);
        let open = |algorithm| create_signer::from_keys(&chain_pem, &key_pem, algorithm, None).ok();
        let signer = ALGORITHMS.into_iter().find_map(open).ok_or_else(|| {
            Error::usage("the file has no private key for C2PA")
                .at_path(key)
                .for_field(Field::SignKey)
                .hint("expected PKCS #8 in PEM with a key for ES256, ES384, ES512, Ed25519 or PS256")
        })?;
        let signer = Self { signer };
        signer.try_out().map_err(|e| e.at_path(chain).for_field(Field::SignCert))?;
        Ok(signer)
    }

    /// Signs the smallest image, so that a certificate that C2PA refuses is an error before any work.
    fn try_out(&self) -> Result<()> {
        let pixel = flux_media::Rgb { width: 1, height: 1, bytes: vec![0; 3] };
        let file = flux_media::output::encode(&pixel, ImageFormat::Png, &Default::default())?;
        let source = DigitalSource::TrainedAlgorithmicMedia;
        let claim = Claim { source, inputs: Vec::new(), is_edit: false };
        let signed = self.sign(&file, ImageFormat::Png, &claim)?;
        match check(&signed, ImageFormat::Png, None)? {
            Manifest::Broken(why) => Err(Error::usage(format!(
                "C2PA does not accept the certificate and the key: {why}"
            ))
            .hint("the certificate must be issued by another one, for digital signatures of e-mail or documents")),
            Manifest::Untrusted | Manifest::Trusted => Ok(()),
        }
    }
}

impl Sign for Signer {
    fn sign(&self, file: &[u8], format: ImageFormat, claim: &Claim) -> Result<Vec<u8>> {
        let mut signed = Cursor::new(Vec::new());
        builder(claim)
            .and_then(|mut builder| {
                builder.sign(&*self.signer, format.media_type(), &mut Cursor::new(file), &mut signed).map(drop)
            })
            .map_err(|e| Error::new(format!("cannot add the C2PA manifest: {e}")))?;
        Ok(signed.into_inner())
    }
}

/// Creates the manifest of a claim. Inputs are named by their digests alone: names of files are private.
fn builder(claim: &Claim) -> c2pa::Result<Builder> {
    let agent = json!({ "name": "flux", "version": env!("CARGO_PKG_VERSION") });
    let ingredients: Vec<Value> = (claim.inputs.iter().enumerate())
        .map(|(index, digest)| {
            json!({
                "title": format!("input {}", index + 1),
                "label": format!("input-{}", index + 1),
                "instance_id": digest,
                "relationship": if claim.is_edit && index == 0 { "parentOf" } else { "inputTo" },
            })
        })
        .collect();
    let labels = |inputs: &[String], first: usize| {
        let labels = (first..first + inputs.len()).map(|index| Value::from(format!("input-{}", index + 1)));
        json!({ "ingredientIds": labels.collect::<Vec<_>>() })
    };
    let with = |action: &str, inputs: Value| {
        let source = claim.source.uri();
        let mut action = json!({ "action": action, "softwareAgent": agent, "digitalSourceType": source });
        if inputs["ingredientIds"].as_array().is_some_and(|labels| !labels.is_empty()) {
            action["parameters"] = inputs;
        }
        action
    };
    let (edited, others) = claim.inputs.split_at(usize::from(claim.is_edit).min(claim.inputs.len()));
    let actions = if edited.is_empty() {
        json!([with("c2pa.created", labels(others, 0))])
    } else {
        let opened = json!({ "action": "c2pa.opened", "parameters": labels(edited, 0) });
        json!([opened, with("c2pa.edited", labels(others, 1))])
    };
    let settings = json!({
        "verify": { "verify_after_sign": false, "remote_manifest_fetch": false },
        "builder": { "thumbnail": { "enabled": false } },
    });
    let settings = Settings::new().with_json(&settings.to_string())?;
    Builder::from_context(Context::new().with_settings(settings)?).with_definition(json!({
        "claim_generator_info": [agent],
        "ingredients": ingredients,
        "assertions": [{ "label": "c2pa.actions", "data": { "actions": actions } }],
    }))
}

/// The state of a file's manifest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Manifest {
    /// The signature holds, and a trusted authority issued the certificate.
    Trusted,
    /// The signature holds. No trusted authority issued the certificate, or none is known.
    Untrusted,
    /// The signature does not hold, for this reason.
    Broken(String),
}

/// Verifies the C2PA manifest of a file, with the certificates of trusted authorities in PEM if there are any. Nothing
/// is fetched from the network.
///
/// Errors if the certificates cannot be parsed.
pub fn check(file: &[u8], format: ImageFormat, trusted: Option<&str>) -> Result<Manifest> {
    let mut settings =
        json!({ "verify": { "verify_trust": true, "remote_manifest_fetch": false, "ocsp_fetch": false } });
    if let Some(trusted) = trusted {
        settings["trust"] = json!({ "trust_anchors": trusted });
    }
    let wrong = |e: c2pa::Error| Error::usage(format!("cannot read the certificates: {e}")).for_field(Field::Trust);
    let settings = Settings::new().with_json(&settings.to_string()).map_err(wrong)?;
    let context = Context::new().with_settings(settings).map_err(wrong)?;
    let reader = match Reader::from_context(context).with_stream(format.media_type(), Cursor::new(file)) {
        Ok(reader) => reader,
        Err(error) => return Ok(Manifest::Broken(error.to_string())),
    };
    Ok(match reader.validation_state() {
        ValidationState::Trusted => Manifest::Trusted,
        ValidationState::Valid => Manifest::Untrusted,
        ValidationState::Invalid => {
            let failures = reader.validation_results().and_then(|results| results.active_manifest());
            let codes = failures.into_iter().flat_map(|codes| codes.failure()).map(|failure| failure.code());
            let codes = codes.filter(|code| *code != SIGNING_CREDENTIAL_UNTRUSTED);
            Manifest::Broken(codes.collect::<Vec<_>>().join(", "))
        }
    })
}

#[cfg(test)]
mod tests;
