//! The commands in the documents that need a hub.

use super::*;
use crate::readme::text::{commands_in_text, is_of_hub};
use crate::readme::{DOCUMENTS, commands_in};

/// Replaces the words in capitals in a command by names.
fn filled(line: &str) -> Vec<String> {
    let word = |word: &str| match word {
        "NAME" => "4b".to_string(),
        "REV" => "main".to_string(),
        word => word.replace("owner/name", "someone/model").replace("FILE", "model_index.json"),
    };
    line.split(' ').skip(1).map(word).collect()
}

#[test]
fn every_command_that_needs_a_hub_works() {
    let mut content = Content { repository: "*".to_string(), ..small() };
    content.files.insert("system_prompts.json".to_string(), b"{}".to_vec());
    let hub = Hub::start(content, fine);
    let mut seen = std::collections::BTreeSet::new();
    for document in DOCUMENTS {
        for line in commands_in(document).into_iter().chain(commands_in_text(document)).filter(|line| is_of_hub(line)) {
            if !seen.insert(line.clone()) {
                continue;
            }
            let home = Home::new();
            Run::new(&mut home.download(&hub, &["4b"])).succeeds();
            let mut words = filled(&line);
            // The name of a command alone, and a command that would ask.
            match &words[..] {
                [name] if name != "list" => words.push("--help".to_string()),
                [name, ..] if name == "rm" && !words.contains(&"--yes".to_string()) => words.push("--yes".to_string()),
                _ => {}
            }
            let run = Run::new(home.flux().env("HF_ENDPOINT", hub.url()).args(&words));
            assert_eq!(run.code, Some(0), "{document}: {line}: {}", run.stderr);
        }
    }
    assert!(seen.len() >= 4, "{seen:?}");
}

#[test]
fn the_table_of_names_is_that_of_the_program() {
    let page = fs::read_to_string(crate::program::project("docs/models.md")).unwrap();
    let rows: Vec<&str> = page.lines().filter(|line| line.contains("black-forest-labs/")).collect();
    let row = |model: &flux_hub::Published| {
        let (name, repository, licence) = (model.name, model.repository, model.licence);
        format!("| `{name}` | `{repository}` | {} GB | {licence} |", model.bytes / 1_000_000_000)
    };
    assert_eq!(rows, flux_hub::PUBLISHED.iter().map(row).collect::<Vec<_>>());
}
