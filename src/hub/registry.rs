//! The models that have short names.

use super::licence::Licence;
use super::repository::Repository;

/// A model with a short name.
#[derive(Debug, PartialEq, Eq)]
pub struct Published {
    /// What it is called on the command line.
    pub name: &'static str,
    /// Other names of it.
    pub aliases: &'static [&'static str],
    /// Its repository on Hugging Face.
    pub repository: &'static str,
    /// The name of its licence, as the model's card has it.
    pub licence: &'static str,
    /// Whether someone must accept the licence, and send a token, before it can be fetched.
    pub is_gated: bool,
    /// Bytes of the files that `flux` reads, about.
    pub bytes: u64,
    /// The name of a folder of its own, as in `models/klein-4b`.
    pub folder: &'static str,
}

const APACHE: &str = "apache-2.0";
const NON_COMMERCIAL: &str = "flux-non-commercial-license";
const KOMMUNITY: &str = "FLUX Kommunity Licence";

/// All of them.
pub const PUBLISHED: &[Published] = &[
    Published {
        name: "4b",
        aliases: &["klein-4b", "flux2-klein-4b", "flux.2-klein-4b"],
        repository: "black-forest-labs/FLUX.2-klein-4B",
        licence: APACHE,
        is_gated: false,
        bytes: 16_000_000_000,
        folder: "klein-4b",
    },
    Published {
        name: "9b",
        aliases: &["klein-9b", "flux2-klein-9b", "flux.2-klein-9b"],
        repository: "black-forest-labs/FLUX.2-klein-9B",
        licence: NON_COMMERCIAL,
        is_gated: true,
        bytes: 35_000_000_000,
        folder: "klein-9b",
    },
    Published {
        name: "base-4b",
        aliases: &["klein-base-4b", "flux2-klein-base-4b", "flux.2-klein-base-4b"],
        repository: "black-forest-labs/FLUX.2-klein-base-4B",
        licence: APACHE,
        is_gated: false,
        bytes: 16_000_000_000,
        folder: "klein-base-4b",
    },
    Published {
        name: "base-9b",
        aliases: &["klein-base-9b", "flux2-klein-base-9b", "flux.2-klein-base-9b"],
        repository: "black-forest-labs/FLUX.2-klein-base-9B",
        licence: NON_COMMERCIAL,
        is_gated: true,
        bytes: 35_000_000_000,
        folder: "klein-base-9b",
    },
    Published {
        name: "9b-kv",
        aliases: &["klein-9b-kv", "flux2-klein-9b-kv", "flux.2-klein-9b-kv"],
        repository: "black-forest-labs/FLUX.2-klein-9b-kv",
        licence: NON_COMMERCIAL,
        is_gated: true,
        bytes: 35_000_000_000,
        folder: "klein-9b-kv",
    },
    Published {
        name: "flux3",
        aliases: &["flux3-klein", "flux-3-image-klein", "flux.3-klein"],
        repository: "black-forest-labs/flux-3-image-klein",
        licence: KOMMUNITY,
        is_gated: true,
        bytes: 20_000_000_000,
        folder: "flux3-klein",
    },
    Published {
        name: "flux3-base",
        aliases: &["flux3-klein-base", "flux-3-image-klein-base", "flux.3-klein-base"],
        repository: "black-forest-labs/flux-3-image-klein-base",
        licence: KOMMUNITY,
        is_gated: true,
        bytes: 20_000_000_000,
        folder: "flux3-klein-base",
    },
];

impl Published {
    /// The model of this name, in any case.
    pub fn named(name: &str) -> Option<&'static Self> {
        let is = |known: &&str| known.eq_ignore_ascii_case(name);
        PUBLISHED.iter().find(|model| is(&model.name) || model.aliases.iter().any(is))
    }

    /// The model of this repository.
    pub fn of_repository(repository: &Repository) -> Option<&'static Self> {
        PUBLISHED.iter().find(|model| model.repository.eq_ignore_ascii_case(repository.as_str()))
    }

    /// Its licence, and where it is to be read.
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
            assert_eq!(Published::of_repository(&repository), Some(model));
            assert_eq!(Published::named(&model.name.to_uppercase()), Some(model));
            assert!(model.aliases.contains(&model.folder), "{}", model.name);
            assert_eq!(model.licence().is_non_commercial, model.is_gated, "{}", model.name);
        }
    }
}
