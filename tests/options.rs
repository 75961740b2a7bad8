//! docs/options.md is the output of `--help`, as tables.

use std::fs;

use crate::program::{Run, flux, project};

const PAGE: &str = "docs/options.md";

/// The text above the tables.
const TOP: &str = "\
# Every option

`flux --help` and `--help` of each subcommand say what these tables say; a test compares them.

- [Quick start](quick-start.md) has prompts, output, flags of other programs and what `flux` prints.
- [Files and formats](files.md#files-that-flux-writes) says which files `flux` writes, and which it never overwrites.
- [Troubleshooting](troubleshooting.md#exit-codes) lists the exit codes.
";

/// The commands on the page; `None` is `flux` alone.
const COMMANDS: [Option<&str>; 31] = [
    None,
    Some("bench"),
    Some("convert"),
    Some("download"),
    Some("list"),
    Some("rm"),
    Some("again"),
    Some("batch"),
    Some("chat"),
    Some("live"),
    Some("info"),
    Some("devices"),
    Some("selftest"),
    Some("config"),
    Some("compare"),
    Some("grid"),
    Some("upsample"),
    Some("upscale"),
    Some("serve"),
    Some("mcp"),
    Some("key"),
    Some("submit"),
    Some("worker"),
    Some("queue"),
    Some("queue status"),
    Some("queue cancel"),
    Some("queue dead"),
    Some("sheet"),
    Some("show"),
    Some("strip"),
    Some("verify"),
];

/// Wide enough to keep all lines of help unwrapped.
const COLUMNS: &str = "10000";

/// The command that regenerates the page.
const AGAIN: &str =
    "if the change is meant: UPDATE_SNAPSHOTS=1 cargo test --profile quick --test command_line options::";

/// The heading of the subcommands.
const SUBCOMMANDS: &str = "Commands";

/// The output of `--help` of a command.
#[derive(Default)]
struct Help {
    /// The description of the command, and its usage.
    top: Vec<String>,
    tables: Vec<(String, Vec<Entry>)>,
    /// The text after the options.
    bottom: Vec<String>,
}

/// An option, an argument or a subcommand.
struct Entry {
    name: String,
    /// Its description.
    lines: Vec<String>,
}

impl Entry {
    /// Reads the entry of a line that names one. Descriptions begin further to the right.
    fn parse(line: &str) -> Option<Self> {
        let text = line.trim();
        let indent = line.len() - line.trim_start().len();
        if !(1..10).contains(&indent) || text.is_empty() {
            return None;
        }
        let (name, said) = text.split_once("  ").unwrap_or((text, ""));
        Some(Self { name: name.to_string(), lines: vec![said.trim().to_string()] })
    }

    /// Returns its row: name, meaning, default and values.
    fn row(&self) -> String {
        let (mut meaning, mut default, mut values) = (String::new(), String::new(), Vec::new());
        let mut between = ", ";
        for line in self.lines.iter().map(String::as_str).filter(|line| !line.is_empty()) {
            if let Some(list) = line.strip_prefix("[possible values: ") {
                values.extend(list.trim_end_matches(']').split(", ").map(|value| format!("`{value}`")));
                continue;
            }
            if line == "Possible values:" {
                between = "; ";
                continue;
            }
            if let Some(value) = line.strip_prefix("- ") {
                let (name, said) = value.split_once(':').unwrap_or((value, ""));
                let said = said.trim();
                values.push(if said.is_empty() { format!("`{name}`") } else { format!("`{name}`: {said}") });
                continue;
            }
            let mut sentence = line.to_string();
            if let Some((before, rest)) = line.split_once("[default: ") {
                let (value, behind) = rest.split_once(']').expect("the bracket of a default is closed");
                default = value.to_string();
                sentence = format!("{}{behind}", before.trim_end());
            }
            if sentence.is_empty() {
                continue;
            }
            if !meaning.is_empty() {
                meaning.push_str(if meaning.ends_with('.') { " " } else { ". " });
            }
            meaning.push_str(&sentence);
        }
        let cells = [format!("`{}`", self.name), meaning, default, values.join(between)];
        format!("| {} |\n", cells.map(|cell| cell.replace('|', "\\|")).join(" | "))
    }
}

impl Help {
    fn read(text: &str) -> Self {
        let mut help = Self::default();
        for line in text.lines() {
            let heading = line.strip_suffix(':').filter(|heading| !heading.starts_with(' '));
            if !help.bottom.is_empty() {
                help.bottom.push(line.to_string());
                continue;
            }
            if let Some(heading) = heading {
                help.tables.push((heading.to_string(), Vec::new()));
                continue;
            }
            let Some((_, entries)) = help.tables.last_mut() else {
                help.top.push(line.to_string());
                continue;
            };
            if let Some(entry) = Entry::parse(line) {
                entries.push(entry);
            } else if line.is_empty() || line.starts_with(' ') {
                if let Some(entry) = entries.last_mut() {
                    entry.lines.push(line.trim().to_string());
                }
            } else {
                help.bottom.push(line.to_string());
            }
        }
        help
    }

    /// Reads the help of a command of the built program.
    fn for_command(command: Option<&str>) -> Self {
        Self::read(
            &Run::new(
                flux().args(command.iter().flat_map(|name| name.split(' '))).arg("--help").env("COLUMNS", COLUMNS),
            )
            .succeeds()
            .stdout,
        )
    }

    /// Returns the names of the subcommands.
    fn subcommands(&self) -> impl Iterator<Item = &str> {
        let entries = self.tables.iter().filter(|(heading, _)| heading == SUBCOMMANDS).flat_map(|(_, entries)| entries);
        entries.map(|entry| entry.name.as_str())
    }

    /// Returns the section of the page.
    fn section(&self, title: &str) -> String {
        let usage = self.top.iter().position(|line| line.starts_with("Usage:")).expect("help says how it is used");
        let (about, usage) = self.top.split_at(usage);
        let mut text = format!("\n## {title}\n\n{}\n\n{}", about.join("\n").trim(), block(usage));
        for (heading, entries) in &self.tables {
            let first = match heading.as_str() {
                SUBCOMMANDS => "command",
                "Arguments" => "argument",
                _ => "option",
            };
            text += &format!("\n### {heading}\n\n| {first} | meaning | default | values |\n|---|---|---|---|\n");
            text.extend(entries.iter().map(Entry::row));
        }
        if !self.bottom.is_empty() {
            text += &format!("\n{}", block(&self.bottom));
        }
        text
    }
}

/// Returns lines as a block.
fn block(lines: &[String]) -> String {
    format!("```text\n{}\n```\n", lines.join("\n").trim())
}

#[test]
fn the_page_of_options_is_the_help_of_every_command() {
    let mut page = TOP.to_string();
    for command in COMMANDS {
        let title = command.map_or("flux".to_string(), |command| format!("flux {command}"));
        page += &Help::for_command(command).section(&title);
    }
    let path = project(PAGE);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, &page).expect("the page is writable");
    }
    let found = fs::read_to_string(&path).expect("the page is there");
    for (found, expected) in found.lines().zip(page.lines()) {
        assert_eq!(found, expected, "{AGAIN}");
    }
    assert_eq!(found.lines().count(), page.lines().count(), "{AGAIN}");
    assert!(found == page, "{AGAIN}");
}

#[test]
fn every_subcommand_that_the_help_names_has_a_section() {
    let help = Help::for_command(None);
    let named: Vec<&str> = help.subcommands().filter(|name| *name != "help").collect();
    assert!(named.len() >= 3, "{named:?}");
    for name in named {
        assert!(COMMANDS.contains(&Some(name)), "{name}");
    }
}

#[test]
fn a_row_has_all_that_is_said_of_an_option() {
    let help = Help::read(
        "Does something.

Usage: x [OPTIONS]

Options:
  -k, --kind <A|B>
          Which kind

          More of it [default: none of them].

      --color <C>
          Its color

          Possible values:
          - red:  As blood
          - blue

          [default: red]

      --short <N>  One line

Behind it: nothing.
  indented
",
    );
    let expected = "
## flux

Does something.

```text
Usage: x [OPTIONS]
```

### Options

| option | meaning | default | values |
|---|---|---|---|
| `-k, --kind <A\\|B>` | Which kind. More of it. | none of them |  |
| `--color <C>` | Its color | red | `red`: As blood; `blue` |
| `--short <N>` | One line |  |  |

```text
Behind it: nothing.
  indented
```
";
    assert_eq!(help.section("flux"), expected);
}
