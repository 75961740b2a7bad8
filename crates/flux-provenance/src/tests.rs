use std::fs;
use std::path::PathBuf;

use c2pa::Relationship;
use flux_media::Rgb;
use flux_media::metadata::Metadata;
use flux_media::output::encode;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair, KeyUsagePurpose,
};
use rcgen::{PKCS_ECDSA_P256_SHA256, PKCS_ECDSA_P384_SHA384, PKCS_ED25519, SignatureAlgorithm};

use super::*;

const FORMATS: [ImageFormat; 3] = [ImageFormat::Png, ImageFormat::Jpeg, ImageFormat::Webp];

/// A chain of two certificates and the key of the first one, as files.
struct Chain {
    folder: tempfile::TempDir,
    authority: String,
}

impl Chain {
    fn new(algorithm: &'static SignatureAlgorithm) -> Self {
        let (key, authority_key) = (KeyPair::generate_for(algorithm).unwrap(), KeyPair::generate().unwrap());
        let mut authority_params = named("a test authority");
        authority_params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        authority_params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let authority = authority_params.self_signed(&authority_key).unwrap();
        let mut params = named("a test signer");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::EmailProtection];
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::new(authority_params, &authority_key);
        let signer = params.signed_by(&key, &issuer).unwrap();
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("chain.pem"), signer.pem() + &authority.pem()).unwrap();
        fs::write(folder.path().join("key.pem"), key.serialize_pem()).unwrap();
        Self { folder, authority: authority.pem() }
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn signer(&self) -> Signer {
        Signer::open(&self.file("chain.pem"), &self.file("key.pem")).unwrap()
    }
}

fn named(name: &str) -> CertificateParams {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.distinguished_name.push(DnType::CommonName, name);
    params.distinguished_name.push(DnType::OrganizationName, "flux tests");
    params
}

fn image(format: ImageFormat) -> Vec<u8> {
    let bytes = (0..48 * 32 * 3).map(|value| value as u8).collect();
    let metadata = Metadata {
        recipe: Some("{}".to_string()),
        source: Some(DigitalSource::TrainedAlgorithmicMedia),
        ..Metadata::default()
    };
    encode(&Rgb { width: 48, height: 32, bytes }, format, &metadata).unwrap()
}

fn read(file: &[u8]) -> Reader {
    Reader::from_context(Context::new()).with_stream("image/png", Cursor::new(file)).unwrap()
}

fn generated() -> Claim {
    Claim { source: DigitalSource::TrainedAlgorithmicMedia, inputs: Vec::new(), is_edit: false }
}

#[test]
fn a_signed_file_has_the_same_pixels_and_is_trusted_with_its_authority() {
    for algorithm in [&PKCS_ECDSA_P256_SHA256, &PKCS_ECDSA_P384_SHA384, &PKCS_ED25519] {
        let chain = Chain::new(algorithm);
        let signer = chain.signer();
        for format in FORMATS {
            let file = image(format);
            let signed = signer.sign(&file, format, &generated()).unwrap();
            assert_eq!(
                flux_media::input::pixel_digest(&signed).unwrap(),
                flux_media::input::pixel_digest(&file).unwrap()
            );
            assert!(flux_media::metadata::said_by(&signed).unwrap().recipe.is_some(), "{format}");
            assert_eq!(check(&signed, format, None).unwrap(), Manifest::Untrusted, "{format} {algorithm:?}");
            assert_eq!(check(&signed, format, Some(&chain.authority)).unwrap(), Manifest::Trusted, "{format}");
            let other = Chain::new(algorithm).authority;
            assert_eq!(check(&signed, format, Some(&other)).unwrap(), Manifest::Untrusted, "{format}");
        }
    }
}

#[test]
fn any_changed_byte_of_a_signed_file_breaks_the_manifest() {
    let signer = Chain::new(&PKCS_ED25519).signer();
    for format in FORMATS {
        let signed = signer.sign(&image(format), format, &generated()).unwrap();
        // Within the pixels, which end each file.
        let mut changed = signed.clone();
        let place = changed.len() - 40;
        changed[place] ^= 1;
        assert!(matches!(check(&changed, format, None).unwrap(), Manifest::Broken(_)), "{format}");
        assert!(matches!(check(&signed[..signed.len() / 2], format, None).unwrap(), Manifest::Broken(_)), "{format}");
    }
    assert!(
        matches!(check(&image(ImageFormat::Png), ImageFormat::Png, None).unwrap(), Manifest::Broken(_)),
        "unsigned"
    );
}

#[test]
fn a_manifest_names_the_source_and_the_inputs() {
    let signer = Chain::new(&PKCS_ECDSA_P256_SHA256).signer();
    let claim = Claim {
        source: DigitalSource::CompositeWithTrainedAlgorithmicMedia,
        inputs: vec!["sha256:aa".to_string(), "sha256:bb".to_string()],
        is_edit: true,
    };
    let format = ImageFormat::Png;
    let signed = signer.sign(&image(format), format, &claim).unwrap();
    assert_eq!(check(&signed, format, None).unwrap(), Manifest::Untrusted);
    let reader = read(&signed);
    let manifest = reader.active_manifest().unwrap();
    let ingredients: Vec<_> = manifest
        .ingredients()
        .iter()
        .map(|input| (input.instance_id().to_string(), input.relationship().clone()))
        .collect();
    let expected = [("sha256:aa", Relationship::ParentOf), ("sha256:bb", Relationship::InputTo)];
    assert_eq!(ingredients, expected.map(|(digest, relation)| (digest.to_string(), relation)));
    let json: Value = serde_json::from_str(&reader.json()).unwrap();
    let actions = json.to_string();
    assert!(actions.contains("c2pa.opened") && actions.contains("c2pa.edited"), "{json:#}");
    assert!(actions.contains("digitalsourcetype/compositeWithTrainedAlgorithmicMedia"), "{json:#}");

    let signed = signer.sign(&image(format), format, &Claim { is_edit: false, inputs: Vec::new(), ..claim }).unwrap();
    let json = read(&signed).json();
    assert!(json.contains("c2pa.created") && !json.contains("c2pa.opened"), "{json}");
}

#[test]
fn files_that_cannot_sign_are_named_by_their_field() {
    let chain = Chain::new(&PKCS_ED25519);
    let other = Chain::new(&PKCS_ED25519);
    let (cert, key) = (chain.file("chain.pem"), chain.file("key.pem"));
    let missing = chain.file("missing.pem");
    let own = chain.file("own.pem");
    let own_key = KeyPair::generate().unwrap();
    fs::write(&own, named("itself").self_signed(&own_key).unwrap().pem()).unwrap();
    fs::write(chain.file("own-key.pem"), own_key.serialize_pem()).unwrap();
    for (cert, key, field) in [
        (&missing, &key, Field::SignCert),
        (&cert, &missing, Field::SignKey),
        (&cert, &cert, Field::SignKey),
        (&cert, &other.file("key.pem"), Field::SignCert),
        (&own, &chain.file("own-key.pem"), Field::SignCert),
    ] {
        let error = Signer::open(cert, key).unwrap_err();
        assert_eq!(error.field(), Some(field), "{cert:?} {key:?}: {error}");
    }
    let error = check(&image(ImageFormat::Png), ImageFormat::Png, Some("no certificate")).map_err(|e| e.field());
    assert_eq!(error, Err(Some(Field::Trust)));
}
