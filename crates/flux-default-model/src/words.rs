//! Words that the default model was trained on: names of the things that it generates, and words that describe them.

use std::collections::HashSet;

use serde::Deserialize;

/// The things that it generates, with all their names.
const CONCEPTS: &str = include_str!("../../../models/tiny/concepts.json");
/// Shapes, colours and numbers, as in `scripts/train_tiny/vocabulary.py`.
const DRAWN: &str = "circle disc square triangle rectangle oval ellipse diamond rhombus star heart pentagon hexagon cross \
                     plus ring donut crescent arrow red orange yellow green blue purple pink brown black white gray grey \
                     cyan lavender beige teal violet turquoise navy charcoal cream maroon mint two three four five six \
                     pair background emoji";
/// Words of instructions, as in `scripts/train_tiny/instructions.py`.
const EDITS: &str = "make turn paint recolor recolour color colour change put set replace swap instead add place draw \
                     insert remove delete take erase rid leave without same move shift larger bigger enlarge increase \
                     size smaller shrink reduce arrange both side first second image object left right top bottom upper \
                     lower corner center centre middle above below under over inside";
/// Parts of names that mean nothing by themselves.
const EMPTY: [&str; 14] = [
    "with", "the", "and", "for", "its", "out", "from", "into", "has", "one", "off", "that", "are",
    "die", // "the" in German
];
/// The min characters of a word; shorter words occur in every language.
const SHORTEST: usize = 3;

#[derive(Deserialize)]
struct Concept {
    name: String,
    plural: Option<String>,
    others: Vec<String>,
}

/// Returns `true` if the model knows a word of `text`; if it `changes` images, words of instructions count as well.
pub fn knows_a_word_of(text: &str, changes: bool) -> bool {
    // The file is embedded in the program, and a test reads it.
    let concepts: Vec<Concept> = serde_json::from_str(CONCEPTS).unwrap_or_default();
    let names = concepts.iter().flat_map(|concept| concept.others.iter().chain([&concept.name]).chain(&concept.plural));
    let edits = if changes { EDITS } else { "" };
    let known: HashSet<String> = names.map(String::as_str).chain([DRAWN, edits]).flat_map(words).collect();
    words(text).any(|word| known.contains(&word) || word.strip_suffix('s').is_some_and(|one| known.contains(one)))
}

fn words(text: &str) -> impl Iterator<Item = String> {
    let words = text.split(|c: char| !c.is_alphabetic()).map(str::to_lowercase);
    words.filter(|word| word.chars().count() >= SHORTEST && !EMPTY.contains(&word.as_str()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_that_the_model_was_made_for_have_words_that_it_knows() {
        assert_eq!(serde_json::from_str::<Vec<Concept>>(CONCEPTS).unwrap().len(), 427);
        for prompt in include_str!("../../../docs/gallery.txt").lines() {
            assert!(knows_a_word_of(prompt, false), "{prompt}");
        }
        for line in include_str!("../../../docs/edits.txt").lines() {
            let (edit, prompt) = line.split_once(" | ").unwrap();
            assert!(knows_a_word_of(edit, true) && knows_a_word_of(prompt, false), "{line}");
        }
        for prompt in ["THREE ORANGE CATS", "hearts", "a moon", "ein Ring"] {
            assert!(knows_a_word_of(prompt, false), "{prompt}");
        }
    }

    #[test]
    fn other_languages_and_other_worlds_are_unknown() {
        for prompt in [
            "ein roter Kreis auf blauem Grund",
            "un chat noir sur fond jaune",
            "красный круг",
            "赤い丸",
            "a lighthouse at dawn, watercolour",
            "die Katze sitzt im Garten",
            "cyberpunk samurai, 8k, masterpiece",
            "qwertz",
            "123",
        ] {
            assert!(!knows_a_word_of(prompt, false), "{prompt}");
        }
        assert!(knows_a_word_of("make it nicer", true) && !knows_a_word_of("make it nicer", false));
        assert!(!knows_a_word_of("mach es schöner", true));
    }
}
