//! Shell completions and man pages, generated from the command line definition.

use clap::{Arg, CommandFactory};
use clap_complete::Shell;
use clap_mangen::Man;
use flux::{Error, Result};

use super::Cli;

/// Extends bash completion with the output of `flux list --names`. The names are never expanded, because a folder may
/// have any name.
const NAMES_IN_BASH: &str = r#"
_flux_with_names() {
    _flux "$@"
    local kind name
    case "$3" in
        -d | --dir) kind=models ;;
        --lora) kind=adapters ;;
        --device) kind=devices ;;
        rm) kind=all ;;
        download) kind=published ;;
        *) return 0 ;;
    esac
    while IFS= read -r name; do
        [[ $name != "$2"* ]] || COMPREPLY+=("$name")
    done < <("$1" list --names "$kind" 2>/dev/null)
}

complete -F _flux_with_names -o bashdefault -o default flux
"#;

/// Extends zsh completion with names; the generated script calls these functions.
const NAMES_IN_ZSH: &str = r#"
_flux_names() {
    local -a names
    names=(${(f)"$(flux list --names $1 2>/dev/null)"})
    compadd -a names
}

_flux_models() {
    local status_of_all=1
    _files && status_of_all=0
    _flux_names models && status_of_all=0
    return status_of_all
}

_flux_adapters() {
    local status_of_all=1
    _files && status_of_all=0
    _flux_names adapters && status_of_all=0
    return status_of_all
}

_flux_devices() {
    _flux_names devices
}

"#;

/// Extends fish completion with names.
const NAMES_IN_FISH: &str = r#"
complete -c flux -s d -l dir -r -F -a "(flux list --names models 2>/dev/null)"
complete -c flux -l lora -r -F -a "(flux list --names adapters 2>/dev/null)"
complete -c flux -l device -x -a "(flux list --names devices 2>/dev/null)"
complete -c flux -n "__fish_flux_using_subcommand rm" -f -a "(flux list --names all 2>/dev/null)"
complete -c flux -n "__fish_flux_using_subcommand download" -f -a "(flux list --names published 2>/dev/null)"
"#;

/// Returns the completion script of a shell, for flags, commands and files. For bash, zsh and fish it also completes
/// names of models, adapters and devices.
pub fn completions(shell: Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "flux", &mut script);
    match shell {
        Shell::Bash => script.extend(NAMES_IN_BASH.as_bytes()),
        Shell::Zsh => script = with_names_in_zsh(&String::from_utf8_lossy(&script)).into_bytes(),
        Shell::Fish => script.extend(NAMES_IN_FISH.as_bytes()),
        _ => {}
    }
    script
}

/// Adds completion of names to the zsh script.
fn with_names_in_zsh(script: &str) -> String {
    let of_flag = |line: &str| -> String {
        let of = |flags: &[&str], action: &str, names: &str| {
            let is_of = flags.iter().any(|flag| line.trim_start_matches(['\'', '*']).starts_with(flag));
            is_of.then(|| line.replace(action, names))
        };
        of(&["-d+[", "--dir=["], ":_files'", ":_flux_models'")
            .or_else(|| of(&["--lora=["], ":_default'", ":_flux_adapters'"))
            .or_else(|| of(&["--device=["], ":DEVICE:_default'", ":DEVICE:_flux_devices'"))
            .or_else(|| of(&["--device=["], ":DEVICE:'", ":DEVICE:_flux_devices'"))
            .unwrap_or_else(|| line.to_string())
    };
    let lines: Vec<String> = script.lines().map(of_flag).collect();
    let script = lines.join("\n") + "\n";
    // The end of the script calls the completion function.
    let (functions, call) = script.split_at(script.rfind("\nif [").unwrap_or(script.len()));
    format!("{functions}\n{NAMES_IN_ZSH}{}", call.trim_start())
}

/// Returns the man pages with their file names: one of the program, and one of each visible command. They contain no
/// date, so the output is reproducible.
///
/// Errors when a page cannot be generated.
pub fn man_pages() -> Result<Vec<(String, Vec<u8>)>> {
    let mut command = Cli::command().disable_help_subcommand(true);
    command.build();
    let shown = command.get_subcommands().filter(|command| !command.is_hide_set());
    let commands: Vec<_> = [&command].into_iter().chain(shown).cloned().collect();
    commands.into_iter().map(page).collect()
}

fn page(command: clap::Command) -> Result<(String, Vec<u8>)> {
    let source = format!("flux {}", env!("CARGO_PKG_VERSION"));
    let man = Man::new(command.mut_args(with_help)).source(source).manual("Flux");
    let mut text = Vec::new();
    man.render(&mut text).map_err(|e| Error::new(format!("cannot create {}: {e}", man.get_filename())))?;
    Ok((man.get_filename(), text))
}

/// Copies a flag's short help to its long help if that is missing, so that flags hidden from `-h` have a description.
fn with_help(flag: Arg) -> Arg {
    match flag.get_help().filter(|_| flag.get_long_help().is_none()).cloned() {
        Some(help) => flag.long_help(help),
        None => flag,
    }
}
