//! The table of models with short names.

use super::licence::Licence;
use super::repository::Repository;

/// A model with a short name.
#[derive(Debug, PartialEq, Eq)]
pub struct Published {
    /// The name on the command line.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// The repository on Hugging Face.
    pub repository: &'static str,
    /// The name of the licence, as on the model's card.
    pub licence: &'static str,
    /// `true` if a download requires accepting the licence and sending a token.
    pub is_gated: bool,
    /// The approximate bytes of the files that `flux` reads.
    pub bytes: u64,
    /// The name of the model's own folder, as in `models/klein-4b`: the first alias.
    pub folder: &'static str,
}

/// Licences, with `true` for models that are gated.
const APACHE: (&str, bool) = ("apache-2.0", false);
const NON_COMMERCIAL: (&str, bool) = ("flux-non-commercial-license", true);
const KOMMUNITY: (&str, bool) = ("FLUX Kommunity Licence", true);

/// All models with short names.
#[rustfmt::skip]
pub const PUBLISHED: &[Published] = &[
    published("4b", &["klein-4b", "flux2-klein-4b", "flux.2-klein-4b"],
        "black-forest-labs/FLUX.2-klein-4B", APACHE, 16),
    published("9b", &["klein-9b", "flux2-klein-9b", "flux.2-klein-9b"],
        "black-forest-labs/FLUX.2-klein-9B", NON_COMMERCIAL, 35),
    published("base-4b", &["klein-base-4b", "flux2-klein-base-4b", "flux.2-klein-base-4b"],
        "black-forest-labs/FLUX.2-klein-base-4B", APACHE, 16),
    published("base-9b", &["klein-base-9b", "flux2-klein-base-9b", "flux.2-klein-base-9b"],
        "black-forest-labs/FLUX.2-klein-base-9B", NON_COMMERCIAL, 35),
    published("9b-kv", &["klein-9b-kv", "flux2-klein-9b-kv", "flux.2-klein-9b-kv"],
        "black-forest-labs/FLUX.2-klein-9b-kv", NON_COMMERCIAL, 35),
    published("flux3", &["flux3-klein", "flux-3-image-klein", "flux.3-klein"],
        "black-forest-labs/flux-3-image-klein", KOMMUNITY, 20),
    published("flux3-base", &["flux3-klein-base", "flux-3-image-klein-base", "flux.3-klein-base"],
        "black-forest-labs/flux-3-image-klein-base", KOMMUNITY, 20),
];

const fn published(
    name: &'static str,
    aliases: &'static [&'static str],
    repository: &'static str,
    (licence, is_gated): (&'static str, bool),
    gigabytes: u64,
) -> Published {
    Published { name, aliases, repository, licence, is_gated, bytes: gigabytes * 1_000_000_000, folder: aliases[0] }
}

impl Published {
    /// Returns the model of this name, in any case.
    pub fn named(name: &str) -> Option<&'static Self> {
        let is = |known: &&str| known.eq_ignore_ascii_case(name);
        PUBLISHED.iter().find(|model| is(&model.name) || model.aliases.iter().any(is))
    }

    /// Returns the model of this repository.
    pub fn for_repository(repository: &Repository) -> Option<&'static Self> {
        PUBLISHED.iter().find(|model| model.repository.eq_ignore_ascii_case(repository.as_str()))
    }

    /// Returns the licence, with the address of its text.
    pub fn licence(&self) -> Licence {
        let link = format!("https://huggingface.co/{}/blob/main/LICENSE.md", self.repository);
        Licence::new(self.licence, Some(link))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_of_one_model_and_every_repository_is_one() {
        let names: Vec<&str> =
            PUBLISHED.iter().flat_map(|model| [model.name].into_iter().chain(model.aliases.iter().copied())).collect();
        for name in &names {
            assert_eq!(names.iter().filter(|other| other.eq_ignore_ascii_case(name)).count(), 1, "{name}");
        }
        for model in PUBLISHED {
            let repository = Repository::parse(model.repository).expect("a repository");
            assert_eq!(Published::for_repository(&repository), Some(model));
            assert_eq!(Published::named(&model.name.to_uppercase()), Some(model));
            assert_eq!(model.licence().is_non_commercial, model.is_gated, "{}", model.name);
        }
    }
}
