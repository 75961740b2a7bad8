//! The licences of models, as their cards state them.

use std::fmt;

use serde::Serialize;

/// Words in the names of licences that forbid commercial use.
const NON_COMMERCIAL: [&str; 5] = ["non-commercial", "noncommercial", "-nc-", "research-only", "kommunity"];
/// Words in the names of licences with a separate clause for the output of models.
const OUTPUTS: [&str; 1] = ["kommunity"];
/// The max bytes of a value.
const LONGEST: usize = 200;

/// The licence of a model, as its card names it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Licence {
    /// The name of the licence.
    pub name: String,
    /// The address of its text, if known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link: Option<String>,
    /// `true` if its name says that it is for non-commercial use.
    pub is_non_commercial: bool,
    /// `true` if it has a separate clause for the output of the model.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub has_clause_for_outputs: bool,
}

impl Licence {
    /// Creates a licence of this name.
    pub fn new(name: &str, link: Option<String>) -> Self {
        let small = name.to_lowercase();
        let is_non_commercial = NON_COMMERCIAL.iter().any(|word| small.contains(word)) || small.ends_with("-nc");
        let has_clause_for_outputs = OUTPUTS.iter().any(|word| small.contains(word));
        Self { name: name.to_string(), link, is_non_commercial, has_clause_for_outputs }
    }

    /// Returns the licence that a card's metadata states: `license_name` if `license` is `other`, as on the hub.
    pub fn from_metadata(license: Option<&str>, name: Option<&str>, link: Option<&str>) -> Option<Self> {
        let is_said = |text: &&str| !text.is_empty() && text.len() <= LONGEST;
        let license = license.filter(is_said);
        let own = name.filter(is_said).filter(|_| license.is_none_or(|license| license == "other"));
        let link = link.filter(is_said).filter(|link| link.starts_with("https://")).map(String::from);
        Some(Self::new(own.or(license)?, link))
    }

    /// Returns the licence that a card's text states, in the lines between the first two `---`.
    pub fn from_card(card: &str) -> Option<Self> {
        let mut lines = card.lines();
        lines.next().filter(|line| line.trim() == "---")?;
        let lines: Vec<&str> = lines.take_while(|line| line.trim() != "---").collect();
        let value = |key: &str| {
            let line = lines.iter().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
            Some(line.trim().trim_matches(['"', '\'']))
        };
        Self::from_metadata(value("license"), value("license_name"), value("license_link"))
    }
}

impl fmt::Display for Licence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)?;
        if self.is_non_commercial {
            f.write_str(", for non-commercial use")?;
        }
        if self.has_clause_for_outputs {
            f.write_str(" with a clause for outputs")?;
        }
        self.link.as_ref().map_or(Ok(()), |link| write!(f, ", {link}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cards_tell_licences() {
        let card = "---\nlanguage:\n- en\nlicense: other\nlicense_name: \"flux-non-commercial-license\"\n\
                    license_link: https://example.org/LICENSE.md\n---\n\nlicense: mit\n";
        let licence = Licence::from_card(card).unwrap();
        assert!(licence.is_non_commercial);
        assert_eq!(
            licence.to_string(),
            "flux-non-commercial-license, for non-commercial use, https://example.org/LICENSE.md"
        );
        let free = Licence::from_card("---\nlicense: apache-2.0\nlicense_link: LICENSE.md\n---\n").unwrap();
        assert_eq!((free.to_string().as_str(), free.is_non_commercial), ("apache-2.0", false));
        for none in ["", "# a model\nlicense: mit\n", "---\nlicense:\n---\n", "---\nlicences: mit\n---"] {
            assert_eq!(Licence::from_card(none), None, "{none}");
        }
        assert!(Licence::new("cc-by-nc-4.0", None).is_non_commercial);
        assert!(!Licence::new("mit", None).is_non_commercial);
    }
}
