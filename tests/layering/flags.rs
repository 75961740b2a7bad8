//! The library contains no flags: its messages use fields, and only the program maps them to flags.

use std::path::Path;
use std::sync::LazyLock;

use regex::Regex;

use super::paths::{SourceFile, Sources};
use super::src;
use crate::process::project;

/// Returns the literals of a file that begin with a flag, or have one after a backtick; each with its line. Flags of
/// other programs follow their names.
fn flags(file: &SourceFile) -> Vec<String> {
    static FLAG: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(^|`)(-[A-Za-z]\b|--[a-z{])").expect("a pattern"));
    let named = file.literals.iter().filter(|(_, text)| FLAG.is_match(text));
    named.map(|(line, text)| format!("{}:{line}: {text:?}", file.name)).collect()
}

fn found_below(folder: &Path) -> Vec<String> {
    Sources::read(folder).files.iter().flat_map(flags).collect()
}

#[test]
fn no_flag_is_named_in_the_library() {
    let of_library = ["flux-base", "flux-files", "flux-media"].map(|name| format!("crates/{name}/src"));
    let folders = of_library.iter().map(|folder| project(folder)).chain([src()]);
    let found: Vec<_> = folders.flat_map(|folder| found_below(&folder)).collect();
    assert!(found.is_empty(), "\n{}", found.join("\n"));
    assert!(found_below(&project("crates/flux-cli/src")).len() > 50, "the program names its flags");
}

#[test]
fn flags_are_found_wherever_they_stand() {
    let found = |code: &str| flags(&SourceFile::parse("vae/mod.rs", code).expect("this is Rust")).len();
    for bad in [
        r#"fn f() { g("--width") }"#,
        r#"fn f() { g("name it with `-d`") }"#,
        r#"const HINT: &str = "`-W 64 -H 64` fits";"#,
        r#"fn f() { format!("--{name}") }"#,
        r#"fn f() { Err(Error::new("x").hint(format!("leave out `--precision {x}`"))) }"#,
        r#"fn f(x: u8) { match x { 1 => "`--lora`", _ => "" } }"#,
    ] {
        assert_eq!(found(bad), 1, "{bad}");
    }
    for good in [
        "/// As with `--width`.\nfn f() {} // `-d`",
        r#"fn f() { g("raise it with `ulimit -u`, see `nvidia-smi -L`", "-1", "`-nan`", "---", "a-b") }"#,
        r#"#[cfg(test)] mod tests { fn f() { g("--width") } }"#,
    ] {
        assert_eq!(found(good), 0, "{good}");
    }
}
