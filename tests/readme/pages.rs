//! The pages link to existing pages, files, headings and targets.

use std::collections::BTreeSet;
use std::fs;

use super::{DOCUMENTS, text_of};
use crate::program::project;

#[test]
fn every_target_of_make_and_every_file_that_a_text_names_is_there() {
    let makefile = text_of("Makefile");
    for document in DOCUMENTS {
        let text = text_of(document);
        for rest in text.split("`make ").skip(1) {
            let target: String = rest.chars().take_while(|c| c.is_ascii_lowercase() || *c == '-').collect();
            assert!(makefile.contains(&format!("\n{target}:")), "{document}: no target `{target}`");
        }
        for path in text.split('`').skip(1).step_by(2) {
            let is_path =
                ["src/", "tests/", "scripts/", "cuda/", "docs/", "models/"].iter().any(|top| path.starts_with(top));
            let stands_for_others =
                path.contains(|c: char| c.is_whitespace() || c.is_ascii_uppercase() || "<*".contains(c));
            // Models are downloaded.
            if is_path && !stands_for_others && !path.starts_with("models/klein") {
                assert!(project(path.trim_end_matches('/')).exists(), "{document}: {path}");
            }
        }
    }
}

#[test]
fn every_file_and_every_heading_that_is_linked_is_there() {
    for document in DOCUMENTS {
        let (text, path) = (text_of(document), project(document));
        let folder = path.parent().expect("a file is in a folder");
        for link in text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap_or_default()) {
            if link.starts_with("http") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let linked = if file.is_empty() { path.clone() } else { folder.join(file) };
            assert!(linked.exists(), "{document}: {link}");
            if !heading.is_empty() {
                let text = fs::read_to_string(&linked).expect("a heading is in a text");
                assert!(headings_of(&text).contains(heading), "{document}: {link}");
            }
        }
    }
}

#[test]
fn no_section_is_there_twice_and_rows_are_whole() {
    for document in DOCUMENTS {
        let (mut sections, mut columns) = (BTreeSet::new(), 0);
        for line in text_of(document).split("```").step_by(2).flat_map(str::lines) {
            assert!(!line.starts_with("## ") || sections.insert(line.to_string()), "{document}: again {line}");
            let cells = if line.starts_with('|') { line.replace("\\|", "").matches('|').count() } else { 0 };
            assert!(cells == 0 || columns == 0 || cells == columns, "{document}: cells are missing in {line}");
            columns = cells;
        }
    }
}

/// Returns the headings of a document, in the form of links.
fn headings_of(text: &str) -> BTreeSet<String> {
    let letter = |c: char| match c {
        ' ' | '-' => Some('-'),
        c if c.is_alphanumeric() || c == '_' => Some(c.to_ascii_lowercase()),
        _ => None,
    };
    let headings = text.lines().filter(|line| line.starts_with('#')).map(|line| line.trim_start_matches('#').trim());
    headings.map(|heading| heading.chars().filter_map(letter).collect()).collect()
}

/// New readers see it first.
#[test]
fn the_readme_is_short() {
    assert!(text_of("README.md").len() <= 8_000);
}

#[test]
fn the_summary_lists_every_page_and_the_readme_leads_to_it() {
    let (summary, readme) = (text_of("docs/SUMMARY.md"), text_of("README.md"));
    let kernels = text_of("docs/kernels.md");
    for page in
        DOCUMENTS.iter().filter_map(|document| document.strip_prefix("docs/")).filter(|page| *page != "SUMMARY.md")
    {
        assert!(summary.contains(&format!("]({page})")), "{page}");
        // This page is the file next to the README.
        let link = if page == "changelog.md" { "](CHANGELOG.md)".to_string() } else { format!("](docs/{page})") };
        // The pages of kernels are listed by their overview.
        let is_listed = page.starts_with("kernels-") && kernels.contains(&format!("]({page})"));
        assert!(is_listed || readme.contains(&link), "{page}");
    }
}

/// mdBook reads `docs/SUMMARY.md`: a title, then one list of links to pages, each once.
#[test]
fn the_book_is_one_list_of_pages_and_is_built_below_target() {
    let summary = text_of("docs/SUMMARY.md");
    let mut lines = summary.lines().filter(|line| !line.is_empty());
    assert_eq!(lines.next(), Some("# Summary"));
    let mut pages = BTreeSet::new();
    for line in lines {
        let link = line
            .trim_start()
            .strip_prefix("- [")
            .and_then(|rest| rest.strip_suffix(')'))
            .and_then(|rest| rest.split_once("]("));
        let (title, page) = link.unwrap_or_else(|| panic!("no page of the book: {line}"));
        assert!(!title.is_empty() && pages.insert(page), "{line}");
        let text = text_of(&format!("docs/{page}"));
        assert!(text.starts_with("# ") || text == "{{#include ../CHANGELOG.md}}\n", "{page} has no title");
    }
    let book = text_of("book.toml");
    for line in ["src = \"docs\"", "build-dir = \"target/book\"", "create-missing = false"] {
        assert!(book.lines().any(|found| found == line), "{line}");
    }
}
